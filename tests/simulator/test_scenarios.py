"""The scenarios that come with Lockstep cover what it claims to find, and what they call right can be right."""

from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import resources

import pytest

from lockstep.clock import NS_PER_S
from lockstep.topology import gpu_name, host_name, link_name, nic_name, switch_name
from simulator.faults import Fault
from simulator.scenario import (
    BENIGN,
    ClusterShape,
    Expectation,
    Scenario,
    build_topology,
    list_scenarios,
    parse_family,
)
from simulator.simulation import Simulation
from tests.tiers import long_except

SCENARIOS = list_scenarios()
FAMILIES = {
    name: [scenario for scenario in SCENARIOS if scenario.family == name]
    for name in sorted({s.family for s in SCENARIOS})
}
WITHOUT_STRENGTHS = {
    *("hang-absent", "hang-stopped", "hang-killed", "host-gone", "link-down", "nic-dead", "gpu-stuck", "mismatched"),
    *("deadlock", "rescale", "second-mix", "collector-gone"),
}
ON_THE_TESTBED = ("nic-tx", "nic-rx", "spine-link", "hang-stopped", "hang-absent", "host-cpu", "data-loader")
# What they tell is different, or not there, on others.
ONE_TRANSPORT = {"lossy-path", "lossy-path-tcp", "pause-spread", "port-failover"}

# Which parts a class can blame: the table of verdicts in docs/methods.md.
BLAMED = {
    "comm_slow": {"nic", "link", "switch", "nvlink", "pcie", "host"},
    "noncomm_slow": {"gpu", "host"},
    "global_slow": {"job"},
    "comm_hang": {"link", "nic"},
    "noncomm_hang": {"host", "gpu"},
    "crash": {"gpu", "host", "rank"},
    "software": {"host", "job"},
}


def names_of(family: str) -> set[str]:
    return {scenario.name for scenario in FAMILIES[family]}


def transports_of(family: str) -> set[str]:
    return {scenario.cluster.transport for scenario in FAMILIES[family]}


def failures(scenario: Scenario) -> list[Fault]:
    """Return what breaks the job; a host that only falls silent does not."""
    return [fault for fault in scenario.timeline if fault.effect not in (*BENIGN, "silent")]


def right_names(right: Expectation) -> set[str]:
    return {right.component, *right.also_right}


@cache
def parts_of(cluster: ClusterShape) -> frozenset[str]:
    """Return all parts that a verdict could blame on a cluster, pairs between NICs of different hosts apart."""
    topology = build_topology(cluster)
    hosts = topology.hosts
    gpus = [gpu_name(host.id, gpu.index) for host in hosts for gpu in host.gpus]
    names = (
        *(f"rank:{rank}" for rank in range(cluster.hosts * cluster.gpus_per_host)),
        *(host_name(host.id) for host in hosts),
        *(nic_name(host.id, nic.id) for host in hosts for nic in host.nics),
        *(kind + gpu.removeprefix("gpu") for gpu in gpus for kind in ("gpu", "pcie", "nvlink")),
        *(switch_name(switch.id) for switch in topology.switches),
        *(link_name(link) for link in topology.links),
    )
    return frozenset(names)


def wire_ends(name: str) -> tuple[str, str] | None:
    """Return the NICs at the ends of a wire whose path is unknown, the sender first; None for anything else."""
    sender, _, receiver = name.removeprefix("link:").partition("--")
    is_wire = name.startswith("link:") and "/" in sender and "/" in receiver
    return (f"nic:{sender}", f"nic:{receiver}") if is_wire else None


# What there is.


def test_families_are_on_their_transports_in_their_strengths_with_healthy_twins() -> None:
    assert len(FAMILIES) >= 72, "none of them is lost"
    for family in FAMILIES.keys() - {"healthy", "nic-half-speed"}:
        transports, breaks = transports_of(family), any(scenario.expect for scenario in FAMILIES[family])
        assert family in ONE_TRANSPORT or family.startswith("testbed-") or transports == {"ib", "socket"}
        strengths = () if family.removeprefix("testbed-") in WITHOUT_STRENGTHS else ("mild", "strong")
        told = {f"{family}-{kind}" for kind in (*strengths, *(["healthy"] if breaks else []))}
        assert {f"{name}-{transport}" for name in told for transport in transports} <= names_of(family)
    assert transports_of("lossy-path") | transports_of("lossy-path-tcp") == {"ib", "socket"}


def test_scenario_is_there_at_a_size_that_the_testbed_can_carry() -> None:
    carried = [(name, scenario) for name in ON_THE_TESTBED for scenario in FAMILIES[f"testbed-{name}"]]
    for family, scenario in carried:
        shape = scenario.cluster
        assert (shape.transport, shape.fabric, scenario.ranks, shape.nics_per_host) == ("socket", "leaf_spine", 16, 2)
        assert shape.hosts * shape.nics_per_host * shape.nic_gbps <= 1.6
        original = {fault.effect for other in FAMILIES[family] for fault in failures(other)}
        assert {fault.effect for fault in failures(scenario)} <= original


def test_no_name_is_told_twice() -> None:
    folder = resources.files("simulator").joinpath("scenarios")
    files = {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name != "shapes.toml"}
    told = [scenario.name for name, file in files.items() for scenario in parse_family(file.read_text("utf-8"), name)]
    assert sorted(told) == [each.name for each in SCENARIOS]


# What they tell.


