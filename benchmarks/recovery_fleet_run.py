"""One fleet of jobs under one history of faults, with one way to recover."""

import heapq
import math
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from benchmarks.recovery_systems import OTHERS, Faults, Kind, System
from planner.recovery.allocation.events import Event, apply
from planner.recovery.allocation.jobs import Cluster, Job, Node
from planner.recovery.allocation.megatron import Machine, Transformer, model_throughput
from planner.recovery.allocation.planning import plan_allocation
from planner.recovery.allocation.throughput import Throughput

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
            if begin_s < at_s:
                self.waf += job.weight * self._rate(job) * (at_s - begin_s)
        self.now_s = at_s

    def _rate(self, job: Job) -> float:
        is_whole = all(not self.cluster.is_lost(name) for name in job.nodes)
        return job.work_on(len(job.nodes)) if job.nodes and is_whole else 0.0

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
            ways=system.ways,
            nodes_per_replica=None if system.ways.peer_s is None else 1,
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
    return system.ways.restart_s if system.ways.peer_s is None else system.ways.peer_s


def _lost_work_s(system: System) -> float:
    return system.ways.lost_work_s if system.ways.peer_s is None else 0.0
