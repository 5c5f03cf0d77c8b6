"""Every fault that we claim to find is told as a scenario and found in it; where nothing broke, nothing is said."""

import json

import pytest

from analyzer.diagnosis import diagnose
from analyzer.pipeline import FollowOptions
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from lockstep.verdict import Incident
from simulator.scenario import Expectation, Scenario, build_topology, find_scenario, parse_scenario
from tests.builders import T0
from tests.simulated import JOB, load, tell
from tests.tiers import long_except

SEEDS = (11, 12)  # no threshold was chosen by looking at these
SMALL = """
summary = "24 ranks on 6 hosts with 2 NICs each"
duration_s = 30

[cluster]
hosts = 6
gpus_per_host = 4
nics_per_host = 2
hosts_per_leaf = 2
spines = 2
nic_gbps = 200.0

[job]
compute_ms = 300.0
allreduce_mb = [512]
"""
TWO_HOSTS = """
summary = "16 ranks on 2 hosts"
duration_s = 20

[cluster]
hosts = 2
gpus_per_host = 8
nics_per_host = {nics}
hosts_per_leaf = 1
spines = 1
nic_gbps = 200.0

[job]
compute_ms = 300.0
allreduce_mb = [512]
"""


def fail(at_s: float, part: str, left: int) -> str:
    return f"at {at_s} s fail {part} to {left} %"


def diagnosed(store: Store, text: str, *lines: str) -> list[Incident]:
    return told(store, parse_scenario(f"timeline = {json.dumps(lines)}\n{text}", "inline"), seed=11)


def told(store: Store, scenario: Scenario, seed: int) -> list[Incident]:
    load(store, tell(scenario, seed, every_s=int(scenario.duration_s)))
    return diagnose(store, TopologyIndex(build_topology(scenario.cluster)), FollowOptions())


def is_right(incident: Incident, expected: Expectation) -> bool:
    known = (expected.component, *expected.also_right)
    names = [name.replace(f"job:{expected.component.partition(':')[2]}", f"job:{JOB}") for name in known]
    classes = (expected.fault_class, *expected.also_class)
    return incident.verdict.fault_class in classes and incident.verdict.component in names


def after(seconds: float) -> int:
    return T0 + int(seconds * NS_PER_S)


# One scenario per kind of fault and of benign trouble; `lockstep bench accuracy` tells all of them.
CLAIMED = (
    *("autotune-strong-socket", "cascade-strong-ib", "clock-skew-strong-socket", "compute-and-wire-strong-ib"),
    *("data-loader-strong-ib", "deadlock-ib", "from-the-start-strong-ib", "garbage-collection-strong-ib"),
    *("gpu-stuck-socket", "hang-absent-socket", "hang-killed-ib", "hidden-straggler-strong-ib", "host-cpu-strong-ib"),
    *("host-gone-ib", "host-link-strong-socket", "leaf-switch-strong-ib", "link-down-ib", "lossy-path-strong-ib"),
    *("hang-stopped-socket", "nic-dead-ib", "mismatched-socket", "moe-strong-ib", "nic-rx-strong-socket"),
    *("nic-unknown-strong-ib", "noisy-neighbour-strong-ib"),
    *("nvlink-strong-ib", "pauses-strong-ib", "pcie-strong-ib", "port-failover-strong-ib", "rank-late-strong-ib"),
    *("restart-strong-ib", "spine-link-strong-ib", "spine-link-healthy-socket", "switch-strong-ib"),
    *("three-faults-strong-ib", "uneven-stages-strong-ib"),
)
TYPICAL = (
    *("gpu-stuck-socket", "host-cpu-strong-ib", "host-gone-ib", "nic-rx-strong-socket", "nvlink-strong-ib"),
    "spine-link-strong-ib",
)


