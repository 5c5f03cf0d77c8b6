"""A fleet of jobs under faults, in simulation: what each way to recover makes of the same history of faults.

Unicron's comparison (arXiv 2401.00134, section 7): 16 hosts of 8 GPUs, six jobs, faults as a Poisson process at the
rates of its two traces, and the weighted throughput of all jobs summed over time. Sizes and weights of its jobs are
not known, so they are drawn anew for every seed, and no job gets more than one and a half equal shares; its repair
times are not known either: one to seven days at the low rate, and scaled with the rate at the high one.

- Restart: what Unicron measured of Megatron. A fault that only a timeout shows is seen after 30 minutes; then 9
  minutes in the queue, 14 for processes and CUDA, and 15 of work done again. A lost host is waited for.
- Hot spares: as in-job restart does it. Some hosts stay idle; faults are seen as fast as Lockstep sees them, a
  restart takes as long as Lockstep's own in-job one, and without a spare the job waits for its host.
- Lockstep, restarting: faults are seen in seconds, the plan over all jobs says how many hosts each has, and jobs
  start again from their checkpoint, for which nobody queues.
- Lockstep, in the job: the same, where jobs take their state from live replicas.

Everything else is the same for all, and at zero faults so is the result.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import numpy as np

from benchmarks.figures import Figure, Note
from planner.allocation.allocate import plan_allocation
from planner.allocation.cluster import Cluster, Event, Job, Node, Recovery, apply
from planner.allocation.throughput import Machine, Throughput, Transformer, model_throughput

_MINUTE_S = 60.0
Kind = Literal["lost", "killed", "exception", "hang"]
OTHERS: tuple[Kind, ...] = ("killed", "exception", "hang")  # equally often: the traces do not tell them apart


@dataclass(frozen=True, slots=True)
class Faults:
    """How often what happens, per host and day."""

    name: str
    days: float
    lost: float  # hosts that must be repaired
    others: float  # faults that leave the hardware healthy
    repair_days: tuple[float, float]
    hosts: int = 16
    jobs: int = 6


# 10 lost hosts and 33 other faults in 8 weeks on 16 hosts; 26 and 80 in one week.
TRACE_A = Faults("trace-a", 56.0, 10 / 56 / 16, 33 / 56 / 16, (1.0, 7.0))
TRACE_B = Faults("trace-b", 7.0, 26 / 7 / 16, 80 / 7 / 16, (1.0 / 20, 7.0 / 20))
# Meta's RSC-1: 6.50 faults per 1,000 node-days, each taken to need a repair, and as many others.
META = Faults("Meta RSC-1", 30.0, 0.0065, 0.0065, (1.0, 7.0), hosts=64, jobs=12)


@dataclass(frozen=True, slots=True)
class System:
    """One way to recover."""

    name: str
    seen_s: Mapping[Kind, float]  # until a fault is noticed
    recovery: Recovery
    queue_s: float = 0.0  # before anything starts
    plans: bool = False  # shares hosts among jobs anew at every event; else a job waits for its lost host
    spares: int = 0


_SLOWLY: Mapping[Kind, float] = {"lost": 6.0, "killed": 2.0, "exception": 30 * _MINUTE_S, "hang": 30 * _MINUTE_S}
# Detection of Unicron's table 2; Lockstep's own on real processes is in the same range (results.md, Analyzer).
_FAST: Mapping[Kind, float] = {"lost": 5.6, "killed": 1.8, "exception": 0.3, "hang": 30.0}
_RESTART = Recovery(restart_s=14 * _MINUTE_S, lost_work_s=15 * _MINUTE_S, save_s=_MINUTE_S)
_IN_JOB = replace(_RESTART, peer_s=60.0)  # communicators anew and a copy of the state; at most one step is lost

RESTART = System("restart from checkpoint", _SLOWLY, _RESTART, queue_s=9 * _MINUTE_S)
HOT_SPARES = System("hot spares", _FAST, _IN_JOB, spares=1)
LOCKSTEP = System("Lockstep, restarting", _FAST, _RESTART, plans=True)
IN_JOB = System("Lockstep, in the job", _FAST, _IN_JOB, plans=True)
ABLATION = (
    replace(RESTART, name="restart + detection", seen_s=_FAST),
    replace(RESTART, name="restart + plan", plans=True),
    replace(RESTART, name="restart + transition", recovery=_IN_JOB, queue_s=0.0),
)


_DAY_S = 86_400.0
# GPT-3 sizes of Unicron's jobs: parameters, layers, hidden; a batch of a million tokens or two.
_MODELS = {
    "1.3B": Transformer(1.3e9, 24, 2048, 2048, 512),
    "7B": Transformer(6.7e9, 32, 4096, 2048, 1024),
    "13B": Transformer(13e9, 40, 5120, 2048, 1024),
}
_WEIGHTS = (0.5, 1.0, 1.5, 2.0)
# Of an equal share of the hosts: without a bound the job with the highest weight would get all of them, and one lost
# host would stop everything that waits for it.
_MOST_SHARE = 1.5


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a host, or to the job on it."""

    at_s: float
    kind: Kind
    host: str
    repair_s: float = 0.0


