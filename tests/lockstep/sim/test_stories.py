"""The stories that come with Lockstep cover what it claims to find, and what they call right can be right."""

from collections.abc import Iterator
from functools import lru_cache
from importlib import resources

import pytest

from lockstep.clock import NS_PER_S
from lockstep.sim.library import list_stories, parse_family
from lockstep.sim.simulation import Simulation
from lockstep.sim.story import BENIGN, Expectation, Story, build_topology
from lockstep.sim.timeline import Turn
from lockstep.topology import gpu_name, host_name, link_name, nic_name, switch_name

STORIES = list_stories()
FAMILIES = {name: [told for told in STORIES if told.family == name] for name in sorted({s.family for s in STORIES})}
SINGLE = {"healthy", "nic-half-speed"}
every_family = pytest.mark.parametrize("stories", FAMILIES.values(), ids=FAMILIES)

SLOW = {
    "nic-tx": "NIC tx",
    "nic-rx": "NIC rx",
    "nic-both": "both",
    "host-link": "host link",
    "spine-link": "leaf-spine link",
    "switch": "switch",
    "lossy-path": "one ECMP path lossy, on IB",
    "lossy-path-tcp": "one ECMP path lossy, on sockets",
    "pcie": "PCIe of one GPU",
    "nvlink": "NVLink of one GPU",
    "gpu-straggler": "GPU straggler, constant",
    "gpu-thermal": "GPU straggler, thermal",
    "gpu-rare": "GPU straggler, rare",
    "host-cpu": "host CPU starving the proxy thread",
    "data-loader": "data loader of one host",
    "noisy-neighbour": "noisy neighbour job on shared links",
}
HANG = {
    "hang-absent": "rank never enqueues",
    "hang-stopped": "process stopped",
    "hang-killed": "process killed",
    "host-gone": "host gone with its telemetry",
    "link-down": "link down",
    "nic-dead": "NIC dead",
    "port-failover": "port failover, on IB",
    "gpu-stuck": "GPU kernel stuck",
    "mismatched": "mismatched collectives",
    "deadlock": "deadlock between communicators",
}
HARD = {
    "two-faults": "two faults at once",
    "three-faults": "three faults at once",
    "compute-and-wire": "compute-slow and comm-slow together",
    "hidden-straggler": "a slow rank hidden by a slower one",
    "cascade": "cascade over TP/PP/DP",
    "flap": "flap of 2 s every minute",
    "ramp": "ramps",
    "large-messages": "only large messages slow",
    "from-the-start": "fault present from the first step",
    "spare-joins": "fault on a spare that joins",
    "culprit-unseen": "culprit's records missing",
    "silent-hosts": "30 % of hosts silent",
    "clock-skew": "10 ms clock skew and 50 ppm drift",
    "late-batches": "late and reordered batches",
    "nic-unknown": "NIC of a transfer unknown",
}
QUIET = {
    "moe": "MoE imbalance",
    "sequences": "variable sequence length",
    "uneven-stages": "uneven first/last pipeline stage",
    "pauses": "checkpoint and evaluation pauses",
    "garbage-collection": "garbage collection",
    "autotune": "first-iteration autotune",
    "restart": "restart",
    "rescale": "elastic rescale",
    "second-mix": "a different collective mix after step N",
    "collector-gone": "telemetry of one host ends, its ranks go on",
}
ON_THE_TESTBED = ("nic-tx", "nic-rx", "spine-link", "hang-stopped", "hang-absent", "host-cpu", "data-loader")
ONE_TRANSPORT = {
    "lossy-path",
    "lossy-path-tcp",
    "pause-spread",
    "port-failover",
}  # what they tell is different, or not there, on others

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


def failures(told: Story) -> list[Turn]:
    """Return what breaks the job; a host that only falls silent does not."""
    return [turn for turn in told.timeline if turn.effect not in (*BENIGN, "silent")]


def right_names(right: Expectation) -> set[str]:
    return {right.component, *right.also_right}


def parts_of(told: Story) -> set[str]:
    """Return all names that a verdict on the story could blame, wires between two NICs of different hosts apart."""
    topology = build_topology(told.cluster)
    hosts = topology.hosts
    gpus = [gpu_name(host.id, gpu.index) for host in hosts for gpu in host.gpus]
    return {
        f"job:{told.name}",
        *(f"rank:{rank}" for rank in range(told.ranks)),
        *(host_name(host.id) for host in hosts),
        *(nic_name(host.id, nic.id) for host in hosts for nic in host.nics),
        *(kind + gpu.removeprefix("gpu") for gpu in gpus for kind in ("gpu", "pcie", "nvlink")),
        *(switch_name(switch.id) for switch in topology.switches),
        *(link_name(link) for link in topology.links),
    }