@pytest.mark.slow
@pytest.mark.long  # tests/cli/test_diagnose.py judges one seed of both
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["healthy", "nic-half-speed"])
def test_scenario_of_the_demo_gets_the_verdicts_it_expects(embedded_store: Store, name: str, seed: int) -> None:
    check(told(embedded_store, find_scenario(name), seed), find_scenario(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", long_except(TYPICAL, CLAIMED))
def test_packaged_scenario_gets_the_verdicts_it_expects_and_no_other(embedded_store: Store, name: str) -> None:
    check(told(embedded_store, find_scenario(name), SEEDS[0]), find_scenario(name))


def check(incidents: list[Incident], scenario: Scenario) -> None:
    """Find each fault in time, and nothing else; one that stood still first and then was slow may be told twice."""
    began_s = min((change.at_s for change in scenario.timeline), default=0.0)
    for incident in incidents:
        assert any(is_right(incident, expected) for expected in scenario.expect), incident.verdict.reason
    for expected in scenario.expect:
        opened_ns = min((found.opened_ns for found in incidents if is_right(found, expected)), default=None)
        assert opened_ns is not None, f"{expected.component} was not named"
        assert after(began_s) <= opened_ns <= after(began_s + expected.within_s)


@pytest.mark.slow
def test_slow_gpu_is_not_blamed_on_a_wire(embedded_store: Store) -> None:
    """Everybody waits for it, but no pair is slower."""
    (incident,) = diagnosed(embedded_store, SMALL, fail(10, "gpu:h2/1", 50))
    assert (incident.verdict.fault_class, incident.verdict.component) == ("noncomm_slow", "gpu:h2/1")
    assert incident.opened_ns <= after(16)


@pytest.mark.slow
def test_nic_that_only_sends_slowly_is_in_doubt_with_its_wire_and_the_other_end(embedded_store: Store) -> None:
    """A NIC of a ring sends to one other, so what it sends slowly might be received slowly as well."""
    (incident,) = diagnosed(embedded_store, SMALL, fail(10, "nic:h3/eth1 tx", 50))
    said = incident.verdict
    assert (said.fault_class, said.component, said.side) == ("comm_slow", "link:h3/eth1--h4/eth1", "tx")
    assert {"nic:h3/eth1", "nic:h4/eth1"} <= set(said.ambiguous_with)
    assert said.grade != "isolate"
    assert incident.opened_ns <= after(18)


@pytest.mark.slow
def test_nic_at_nine_tenths_of_its_rate_is_not_worth_a_word(embedded_store: Store) -> None:
    assert diagnosed(embedded_store, SMALL, fail(10, "nic:h3/eth1", 90)) == []


@pytest.mark.slow
def test_two_slow_nics_are_both_named(embedded_store: Store) -> None:
    incidents = diagnosed(embedded_store, SMALL, fail(5, "nic:h1/eth0", 50), fail(15, "nic:h4/eth1", 60))
    assert [incident.verdict.component for incident in incidents] == ["nic:h1/eth0", "nic:h4/eth1"]
    first, second = (incident.verdict.since_ns for incident in incidents)
    assert after(5) <= first <= after(11) < after(15) <= second <= after(21)


@pytest.mark.slow
def test_slowness_behind_a_host_that_tells_nothing_is_said_with_doubt(embedded_store: Store) -> None:
    unseen = f'{SMALL}\n[telemetry]\nwithout = ["h3"]\n'
    (incident,) = diagnosed(embedded_store, unseen, fail(10, "gpu:h3/1", 50))
    assert (incident.verdict.fault_class, incident.verdict.grade) == ("global_slow", "note")
    assert "host:h3" in incident.verdict.ambiguous_with


@pytest.mark.slow
def test_fault_from_the_first_second_is_named_although_its_cost_is_unknown(embedded_store: Store) -> None:
    (incident,) = diagnosed(embedded_store, SMALL, fail(0, "nic:h3/eth1", 50))
    assert incident.verdict.component == "nic:h3/eth1"
    assert incident.opened_ns <= after(6)
    assert incident.verdict.impact.step_time_ratio is None


@pytest.mark.slow
def test_fault_that_heals_is_closed(embedded_store: Store) -> None:
    (incident,) = diagnosed(embedded_store, SMALL, fail(5, "nic:h3/eth1", 50), "at 15 s heal nic:h3/eth1")
    assert (incident.verdict.component, incident.state) == ("nic:h3/eth1", "closed")
    assert incident.verdict.last_seen_ns <= after(22)
    assert incident.closed_because == "the part has been normal again"


@pytest.mark.slow
def test_between_two_hosts_either_end_may_be_slow(embedded_store: Store) -> None:
    """A NIC has one peer only, and shares all its pairs with it; counters may tilt the choice, not make it."""
    (incident,) = diagnosed(embedded_store, TWO_HOSTS.format(nics=4), fail(5, "nic:h1/eth2", 50))
    assert {incident.verdict.component, *incident.verdict.ambiguous_with} >= {"nic:h0/eth2", "nic:h1/eth2"}
    assert incident.verdict.grade != "isolate"


@pytest.mark.slow
def test_few_pairs_without_a_past_to_compare_them_with_are_passed_over_in_silence(embedded_store: Store) -> None:
    assert diagnosed(embedded_store, TWO_HOSTS.format(nics=2), fail(0.01, "nic:h1/eth1", 55)) == []


def test_few_pairs_with_a_past_are_told_by_it(embedded_store: Store) -> None:
    (incident,) = diagnosed(embedded_store, TWO_HOSTS.format(nics=2), fail(5, "nic:h1/eth1", 50))
    assert {incident.verdict.component, *incident.verdict.ambiguous_with} >= {"nic:h0/eth1", "nic:h1/eth1"}
    assert incident.verdict.grade != "isolate"
