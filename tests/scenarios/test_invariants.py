"""What must not matter does not: names, order, missing rows, the pace of the job; and what heals is cleared."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.verdict import Verdict
from simulator.scenario import Scenario, build_topology, parse_scenario
from tests.fixtures.stores import SharedEngine
from tests.scenarios.retelling import (
    Rows,
    renamed,
    renamed_topology,
    renamer,
    rows_of,
    shuffled_and_doubled,
    stretched,
    thinned,
    verdicts,
)

pytestmark = pytest.mark.slow
SEED = 13  # no threshold was chosen by looking at it
RAW = ("comms", "collectives", "transfers", "step_samples", "connections")
LOST = ("collectives", "transfers", "step_samples", "op_stats", "transfer_stats")

CLUSTER = """
summary = "32 ranks on {hosts} hosts with 2 NICs each"
duration_s = 24

[cluster]
hosts = {hosts}
gpus_per_host = 4
nics_per_host = 2
hosts_per_leaf = 2
spines = 2
nic_gbps = 200.0

[job]
compute_ms = 300.0
allreduce_mb = [512, 512]
"""
FAULTS = {"nic:h3/eth1": ["at 8 s fail nic:h3/eth1 to 30 %"], "gpu:h2/1": ["at 8 s fail gpu:h2/1 to 50 %"]}
faults = st.sampled_from(sorted(FAULTS))
seeds = st.integers(0, 2**16)
few = settings(max_examples=4, derandomize=True)  # each example is a whole simulation and its analysis


def scenario(timeline: Sequence[str] = (), hosts: int = 8) -> Scenario:
    return parse_scenario(f"timeline = {list(timeline)!r}\n{CLUSTER.format(hosts=hosts)}", "invariant")


def said(engine: SharedEngine, told: Scenario, rows: Rows | None = None) -> list[Verdict]:
    return verdicts(engine, rows_of(told, SEED) if rows is None else rows, build_topology(told.cluster))


def parts(found: Sequence[Verdict]) -> set[str]:
    return {verdict.component for verdict in found}


@few
@given(fault=faults, seed=seeds)
def test_other_names_of_hosts_and_communicators_give_the_same_verdict(
    shared_engine: SharedEngine, fault: str, seed: int
) -> None:
    told = scenario(FAULTS[fault])
    rename = renamer(seed, hosts=8)
    rows = renamed(rows_of(told, SEED), rename, seed)
    found = verdicts(shared_engine, rows, renamed_topology(told, rename))
    assert parts(found) == {rename(fault)}


@few
@given(fault=faults)
def test_what_heals_is_cleared(shared_engine: SharedEngine, fault: str) -> None:
    told = scenario([*FAULTS[fault], f"at 14 s heal {fault}"]).model_copy(update={"duration_s": 40.0})
    (found,) = said(shared_engine, told)
    assert found.component == fault
    assert found.last_seen_ns < found.since_ns + 20 * 10**9


@few
@given(fault=faults, hosts=st.sampled_from([6, 10, 12]))
def test_more_healthy_hosts_add_no_verdict(shared_engine: SharedEngine, fault: str, hosts: int) -> None:
    assert parts(said(shared_engine, scenario(FAULTS[fault], hosts))) == {fault}
    assert said(shared_engine, scenario(hosts=hosts)) == []


@few
@given(fault=faults, times=st.sampled_from([2, 3, 5]))
def test_job_that_does_everything_so_many_times_slower_has_the_same_fault(
    shared_engine: SharedEngine, fault: str, times: int
) -> None:
    told = scenario(FAULTS[fault])
    found = said(shared_engine, told, stretched(rows_of(told, SEED), times, RAW))
    assert {(verdict.fault_class, verdict.component) for verdict in found} == {
        ("comm_slow" if fault.startswith("nic") else "noncomm_slow", fault)
    }


@few
@given(fault=faults, share=st.floats(0.02, 0.3), seed=seeds)
def test_lost_rows_never_make_another_part_guilty(
    shared_engine: SharedEngine, fault: str, share: float, seed: int
) -> None:
    told = scenario(FAULTS[fault])
    found = said(shared_engine, told, thinned(rows_of(told, SEED), share, seed, LOST))
    assert parts(found) <= {fault}
    healthy = scenario()
    assert said(shared_engine, healthy, thinned(rows_of(healthy, SEED), share, seed, LOST)) == []


@few
@given(fault=faults, seed=seeds)
def test_order_and_repetition_of_rows_do_not_matter(shared_engine: SharedEngine, fault: str, seed: int) -> None:
    told = scenario(FAULTS[fault])
    found = said(shared_engine, told, shuffled_and_doubled(rows_of(told, SEED), seed, LOST))
    assert parts(found) == {fault}