@dataclass
class _State:
    """A fleet at one moment."""

    cluster: Cluster
    down_until_s: dict[str, float] = field(default_factory=dict)
    waf: float = 0.0  # weighted work that was done and not lost again
    now_s: float = 0.0

    def go_to(self, at_s: float) -> None:
        """Let all jobs work until then."""
        for job in self.cluster.jobs:
            begin_s = max(self.now_s, self.down_until_s.get(job.id, 0.0))
            is_whole = job.nodes and not any(self.cluster.is_lost(name) for name in job.nodes)
            if begin_s < at_s and is_whole:
                self.waf += job.weight * job.work_on(len(job.nodes)) * (at_s - begin_s)
        self.now_s = at_s

    def stop(self, job: Job, for_s: float, lost_work_s: float = 0.0) -> None:
        """Let a job stand still, and take back the last of its work."""
        self.down_until_s[job.id] = max(self.down_until_s.get(job.id, 0.0), self.now_s + for_s)
        self.waf -= job.weight * job.work_on(len(job.nodes)) * lost_work_s


def simulate(system: System, faults: Faults, seed: int) -> float:
    """Return the weighted work of all jobs over the whole time."""
    state = _State(start_cluster(system, faults, seed))
    spares = [f"spare{number}" for number in range(system.spares)]
    queue: list[tuple[float, int, Fault | str]] = []
    for number, fault in enumerate(draw_faults(faults, seed)):
        heapq.heappush(queue, (fault.at_s, number, fault))
    end_s = faults.days * _DAY_S
    while queue and queue[0][0] < end_s:
        at_s, number, what = heapq.heappop(queue)
        state.go_to(at_s)
        if isinstance(what, str):
            _bring_back(state, system, what, spares)
        elif _hit(state, system, what, spares):
            heapq.heappush(queue, (at_s + what.repair_s, number + 1_000_000, what.host))
    state.go_to(end_s)
    return state.waf


def draw_faults(faults: Faults, seed: int) -> list[Fault]:
    """Return a history of faults, the same for every system with the same seed."""
    chance = np.random.default_rng([seed, 1])
    drawn: list[Fault] = []
    for host in range(faults.hosts):
        for kinds, rate in (("lost",), faults.lost), (OTHERS, faults.others):
            for _ in range(chance.poisson(rate * faults.days)):
                kind: Kind = kinds[int(chance.integers(len(kinds)))]
                repair_s = float(chance.uniform(*faults.repair_days)) * _DAY_S if kind == "lost" else 0.0
                drawn.append(Fault(float(chance.uniform(0, faults.days * _DAY_S)), kind, f"h{host}", repair_s))
    return sorted(drawn, key=lambda fault: fault.at_s)


def start_cluster(system: System, faults: Faults, seed: int) -> Cluster:
    """Return hosts and jobs as the best plan without faults places them, less the hosts kept as spares."""
    chance = np.random.default_rng([seed, 2])
    most = math.ceil(_MOST_SHARE * faults.hosts / faults.jobs)
    names, weights = list(_MODELS), list(_WEIGHTS)
    jobs = tuple(
        Job(
            id=f"job{number}",
            throughput=_throughput(names[int(chance.integers(len(names)))], faults.hosts),
            weight=weights[int(chance.integers(len(weights)))],
            most=most,
            recovery=system.recovery,
            nodes_per_replica=None if system.recovery.peer_s is None else 1,
        )
        for number in range(faults.jobs)
    )
    hosts = range(faults.hosts - system.spares)
    nodes = tuple(Node(f"h{number}", failures_per_day=faults.lost) for number in hosts)
    return _planned(Cluster(nodes, jobs))[0]


@cache
def _throughput(model: str, most: int) -> Throughput:
    return model_throughput(_MODELS[model], Machine(), range(1, most + 1))


def _hit(state: _State, system: System, fault: Fault, spares: list[str]) -> bool:
    """Let a fault happen; return whether its host is out for repair."""
    node = state.cluster.by_name.get(fault.host)
    if node is None or not node.is_usable:
        return False  # it is idle as a spare, or out already
    job = next((job for job in state.cluster.jobs if fault.host in job.nodes), None)
    wait_s = system.seen_s[fault.kind] + system.queue_s
    if fault.kind != "lost":
        if job is not None:
            state.stop(job, wait_s + _restart_s(system), _lost_work_s(system))
        return False
    if job is not None:
        state.stop(job, 0.0, 0.0)
    state.cluster = apply(state.cluster, Event("node_lost", fault.host))
    if system.plans:
        _plan(state, wait_s)
    elif job is not None:
        _replace(state, system, job, fault.host, spares, wait_s)
    return True


