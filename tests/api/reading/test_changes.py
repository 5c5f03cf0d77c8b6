"""What changed near the beginning of a fault is found; what happened elsewhere or long before is not."""

import pytest

from api.reading.changes import find_changes
from lockstep.control.database import ControlDatabase
from lockstep.control.topologies import publish_topology
from lockstep.fabrics import leaf_spine
from lockstep.incident import Incident
from lockstep.records import Comm
from lockstep.store.store import Store
from tests.api.reading.build import NOW, happening, heartbeat, incident_on, load_job, put
from tests.builders import SECOND, T0, make

SINCE = NOW  # when the faults of these tests begin


def fault(job: str, attempt: int = 0) -> Incident:
    return incident_on("nic:h3/eth1", "i1", job=job, opened_ns=SINCE).model_copy(update={"attempt": attempt})


def kinds(store: Store, control: ControlDatabase, incident: Incident) -> list[tuple[str, str, float]]:
    return [(change.kind, change.subject, change.seconds_before) for change in find_changes(store, control, incident)]


def test_event_on_a_host_of_the_job_is_a_change(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "e")
    put(
        shared_store,
        [
            happening("e-h0", SINCE - 30 * SECOND, "gpu:e-h0/1"),
            happening("elsewhere", SINCE, "gpu:elsewhere/0"),
            happening("e-h0", SINCE - 7200 * SECOND, "gpu:e-h0/0"),
        ],
    )
    found = find_changes(shared_store, control, fault("e"))
    assert [(change.kind, change.subject) for change in found] == [("attempt", "e"), ("event", "gpu:e-h0/1")]
    assert found[1].what == "test on e-h0: error xid, it broke"
    assert found[1].seconds_before == 30.0
    assert found[1].at == "2023-11-14T22:13:00Z"


def test_event_long_before_is_a_change_where_it_is_asked_for(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "long")
    put(shared_store, [happening("long-h0", SINCE - 7200 * SECOND, "gpu:long-h0/0")])
    assert len(find_changes(shared_store, control, fault("long"), before_s=10_000)) == 2
    assert len(find_changes(shared_store, control, fault("long"))) == 1


def test_job_that_begins_on_the_same_host_is_a_neighbour(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "quiet")
    put(shared_store, [make(Comm, job="noisy", host="quiet-h1", init_ns=SINCE - SECOND)])
    assert ("neighbour", "noisy", 1.0) in kinds(shared_store, control, fault("quiet"))


def test_new_attempt_with_another_nccl_is_named(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "new")
    put(shared_store, [make(Comm, job="new", attempt=1, host="new-h0", init_ns=SINCE, nccl_version="2.29.1")])
    found = {change.kind: change.what for change in find_changes(shared_store, control, fault("new", attempt=1))}
    assert found["attempt"].startswith("attempt")
    assert found["nccl_version"] == "attempt 1 runs NCCL 2.29.1, the one before 2.28.9"


def test_collector_of_another_version_is_a_change(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "up")
    put(
        shared_store,
        [heartbeat("up-h0", SINCE - SECOND, version="1.0"), heartbeat("up-h0", SINCE + SECOND, version="1.1")],
    )
    (change,) = (each for each in find_changes(shared_store, control, fault("up")) if each.kind == "agent_version")
    assert change.what == "the collector of up-h0 became 1.1, it was among 1.0, 1.1"


def test_published_topology_is_a_change(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "cable")
    fabric = leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1)
    publish_topology(control, fabric, source="lldp", now_ns=SINCE - 5 * SECOND, who="ann")
    assert ("topology", "1", 5.0) in kinds(shared_store, control, fault("cable"))


@pytest.mark.parametrize("job", ["never-heard-of", "it's \\ odd"])
def test_job_without_telemetry_has_no_changes(shared_store: Store, control: ControlDatabase, job: str) -> None:
    assert find_changes(shared_store, control, fault(job)) == []


def test_changes_come_newest_first(shared_store: Store, control: ControlDatabase) -> None:
    load_job(shared_store, "order")
    put(shared_store, [happening("order-h0", SINCE - n * SECOND, "gpu:order-h0/0") for n in (3, 1, 2)])
    moments = [change.ts_ns for change in find_changes(shared_store, control, fault("order"))]
    assert moments == sorted(moments, reverse=True)
    assert T0 in moments
