"""Worlds that nobody tuned to: cluster, job, noise, fault and the loss of telemetry, all drawn from a seed.

World `number` of a seed is the same however many are drawn. Ranges are wider than what the scenarios were written
for, and nothing here looks at the analyzer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.accuracy_faults import JOB, KINDS, Broken, Chain, Place, Random, between, pick
from lockstep.verdict import STOPS_JOB
from simulator.faults import parse_fault
from simulator.scenario import (
    Clocks,
    ClusterShape,
    Doing,
    JobShape,
    Layout,
    Noise,
    Scenario,
    Telemetry,
    check_scenario,
)

OTHER = "neighbour"

_LONGEST_S, _SHORTEST_S = 600.0, 2.0  # of a capture
_FEWEST_STEPS, _MOST_STEPS = 8, 240  # of a world: more tell little, and cost what other worlds could
_MOST_OPERATIONS = 700
_MOST_RANKS = 64
_OPTIONAL = ("nic_counters", "fabric_counters", "gpu_health", "clocks", "events", "step_samples", "connections")
_DOUBLED = ("transfers", "collectives", "op_stats", "transfer_stats", "progress")  # one of them may be missing
_UNFILLED = (
    ("transfers", "gpu_wait_ns"), ("transfers", "sport"), ("transfer_stats", "wire_max_ns"), ("transfers", "nic"),
    ("nic_counters", "retrans"), ("collectives", "channels"), ("comms", "gpu"), ("comms", "gpu_uuid"),
    ("progress", "open_bytes"), ("progress", "head_peer"), ("transfers", "transport"),
)  # fmt: skip


@dataclass(frozen=True)
class World:
    """A scenario with all its faults, seen or not; what its telemetry goes through; another job beside it."""

    scenario: Scenario
    chain: Chain
    seed: int  # of the simulation
    neighbour: Scenario | None = None  # on the hosts that the first job leaves over

    @property
    def kind(self) -> str:
        return self.scenario.family


@cache
def draw_world(seed: int, number: int) -> World:
    """Return one world of a seed."""
    random = np.random.default_rng([seed, number, 0x3012D])
    cluster, job, step_s = _draw_shape(random)
    duration_s = _draw_duration(random, job, step_s)
    kind = pick(random, list(KINDS), [weight for _, weight in KINDS.values()])
    fault = KINDS[kind][0](random, Place(cluster, job, step_s, duration_s))
    if any(right.fault_class in STOPS_JOB for right in fault.expect):
        duration_s += round(between(random, 2, 20))  # nobody ends a recording because a job has just stopped
    scenario = Scenario(
        name=JOB,
        family=kind,
        summary=f"world {number} of seed {seed}: {kind}",
        duration_s=duration_s,
        cluster=cluster,
        job=job,
        noise=_draw_noise(random),
        clocks=_draw_clocks(random),
        telemetry=_draw_telemetry(random, fault),
        timeline=tuple(
            parse_fault(line) for line in (*fault.lines, *_draw_benign(random, duration_s, step_s, fault))
        ),
        expect=fault.expect,
    )
    check_scenario(scenario)
    chain = _draw_chain(random, scenario, fault)
    return World(scenario, chain, int(random.integers(1 << 31)), _draw_neighbour(random, scenario))


# Cluster and job.


def _draw_shape(random: Random) -> tuple[ClusterShape, JobShape, float]:
    while True:
        hosts, gpus = pick(random, (2, 3, 4, 6, 8, 12, 16)), pick(random, (1, 2, 4, 8), (2, 2, 2, 1))
        if 4 <= hosts * gpus <= _MOST_RANKS:
            break
    nics = pick(random, [count for count in (1, 2, 4, 8) if gpus % count == 0])
    fabric = pick(random, ("leaf_spine", "rails", "dual_plane"), (4, 1, 1 if nics % 2 == 0 else 0))
    cluster = ClusterShape(
        hosts=hosts,
        spares=hosts if fabric == "leaf_spine" and hosts <= 4 and random.random() < 0.3 else 0,
        gpus_per_host=gpus,
        nics_per_host=nics,
        hosts_per_leaf=pick(random, [count for count in (1, 2, 3, 4, 8) if hosts % count == 0 and count < hosts]),
        spines=pick(random, (1, 2, 4)),
        nic_gbps=pick(random, (10.0, 25.0, 100.0, 400.0)),
        fabric=fabric,
        routing=pick(random, ("planned", "ecmp")),
        transport=pick(random, ("ib", "socket")),
        hop_latency_us=between(random, 2, 50),
    )
    step_s = between(random, 0.05, 5.0) if random.random() < 0.93 else between(random, 5.0, 60.0)
    return cluster, _draw_job(random, cluster, step_s), step_s


def _draw_job(random: Random, cluster: ClusterShape, step_s: float) -> JobShape:
    """Return a job whose steps take about that long, a part of it on the wire."""
    talks = random.uniform(0.08, 0.6)
    compute_ms = 1e3 * step_s * (1 - talks)
    host_mb_per_s = cluster.nics_per_host * cluster.nic_gbps * 1e3 / 8
    wire_mb = max(step_s * talks * host_mb_per_s / 2, 1.0)  # of the all-reduces of a step over all hosts
    kind = pick(random, ("ddp", "tree", "sharded", "tensor", "pipeline", "experts"))
    ranks, gpus = cluster.hosts * cluster.gpus_per_host, cluster.gpus_per_host
    layout, step = _STEPS_OF[kind](random, compute_ms, wire_mb, gpus)
    if kind == "pipeline":
        stages = pick(random, [count for count in (2, 4) if cluster.hosts % count == 0] or [1])
        layout = Layout(tp=gpus, pp=stages)
    if kind == "experts":
        layout = Layout(ep=pick(random, [count for count in (2, 4, 8) if ranks % count == 0]))
    uneven = {"experts": 0.3 * random.random() if kind == "experts" and random.random() < 0.5 else 0.0}
    uneven["sequences"] = 0.2 * random.random() if random.random() < 0.1 else 0.0
    first = pick(random, (1.0, 1.0, 3.0))
    return JobShape(
        layout=layout, micro_batches=int(random.integers(2, 9)), step=step, first_steps_slower=first, **uneven
    )


_Steps = tuple[Layout, tuple[Doing, ...]]


def _ddp(random: Random, ms: float, mb: float, _gpus: int, algo: str = "RING") -> _Steps:
    buckets = int(random.integers(1, 7))
    sends = Doing(do="AllReduce", mb=mb / buckets, algo="TREE" if algo == "TREE" else "RING", times=buckets)
    return Layout(), (Doing(do="compute", ms=ms), sends)


def _tree(random: Random, ms: float, mb: float, gpus: int) -> _Steps:
    return _ddp(random, ms, mb, gpus, "TREE")


def _sharded(random: Random, ms: float, mb: float, gpus: int) -> _Steps:
    layers, part = int(random.integers(1, 4)), mb / (4 * gpus)
    layer = (
        Doing(do="AllGather", mb=part / layers),
        Doing(do="compute", ms=ms / layers),
        Doing(do="ReduceScatter", mb=part / layers),
    )
    return Layout(), layer * layers


def _tensor(random: Random, ms: float, mb: float, gpus: int) -> _Steps:
    layers = int(random.integers(1, 4))
    inside = (Doing(do="compute", ms=ms / layers), Doing(do="AllReduce", mb=min(mb, 256.0), group="tp"))
    return Layout(tp=gpus), (*inside * layers, Doing(do="AllReduce", mb=mb / gpus, group="dp"))


def _pipeline(random: Random, ms: float, mb: float, gpus: int) -> _Steps:
    forward = ms / 24  # of four micro-batches or so, backward twice as long
    stages = Doing(do="pipeline", ms=forward, backward_ms=2 * forward, mb=mb / 32, tp_mb=min(mb / 32, 64.0))
    return Layout(), (stages, Doing(do="AllReduce", mb=mb / (2 * gpus), group="dp"))


def _experts(random: Random, ms: float, mb: float, gpus: int) -> _Steps:
    there_and_back = Doing(do="AllToAll", mb=mb / (4 * gpus), group="ep", times=2)
    return Layout(), (Doing(do="compute", ms=ms), there_and_back, Doing(do="AllReduce", mb=mb / 2))


_STEPS_OF: Mapping[str, Callable[[Random, float, float, int], _Steps]] = {
    "ddp": _ddp, "tree": _tree, "sharded": _sharded, "tensor": _tensor, "pipeline": _pipeline, "experts": _experts,
}  # fmt: skip


def _draw_duration(random: Random, job: JobShape, step_s: float) -> float:
    """Return how long a capture is: mostly some tens of steps, now and then a moment or minutes."""
    rounds = [2 * job.micro_batches if doing.do == "pipeline" else doing.times for doing in job.steps]
    steps = between(random, _FEWEST_STEPS, np.clip(_MOST_OPERATIONS / sum(rounds), 2 * _FEWEST_STEPS, _MOST_STEPS))
    seconds, luck = min(steps * step_s, max(between(random, 10, 25), 9 * step_s)), random.random()
    seconds = max(seconds, between(random, 8, 16))
    if luck < 0.12:
        seconds = (
            between(random, _SHORTEST_S, 8) if luck < 0.1 else min(between(random, 40, _LONGEST_S), 200 * step_s)
        )
    return float(np.clip(round(seconds), _SHORTEST_S, _LONGEST_S))


def _draw_noise(random: Random) -> Noise:
    tail = between(random, 0.001, 0.05) if random.random() < 0.5 else 0.0
    spreads = {"compute": between(random, 0.003, 0.06), "transfer": between(random, 0.01, 0.1)}
    return Noise(**spreads, enqueue_us=between(random, 5, 200), tail=tail)


def _draw_clocks(random: Random) -> Clocks:
    skew_ms = pick(random, (0.0, 0.05, 1.0, 20.0, 100.0))
    known_us = pick(random, (20.0, 1e3 * skew_ms + 20.0))
    return Clocks(skew_ms=skew_ms, drift_ppm=pick(random, (0.0, 5.0, 50.0)), known_to_us=known_us)


# What happens beside a fault.


def _draw_benign(random: Random, duration_s: float, step_s: float, fault: Broken) -> list[str]:
    """Return what happens beside a fault and is none: checkpoints, collected garbage, restarts, others' traffic."""
    lines: list[str] = []
    if random.random() < 0.2:
        lines += [f"at {duration_s * random.uniform(0.2, 0.9):.2f} s pause {between(random, 0.5, 8):.2f} s"]
    if random.random() < 0.2:
        begins_s = duration_s * random.random(int(random.integers(1, 5)))
        lines += [f"at {at_s:.2f} s pause rank:0 {between(random, 0.1, 1) * step_s:.2f} s" for at_s in begins_s]
    if random.random() < 0.15:
        every_s = between(random, 5, 30)
        begin = f"at {duration_s * random.random():.2f} s fail fabric to {random.uniform(50, 90):.0f} %"
        lines += [f"{begin} for {every_s * random.uniform(0.1, 0.4):.2f} s every {every_s:.2f} s"]
    if random.random() < 0.1 and not fault.expect:
        lines += [f"at {duration_s * random.uniform(0.3, 0.7):.2f} s restart after {random.uniform(1, 10):.1f} s"]
    return lines