def wire_ends(name: str) -> tuple[str, str] | None:
    """Return the NICs at the ends of a wire whose path is unknown, the sender first; None for anything else."""
    sender, _, receiver = name.removeprefix("link:").partition("--")
    is_wire = name.startswith("link:") and "/" in sender and "/" in receiver
    return (f"nic:{sender}", f"nic:{receiver}") if is_wire else None


# What there is.


@pytest.mark.parametrize("family", [*SLOW, *HANG, *HARD])
def test_fault_is_told_on_ib_and_on_sockets_with_a_healthy_twin_each(family: str) -> None:
    names = {told.name for told in FAMILIES[family]}
    transports = {told.cluster.transport for told in FAMILIES[family]}
    assert transports == ({"ib", "socket"} if family not in ONE_TRANSPORT else transports)
    assert {f"{family}-healthy-{transport}" for transport in transports} <= names


def test_lossy_paths_are_on_both_transports_too() -> None:
    transports = {told.cluster.transport for name in ("lossy-path", "lossy-path-tcp") for told in FAMILIES[name]}
    assert transports == {"ib", "socket"}


@pytest.mark.parametrize("family", [*SLOW, *HARD])
def test_slow_fault_is_told_mild_and_strong(family: str) -> None:
    names = {told.name for told in FAMILIES[family]}
    for transport in {told.cluster.transport for told in FAMILIES[family]}:
        assert {f"{family}-mild-{transport}", f"{family}-strong-{transport}"} <= names


@pytest.mark.parametrize("family", QUIET)
def test_benign_story_is_told_on_ib_and_on_sockets_and_expects_silence(family: str) -> None:
    assert {told.cluster.transport for told in FAMILIES[family]} == {"ib", "socket"}
    assert not any(told.expect or failures(told) for told in FAMILIES[family])


@pytest.mark.parametrize("family", ON_THE_TESTBED)
def test_story_is_there_at_a_size_that_the_testbed_can_carry(family: str) -> None:
    for told in FAMILIES[f"testbed-{family}"]:
        shape = told.cluster
        assert (shape.transport, shape.fabric, told.ranks, shape.nics_per_host) == ("socket", "leaf_spine", 16, 2)
        assert shape.hosts * shape.nics_per_host * shape.nic_gbps <= 1.6
        original = {turn.effect for other in FAMILIES[family] for turn in failures(other)}
        assert {turn.effect for turn in failures(told)} <= original


def test_no_name_is_told_twice() -> None:
    folder = resources.files("lockstep.sim").joinpath("stories")
    files = [file for file in folder.iterdir() if file.name.endswith(".toml") and file.name != "shapes.toml"]
    names = [
        told.name for file in files for told in parse_family(file.read_text("utf-8"), file.name.removesuffix(".toml"))
    ]
    assert sorted(names) == [told.name for told in STORIES]


# What they tell.


@every_family
def test_nothing_is_left_to_fill_in(stories: list[Story]) -> None:
    for told in stories:
        assert "{" not in told.summary
        assert not [name for right in told.expect for name in right_names(right) if "{" in name]


@every_family
def test_story_is_long_enough_and_quick_to_simulate(stories: list[Story]) -> None:
    for told in stories:
        assert 60 <= told.duration_s <= 120
        assert told.ranks <= 64
        assert all(turn.at_s < told.duration_s for turn in told.timeline)


@every_family
def test_fault_comes_after_a_baseline_or_is_there_from_the_start(stories: list[Story]) -> None:
    for told in stories:
        from_the_start = told.family in ("from-the-start", "spare-joins")
        assert all(turn.at_s >= 20 or (from_the_start and turn.at_s == 0) for turn in failures(told))


@every_family
def test_faulty_story_has_a_healthy_twin_that_is_no_shorter(stories: list[Story]) -> None:
    for told in stories:
        if told.expect:
            assert any(is_twin(other, told) for other in STORIES)


def is_twin(other: Story, told: Story) -> bool:
    def surroundings(one: Story) -> tuple[object, ...]:
        return one.cluster, one.job, one.noise, one.clocks, one.telling

    silent = not other.expect and not failures(other)
    return silent and surroundings(other) == surroundings(told) and other.duration_s >= told.duration_s


def harm(told: Story) -> Iterator[float]:
    """Yield figures of a story that grow with its strength, always in the same order."""
    for turn in told.timeline:
        amount = turn.amount or 0.0
        yield 1 - amount if turn.effect in ("rate", "starved") else amount
        yield from (turn.share, turn.stall_s, turn.lasting_s or 0.0, -(turn.every_s or 0.0))
    job = told.job
    yield from (job.experts, job.sequences, job.first_steps_slower)
    yield from (doing.first_ms + doing.last_ms for doing in job.steps)


