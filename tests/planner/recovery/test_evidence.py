"""Failure rates follow from faults that stopped jobs and from the days for which nodes were watched."""

import pytest

from lockstep.arrow import rows_of
from lockstep.clock import NS_PER_S
from lockstep.control.database import ControlDatabase
from lockstep.control.incidents import save_incidents
from lockstep.records import Agent
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from planner.recovery.evidence import Evidence, EvidenceReader, find_evidence
from tests.builders import make
from tests.planner.recovery.build import T0, crash, incident, verdict

DAY_NS = 86_400 * NS_PER_S


def test_little_watching_tells_nothing() -> None:
    assert find_evidence({"h3": 1}, {"h3": 20.0, "h4": 9.0}) == Evidence()


def test_node_that_failed_more_often_is_expected_to_fail_again() -> None:
    found = find_evidence({"h3": 3}, dict.fromkeys(("h3", "h4", "h5"), 25.0))
    assert found.rate is not None
    assert (found.rate.failures, found.rate.node_days) == (3, 75.0)
    assert found.by_node["h3"] == pytest.approx(4 * found.by_node["h4"])


def test_only_what_stopped_a_job_on_a_watched_host_counts(embedded_store: Store, control: ControlDatabase) -> None:
    beats = [
        make(Agent, host=host, ts_ns=T0 + day * DAY_NS - beat * NS_PER_S)
        for host in ("h3", "h4")
        for day in range(1, 21)
        for beat in (5, 65)
    ]
    table = TABLE_BY_NAME["agents"]
    embedded_store.insert(table, rows_of(table, list(beats)), token="agents")
    faults = [
        incident(crash(), name="i1"),
        incident(crash(component="gpu:h3/1", fault_class="noncomm_hang"), name="i2"),
        incident(verdict(), name="i3"),  # slow: the job went on
        incident(crash(component="host:elsewhere"), name="i4"),
    ]
    save_incidents(control, faults, None)
    found = EvidenceReader(embedded_store, control).read(T0 + 20 * DAY_NS)
    assert found.rate is not None
    assert (found.rate.failures, found.rate.node_days) == (2, 40.0)
    assert found.by_node["h3"] > found.by_node["h4"]


def test_without_a_store_nothing_is_known(control: ControlDatabase) -> None:
    assert EvidenceReader(None, control).read(T0) == Evidence()