def _replace(state: _State, system: System, job: Job, host: str, spares: list[str], wait_s: float) -> None:
    """Put a spare in the place of a lost host; without one the job waits, and what it did is lost all the same."""
    if not spares:
        state.stop(job, 0.0, _lost_work_s(system))
        return
    spare = spares.pop()
    state.stop(job, wait_s + _restart_s(system), _lost_work_s(system))
    nodes = tuple(spare if name == host else name for name in job.nodes)
    jobs = tuple(replace(each, nodes=nodes) if each.id == job.id else each for each in state.cluster.jobs)
    known = (*state.cluster.nodes, Node(spare, failures_per_day=0.0))
    state.cluster = replace(state.cluster, jobs=jobs, nodes=known)


def _bring_back(state: _State, system: System, host: str, spares: list[str]) -> None:
    """Let a repaired host come back: to the job that waits for it, else as a spare, or into the plan."""
    state.cluster = apply(state.cluster, Event("node_joins", host))
    if system.plans:
        _plan(state, 0.0)
        return
    job = next((job for job in state.cluster.jobs if host in job.nodes), None)
    if job is not None:
        state.stop(job, _restart_s(system) + system.queue_s)
    elif system.spares:
        state.cluster = apply(state.cluster, Event("node_lost", host))
        spares.append(host)


def _plan(state: _State, wait_s: float) -> None:
    """Share the hosts anew; a job that changes stands still, and those that a fault forces wait until it is seen."""
    before = {job.id: job for job in state.cluster.jobs}
    state.cluster, changes = _planned(state.cluster)
    for name, (downtime_s, lost_work_s, is_forced) in changes.items():
        state.stop(before[name], downtime_s + (wait_s if is_forced else 0.0), lost_work_s)


def _planned(cluster: Cluster) -> tuple[Cluster, dict[str, tuple[float, float, bool]]]:
    plan = plan_allocation(cluster)
    nodes = {each.job: each.placement.nodes for each in plan.jobs}
    forced = {job.id for job in cluster.jobs if any(cluster.is_lost(name) for name in job.nodes)}
    changes = {
        each.job: (each.downtime_s, each.lost_work_s, each.job in forced)
        for each in plan.jobs
        if each.change != "none"
    }
    jobs = tuple(replace(job, nodes=nodes[job.id]) for job in cluster.jobs)
    return replace(cluster, jobs=jobs), changes


def _restart_s(system: System) -> float:
    return system.recovery.restart_s if system.recovery.peer_s is None else system.recovery.peer_s


def _lost_work_s(system: System) -> float:
    return system.recovery.lost_work_s if system.recovery.peer_s is None else 0.0


FIRST_SEED = 1_000  # of those that score; those below are for trying things out
_GOALS = {"trace-a": 1.2, "trace-b": 1.9}  # what Unicron's paper tells of itself


def measure_fleet(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return what each way to recover is worth beside restarting, at each rate of faults."""
    seeds = range(FIRST_SEED, FIRST_SEED + (3 if quick else 30))
    calm = replace(TRACE_A, name="no faults", lost=0.0, others=0.0)
    ((_, ratio, _),) = compare((IN_JOB,), calm, seeds[:3])
    figures = [Figure("work at no faults over restarting", ratio, "ratio", 1.0, 1.0)]
    for faults in (TRACE_A, TRACE_B, META):
        note(f"a fleet under faults: {faults.name}, {len(seeds)} seeds")
        figures += _measure_with(faults, seeds)
    return tuple(figures)


def _measure_with(faults: Faults, seeds: Sequence[int]) -> Iterator[Figure]:
    """Yield a figure per system; Lockstep must be ahead of restarting, which is 1, and of hot spares."""
    spares = 1.0
    for system, ratio, half in compare((HOT_SPARES, LOCKSTEP, IN_JOB, *ABLATION), faults, seeds):
        spares = max(ratio, 1.0) if system is HOT_SPARES else spares
        yield Figure(
            f"{faults.name}: {system.name}",
            ratio,
            "of restarting",
            floor=spares if system in (LOCKSTEP, IN_JOB) else None,
            goal=_GOALS.get(faults.name) if system is IN_JOB else None,
            reference=f"± {half:.3f} (95 %)",
        )


def compare(systems: Sequence[System], faults: Faults, seeds: Sequence[int]) -> Iterator[tuple[System, float, float]]:
    """Yield for each system its work over that of restarting, and half of the 95 % interval of that, over seeds."""
    against = np.array([simulate(RESTART, faults, seed) for seed in seeds])
    for system in systems:
        ratios = np.array([simulate(system, faults, seed) for seed in seeds]) / against
        yield system, float(ratios.mean()), float(1.96 * ratios.std(ddof=1) / np.sqrt(len(seeds)))