@every_family
def test_mild_is_milder_than_strong_and_otherwise_the_same(stories: list[Story]) -> None:
    by_name = {told.name: told for told in stories}
    for mild in (told for told in stories if "-mild" in told.name):
        strong = by_name[mild.name.replace("-mild", "-strong")]
        pairs = list(zip(harm(mild), harm(strong), strict=True))
        assert all(less <= more for less, more in pairs)
        assert any(less < more for less, more in pairs)
        assert (mild.cluster, mild.clocks, mild.telling) == (strong.cluster, strong.clocks, strong.telling)
        assert [(turn.at_s, turn.part) for turn in mild.timeline] == [
            (turn.at_s, turn.part) for turn in strong.timeline
        ]


# Which verdicts are right.


@every_family
def test_verdict_is_expected_exactly_when_something_breaks(stories: list[Story]) -> None:
    for told in stories:
        assert bool(told.expect) == bool(failures(told))


@every_family
def test_every_fault_is_what_some_right_verdict_names(stories: list[Story]) -> None:
    for told in stories:
        named = {name for right in told.expect for name in right_names(right)}
        for turn in failures(told):
            is_software = turn.effect in ("mismatched", "deadlocked") or turn.part == "fabric"
            assert (f"job:{told.name}" if is_software else turn.part) in named


@every_family
def test_expected_parts_are_there(stories: list[Story]) -> None:
    for told in stories:
        parts = parts_of(told)
        for name in {name for right in told.expect for name in right_names(right)}:
            ends = wire_ends(name)
            assert set(ends or (name,)) <= parts


@every_family
def test_expected_class_can_blame_the_expected_part(stories: list[Story]) -> None:
    for right in (right for told in stories for right in told.expect):
        assert right.component.partition(":")[0] in BLAMED[right.fault_class]


@every_family
def test_wire_in_place_of_a_nic_has_that_nic_at_the_slow_end(stories: list[Story]) -> None:
    for right in (right for told in stories for right in told.expect):
        for sender, receiver in filter(None, map(wire_ends, right.also_right)):
            assert right.component == {"tx": sender, "rx": receiver}[right.side or "tx"]
            assert sender.split("/")[0] != receiver.split("/")[0]


@every_family
def test_expected_side_is_the_one_that_broke(stories: list[Story]) -> None:
    for told in stories:
        for right in told.expect:
            sides = {turn.side for turn in failures(told) if turn.part in right_names(right)}
            assert sides <= {right.side}


@every_family
def test_expected_verdict_can_come_before_the_fault_heals_and_the_story_ends(stories: list[Story]) -> None:
    for told in stories:
        heals = [turn.at_s for turn in told.timeline if turn.effect == "heal"]
        for right in told.expect:
            begin = right.after_s if right.after_s is not None else told.breaks_at_s
            assert begin is not None
            assert begin + right.within_s <= min([told.duration_s, *heals])


@every_family
def test_hang_is_to_be_named_long_before_any_timeout(stories: list[Story]) -> None:
    for right in (right for told in stories for right in told.expect):
        if right.fault_class in ("comm_hang", "noncomm_hang", "crash"):
            assert right.within_s <= 15  # IB gives up after some 30 s, NCCL's watchdog after minutes


# What the simulator makes of them.


@lru_cache(maxsize=64)
def steps_done(told: Story, until_s: float) -> int:
    simulation = Simulation(told, seed=1)
    for _ in simulation.run_until(until_s * NS_PER_S):
        pass
    return simulation.step


def plain(told: Story, timeline: tuple[Turn, ...]) -> Story:
    """Return what matters to the simulation alone, so that families with the same cluster and job share a twin."""
    return Story(
        summary="plain",
        duration_s=1,
        cluster=told.cluster,
        job=told.job,
        noise=told.noise,
        timeline=timeline,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "told",
    [
        next(told for told in stories if told.expect)
        for stories in FAMILIES.values()
        if any(t.expect for t in stories)
    ],
    ids=lambda told: told.name,  # the mild one of each family, on IB where it is told there
)
def test_fault_costs_the_job_steps_before_it_has_to_be_named(told: Story) -> None:
    moments = [(right.after_s or told.breaks_at_s or 0.0) + right.within_s for right in told.expect]
    calm = tuple(turn for turn in told.timeline if turn.effect in BENIGN and turn.effect != "heal")
    faulty, healthy = (steps_done(plain(told, timeline), max(moments)) for timeline in (told.timeline, calm))
    assert faulty < healthy