def test_scenario_is_complete_long_enough_quick_to_simulate_and_breaks_after_a_baseline() -> None:
    for scenario in SCENARIOS:
        assert "{" not in scenario.summary
        assert not [name for right in scenario.expect for name in right_names(right) if "{" in name]
        assert 60 <= scenario.duration_s <= 120
        assert scenario.ranks <= 64
        assert all(fault.at_s < scenario.duration_s for fault in scenario.timeline)
        from_the_start = scenario.family in ("from-the-start", "spare-joins")
        assert all(fault.at_s >= 20 or (from_the_start and fault.at_s == 0) for fault in failures(scenario))
        assert not scenario.expect or any(is_twin(other, scenario) for other in SCENARIOS)


def is_twin(other: Scenario, scenario: Scenario) -> bool:
    def devices(one: Scenario) -> tuple[object, ...]:
        return one.cluster, one.job, one.noise, one.clocks, one.telemetry

    silent = not other.expect and not failures(other)
    return silent and devices(other) == devices(scenario) and other.duration_s >= scenario.duration_s


def harm(scenario: Scenario) -> Iterator[float]:
    """Yield figures of a scenario that grow with its strength, always in the same order."""
    for fault in scenario.timeline:
        amount = fault.amount or 0.0
        yield 1 - amount if fault.effect in ("rate", "starved") else amount
        yield from (fault.share, fault.stall_s, fault.lasting_s or 0.0, -(fault.every_s or 0.0))
    job = scenario.job
    yield from (job.experts, job.sequences, job.first_steps_slower)
    yield from (doing.first_ms + doing.last_ms for doing in job.steps)


def test_mild_is_milder_than_strong_and_otherwise_the_same() -> None:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    for mild in (scenario for scenario in SCENARIOS if "-mild" in scenario.name):
        strong = by_name[mild.name.replace("-mild", "-strong")]
        pairs = list(zip(harm(mild), harm(strong), strict=True))
        assert all(less <= more for less, more in pairs)
        assert any(less < more for less, more in pairs)
        assert (mild.cluster, mild.clocks, mild.telemetry) == (strong.cluster, strong.clocks, strong.telemetry)
        faults = [[(fault.at_s, fault.part) for fault in each.timeline] for each in (mild, strong)]
        assert faults[0] == faults[1]


# Which verdicts are right.


def test_expected_verdicts_name_what_breaks_and_nothing_else() -> None:
    for scenario in SCENARIOS:
        assert bool(scenario.expect) == bool(failures(scenario))
        named = {name for right in scenario.expect for name in right_names(right)}
        for fault in failures(scenario):
            is_software = fault.effect in ("mismatched", "deadlocked") or fault.part == "fabric"
            assert (f"job:{scenario.name}" if is_software else fault.part) in named
        parts = parts_of(scenario.cluster) | {f"job:{scenario.name}"} if named else set()
        assert all(set(wire_ends(name) or (name,)) <= parts for name in named)


def test_expected_class_and_side_fit_the_part_that_broke() -> None:
    for scenario in SCENARIOS:
        for right in scenario.expect:
            assert right.component.partition(":")[0] in BLAMED[right.fault_class]
            for sender, receiver in filter(None, map(wire_ends, right.also_right)):
                assert right.component == {"tx": sender, "rx": receiver}[right.side or "tx"]
                assert sender.split("/")[0] != receiver.split("/")[0]
            sides = {fault.side for fault in failures(scenario) if fault.part in right_names(right)}
            assert sides <= {right.side}


def test_expected_verdict_can_come_in_time_before_the_fault_heals_or_anything_times_out() -> None:
    for scenario in SCENARIOS:
        heals = [fault.at_s for fault in scenario.timeline if fault.effect == "heal"]
        for right in scenario.expect:
            begin = right.after_s if right.after_s is not None else scenario.breaks_at_s
            assert begin is not None
            assert begin + right.within_s <= min([scenario.duration_s, *heals])
            if right.fault_class in ("comm_hang", "noncomm_hang", "crash"):
                assert right.within_s <= 15  # IB gives up after some 30 s, NCCL's watchdog after minutes


# What the simulator makes of them.


@lru_cache(maxsize=64)
def steps_done(scenario: Scenario, until_s: float) -> int:
    simulation = Simulation(scenario, seed=1)
    for _ in simulation.run_until(until_s * NS_PER_S):
        pass
    return simulation.step


def plain(scenario: Scenario, timeline: tuple[Fault, ...]) -> Scenario:
    """Return what matters to the simulation alone, so that families with the same cluster and job share a twin."""
    return Scenario(
        summary="plain",
        duration_s=1,
        cluster=scenario.cluster,
        job=scenario.job,
        noise=scenario.noise,
        timeline=timeline,
    )


FAULTY = [scenario for scenarios in FAMILIES.values() for scenario in scenarios if scenario.expect]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",  # the mild one of each family, on IB where it is told there
    long_except(
        ("hang-absent-ib", "host-cpu-mild-ib", "spine-link-mild-ib"),
        [
            next(scenario.name for scenario in FAULTY if scenario.family == family)
            for family in sorted({s.family for s in FAULTY})
        ],
    ),
)
def test_fault_costs_the_job_steps_before_it_has_to_be_named(name: str) -> None:
    scenario = next(scenario for scenario in FAULTY if scenario.name == name)
    timestamps = [(right.after_s or scenario.breaks_at_s or 0.0) + right.within_s for right in scenario.expect]
    calm = tuple(fault for fault in scenario.timeline if fault.effect in BENIGN and fault.effect != "heal")
    faulty, healthy = (
        steps_done(plain(scenario, timeline), max(timestamps)) for timeline in (scenario.timeline, calm)
    )
    assert faulty < healthy
