"""Real fault histories, read into who was up when: InfiniteHBD's GPU servers, and Bamboo's spot instances."""

import csv
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import NamedTuple, Protocol

from lockstep.errors import BadInput
from lockstep.pipeline.checking import closed_form
from lockstep.pipeline.schedule import Shape, Worker, unit_times
from planner.allocation.allocate import JobPlan, plan_allocation
from planner.allocation.cluster import Cluster, Job, Node, Recovery
from planner.allocation.throughput import Throughput, tabulate

DATA = "LOCKSTEP_PUBLIC_DATA"
_SERVERS = Path("faults_infinitehbd/fault_trace_first174d.json")
_SPOT = Path("spot_bamboo/p3-trace.csv")
_ALL_SERVERS = 400  # the trace names only those that had a fault
_DAYS = 174.0
_H_PER_DAY, _MS_PER_H = 24.0, 3_600_000


class Change(NamedTuple):
    """A node goes or comes."""

    hour: float
    node: str
    is_up: bool


@dataclass(frozen=True)
class History:
    """Which nodes there were, and when each was up. Everybody in `up` is up at hour 0."""

    name: str
    hours: float
    up: tuple[str, ...]
    changes: tuple[Change, ...]

    def among(self, nodes: Iterable[str]) -> "History":
        """Return the history of some of the nodes."""
        kept = set(nodes)
        up = tuple(node for node in self.up if node in kept)
        return History(self.name, self.hours, up, tuple(one for one in self.changes if one.node in kept))

    def timestamps(self) -> Iterator[tuple[float, tuple[Change, ...]]]:
        """Yield what changes at once. A node that goes and comes at the same time makes two moments of it."""
        for hour, group in groupby(self.changes, key=lambda one: one.hour):
            at_once: dict[str, Change] = {}
            for change in group:
                if change.node in at_once:
                    yield hour, tuple(at_once.values())
                    at_once = {}
                at_once[change.node] = change
            yield hour, tuple(at_once.values())


def has_histories() -> bool:
    """Return whether the folder of third-party data is named."""
    return DATA in os.environ


def read_servers() -> History:
    """Return 174 days of 400 servers that trained language models (InfiniteHBD-Trace, SIGCOMM 2025)."""
    rows = json.loads((_folder() / _SERVERS).read_text())
    events = [(row["event_time"] * _H_PER_DAY, row["node_id"], row["event_type"] == "fault_end") for row in rows]
    named = sorted({node for _, node, _ in events})
    quiet = [f"quiet-{number}" for number in range(_ALL_SERVERS - len(named))]
    return History("InfiniteHBD", _DAYS * _H_PER_DAY, (*named, *quiet), tuple(merge_faults(events)))


def read_spot() -> History:
    """Return 11 hours of EC2 p3 spot instances that came and were taken away (Bamboo, NSDI 2023)."""
    with (_folder() / _SPOT).open() as file:
        rows = [(int(row[0]) / _MS_PER_H, row[2], row[1] == "add") for row in csv.reader(file)]
    there = tuple(node for hour, node, is_up in rows if hour == 0 and is_up)
    later = tuple(Change(*row) for row in rows if row[0] > 0)
    return History("spot instances", rows[-1][0], there, later)


def merge_faults(events: Iterable[tuple[float, str, bool]]) -> Iterator[Change]:
    """Yield when nodes go and come: one with several faults at a time is up again when the last has ended."""
    open_faults: dict[str, int] = {}
    for hour, node, is_end in events:
        before = open_faults.get(node, 0)
        open_faults[node] = after = before + (-1 if is_end else 1)
        if after < 0:
            raise BadInput(f"a fault of {node} ends at hour {hour:g} that never began")
        if min(before, after) == 0:
            yield Change(hour, node, after == 0)


def _folder() -> Path:
    if not has_histories():
        raise BadInput(f"set {DATA} to the folder of third-party data")
    return Path(os.environ[DATA])


@dataclass(frozen=True)
class PipelineJob:
    """A job as it is when nothing is missing."""

    id: str
    stages: int
    pipelines: int
    micro_batches: int  # per pipeline and step

    @property
    def nodes(self) -> int:
        return self.stages * self.pipelines

    def work(self, pipelines: int, missing: int = 0) -> float:
        """Return what it does on so many pipelines of which some nodes are missing, whose peers do their work.

        Failures are spread over the stages (parameters are moved for that), as re-routing wants them.
        """
        return _work(self, pipelines, missing)

    def work_on_all_but(self, missing: int) -> float:
        """Return what it does with all pipelines and so many nodes missing."""
        return self.work(self.pipelines, missing)


# 320 of 400 nodes, so that up to 80 can be spares. Shapes of ReCycle's and Oobleck's evaluations, one large job among
# smaller ones.
FLEET = (
    PipelineJob("a", 8, 16, 32),
    PipelineJob("b", 8, 8, 32),
    *(PipelineJob(name, 4, 8, 32) for name in "cd"),
    *(PipelineJob(name, 4, 4, 32) for name in "efgh"),
)
SPOT_JOB = PipelineJob("spot", 4, 8, 32)  # 32 nodes, as many as there ever were at once