# What reaches the store.


def _draw_telemetry(random: Random, fault: Broken) -> Telemetry:
    return Telemetry(
        steps=random.random() < 0.3,
        nics=random.random() < 0.9,
        paths=fault.needs_paths or random.random() < 0.1,
        sample=1.0 if random.random() < 0.5 else between(random, 0.01, 1.0),
    )


def _draw_chain(random: Random, scenario: Scenario, fault: Broken) -> Chain:
    hosts, ragged_s = [f"h{host}" for host in range(scenario.cluster.hosts)], pick(random, (0.0, 0.2, 1.0, 2.5))
    ends_s = {host: scenario.duration_s - ragged_s * random.random() for host in hosts}
    ends_s |= dict.fromkeys(fault.silent, fault.silent_from_s)
    missing = {name for name in _OPTIONAL if random.random() < 0.12}
    missing |= {pick(random, _DOUBLED)} if random.random() < 0.12 else set()
    unfilled = {column for column in _UNFILLED if random.random() < 0.04}
    untold = random.permutation(hosts)[: int(random.integers(1, len(hosts) + 1))] if random.random() < 0.08 else ()
    coarse = random.permutation(hosts)[: int(random.integers(1, len(hosts) + 1))] if random.random() < 0.1 else ()
    return Chain(
        seed=int(random.integers(1 << 31)),
        ends_s=ends_s if ragged_s or fault.silent else {},
        untold=frozenset(map(str, untold)),
        coarse=frozenset(map(str, coarse)),
        lost_batches=between(random, 0.001, 0.1) if random.random() < 0.2 else 0.0,
        lost_rows=between(random, 0.001, 0.2) if random.random() < 0.2 else 0.0,
        tables=frozenset(missing),
        columns=frozenset(unfilled),
        fuses=scenario.cluster.nics_per_host > 1 and random.random() < 0.08,
        hole_every_s=between(random, 4, 20) if random.random() < 0.15 else None,
    )


def _draw_neighbour(random: Random, scenario: Scenario) -> Scenario | None:
    """Return a healthy job on the hosts that are left over; what breaks in the fabric concerns it as well."""
    if not scenario.cluster.spares:
        return None
    step_s = between(random, 0.2, 2.0)
    shared = tuple(fault for fault in scenario.timeline if fault.kind in ("link", "switch", "nic") or not fault.kind)
    fabric = tuple(fault for fault in shared if fault.effect in ("rate", "down", "heal"))
    job = _draw_job(random, scenario.cluster, step_s)
    return scenario.model_copy(update={"name": OTHER, "job": job, "timeline": fabric, "expect": ()})