# 14 minutes to start and 15 of work lost are Unicron's case (arXiv 2401.00134); 60 s to rebuild groups and copy state
# from a replica is the floor we set ourselves for a whole recovery; 10 s is the longest pause of Oobleck's artifact.
FLEET_RECOVERY = Recovery(restart_s=840.0, lost_work_s=900.0, save_s=60.0, peer_s=60.0, drop_s=60.0, recycle_s=10.0)
# A smaller model: 83 s to restart GPT-2 and 10 s for a pause without one, both of Oobleck's artifact. That a restart
# loses no work besides is generous to those who restart.
SPOT_RECOVERY = Recovery(restart_s=83.0, lost_work_s=0.0, save_s=0.0, peer_s=10.0, drop_s=10.0, recycle_s=10.0)


@lru_cache(maxsize=65_536)
def _work(job: PipelineJob, pipelines: int, missing: int) -> float:
    if pipelines < 1 or ceil(missing / job.stages) >= pipelines:
        return 0.0
    whole = closed_form(Shape(job.stages, job.pipelines, job.micro_batches), unit_times(job.stages), ())
    micro_batches = ceil(job.micro_batches * job.pipelines / pipelines)
    failed = [Worker(number // job.stages, number % job.stages) for number in range(missing)]
    step = closed_form(Shape(job.stages, pipelines, micro_batches), unit_times(job.stages), failed)
    return job.nodes * whole / step


class Effect(NamedTuple):
    """What a change means for one job."""

    work: float  # in nodes, once it runs
    pause_s: float = 0.0


class Policy(Protocol):
    """Reacts to changes; keeps what each job holds."""

    def react(self, hour: float, up: Collection[str]) -> Sequence[Effect]:
        """Return the effect on each job."""
        ...


class Held:
    """Which nodes each job holds, some of which may be down."""

    def __init__(self, jobs: Sequence[PipelineJob], nodes: Sequence[str]) -> None:
        self.jobs, self.nodes = jobs, list[list[str]]()
        begin = 0
        for job in jobs:
            self.nodes.append(list(nodes[begin : begin + job.nodes]))
            begin += job.nodes

    def missing(self, index: int, up: Collection[str]) -> int:
        """Return how many of its nodes a job lacks."""
        return self.jobs[index].nodes - sum(node in up for node in self.nodes[index])

    def replace(self, index: int, up: Collection[str], pool: list[str], most_missing: int) -> int:
        """Replace lost nodes from the pool if that leaves at most `most_missing`; return how many were taken."""
        live = [node for node in self.nodes[index] if node in up]
        wanted = self.jobs[index].nodes - len(live)
        taken = min(wanted, len(pool))
        if wanted - taken > most_missing:
            return 0
        self.nodes[index] = live + [pool.pop() for _ in range(taken)]
        return taken

    def idle(self, up: Collection[str]) -> list[str]:
        """Return the nodes that are up and that nobody holds."""
        held = {node for nodes in self.nodes for node in nodes}
        return sorted(node for node in up if node not in held)


class Spares:
    """Fixed spares, or none: a lost node is replaced and the job starts again; without one, it waits for the node."""

    def __init__(self, jobs: Sequence[PipelineJob], nodes: Sequence[str], recovery: Recovery) -> None:
        self._held, self._again_s = Held(jobs, nodes), recovery.restart_s + recovery.lost_work_s
        self._waits = [False] * len(jobs)

    def react(self, hour: float, up: Collection[str]) -> Sequence[Effect]:
        """Return the effect on each job; those that wait are served first come, first served by their order."""
        pool = self._held.idle(up)
        return [self._follow(index, up, pool) for index in range(len(self._held.jobs))]

    def _follow(self, index: int, up: Collection[str], pool: list[str]) -> Effect:
        missing = self._held.missing(index, up)
        if missing and not self._held.replace(index, up, pool, most_missing=0):
            self._waits[index] = True
            return Effect(0.0)
        must_restart, self._waits[index] = bool(missing) or self._waits[index], False
        return Effect(self._held.jobs[index].nodes, self._again_s if must_restart else 0.0)


class Rerouting:
    """ReCycle: peers do the work of missing nodes; spares and nodes that come back take the empty places."""

    def __init__(self, jobs: Sequence[PipelineJob], nodes: Sequence[str], recovery: Recovery) -> None:
        assert recovery.peer_s is not None
        assert recovery.recycle_s is not None
        self._held, self._join_s, self._reroute_s = Held(jobs, nodes), recovery.peer_s, recovery.recycle_s
        self._again_s = recovery.restart_s + recovery.lost_work_s
        self._missing, self._stands_still = [0] * len(jobs), [False] * len(jobs)

    def react(self, hour: float, up: Collection[str]) -> Sequence[Effect]:
        """Return the effect on each job; nodes go first to the job that gains most by them."""
        pool = self._held.idle(up)
        order = sorted(range(len(self._held.jobs)), key=lambda index: self._slowdown(index, up))
        effects = {index: self._follow(index, up, pool) for index in order}
        return [effects[index] for index in range(len(effects))]

    def _slowdown(self, index: int, up: Collection[str]) -> float:
        job = self._held.jobs[index]
        return job.work_on_all_but(self._held.missing(index, up)) / job.nodes

    def _follow(self, index: int, up: Collection[str], pool: list[str]) -> Effect:
        lost = self._held.missing(index, up) > self._missing[index]
        joined = self._held.replace(index, up, pool, most_missing=self._held.jobs[index].nodes)
        missing = self._held.missing(index, up)
        came_back, self._missing[index] = joined > 0 or missing < self._missing[index], missing
        work = self._held.jobs[index].work_on_all_but(missing)
        stood_still, self._stands_still[index] = self._stands_still[index], work == 0
        if work and stood_still:
            return Effect(work, self._again_s)
        return Effect(work, self._join_s if came_back else self._reroute_s if lost else 0.0)


_HOURS_PER_DAY = 24.0
# What is expected before anything was seen: Meta's RSC-1 had 6.50 faults in 1,000 node-days; the repair time is ours.
_FAULTS, _NODE_DAYS = 6.5, 1_000.0
_REPAIRS, _DOWN_DAYS = 1.0, 1.0


@dataclass
class _Allocated:
    """A job as it runs now."""

    nodes: tuple[str, ...]
    pipelines: int
    missing: int = 0  # nodes of these pipelines whose work peers do


class Planned:
    """Reconfigures at once on what is left. Failure rates are those seen so far; what comes is not known."""

    def __init__(self, jobs: Sequence[PipelineJob], nodes: Sequence[str], recovery: Recovery) -> None:
        self._jobs, self._fleet, self._costs = jobs, tuple(sorted(nodes)), recovery
        held = Held(jobs, nodes)
        self._now = [
            _Allocated(tuple(mine), len(mine) // job.stages) for job, mine in zip(jobs, held.nodes, strict=True)
        ]
        self._seen = _Rates()

    def react(self, hour: float, up: Collection[str]) -> Sequence[Effect]:
        """Return the effect on each job."""
        self._seen.observe(hour, set(up), len(self._fleet))
        rate = self._seen.faults_per_node_day
        nodes = tuple(Node(name, failures_per_day=rate, is_usable=name in up) for name in self._fleet)
        jobs = tuple(self._describe(job, one) for job, one in zip(self._jobs, self._now, strict=True))
        plan = plan_allocation(Cluster(nodes, jobs, repairs_per_day=self._seen.repairs_per_day))
        return [self._carry_out(index, one) for index, one in enumerate(plan.jobs)]

    def _describe(self, job: PipelineJob, now: _Allocated) -> Job:
        held = len(now.nodes)
        further = {
            lost: job.work(now.pipelines, now.missing + lost)
            for lost in range(1, held)
            if job.work(now.pipelines, now.missing + lost) > 0
        }
        return Job(
            job.id,
            _table(job, now.pipelines, now.missing),
            now.nodes,
            # Where peers already do the work of others, there are no whole replicas to leave out or to add.
            nodes_per_replica=None if now.missing else job.stages,
            recovery=replace(self._costs, recycled=further) if self._costs.recycle_s is not None else self._costs,
        )

    def _carry_out(self, index: int, plan: JobPlan) -> Effect:
        job, now = self._jobs[index], self._now[index]
        whole = now.pipelines * job.stages
        is_rerouted = plan.change == "recycle" or (now.missing > 0 and whole - now.missing <= plan.after < whole)
        pipelines = now.pipelines if is_rerouted else plan.after // job.stages
        self._now[index] = _Allocated(plan.placement.nodes, pipelines, whole - plan.after if is_rerouted else 0)
        return Effect(plan.throughput_after, plan.downtime_s + plan.lost_work_s)


def _table(job: PipelineJob, pipelines: int, missing: int) -> Throughput:
    """Return what a job does on whole pipelines, and on its present ones with fewer nodes missing than now."""
    rates = {job.stages * count: job.work(count) for count in range(1, job.pipelines + 1)}
    for gap in range(1, missing + 1):
        count = job.stages * pipelines - gap
        rates[count] = max(job.work(pipelines, gap), rates.get(count, 0.0))
    return tabulate(rates)


class _Rates:
    """How often nodes failed and came back, as far as seen."""

    def __init__(self) -> None:
        self._hour, self._up, self._total = 0.0, set[str](), 0
        self._faults, self._node_days = _FAULTS, _NODE_DAYS
        self._repairs, self._down_days = _REPAIRS, _DOWN_DAYS

    def observe(self, hour: float, up: set[str], total: int) -> None:
        """Take note of a change."""
        days = (hour - self._hour) / _HOURS_PER_DAY
        self._node_days += days * len(self._up)
        self._down_days += days * (self._total - len(self._up))
        if self._total:
            self._faults += len(self._up - up)
            self._repairs += len(up - self._up)
        self._hour, self._up, self._total = hour, up, total

    @property
    def faults_per_node_day(self) -> float:
        return self._faults / self._node_days

    @property
    def repairs_per_day(self) -> float:
        return (self._total - len(self._up)) * self._repairs / self._down_days
