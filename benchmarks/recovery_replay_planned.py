"""Our way in a replay: after each change, the planner's own optimum over all jobs, carried out as it says."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from benchmarks.recovery_replay_jobs import PipelineJob
from benchmarks.recovery_replay_policies import Effect, Held
from planner.recovery.allocation.jobs import Cluster, Job, Node, Ways
from planner.recovery.allocation.planning import JobPlan, plan_allocation
from planner.recovery.allocation.throughput import Throughput, tabulate

_H_PER_DAY = 24.0
# What is expected before anything was seen: Meta's RSC-1 had 6.50 faults in 1,000 node-days; the repair time is ours.
_FAULTS, _NODE_DAYS = 6.5, 1_000.0
_REPAIRS, _DOWN_DAYS = 1.0, 1.0


@dataclass
class _Standing:
    """A job as it runs now."""

    nodes: tuple[str, ...]
    pipelines: int
    missing: int = 0  # nodes of these pipelines whose work peers do


class Planned:
    """Reconfigures at once on what is left. Failure rates are those seen so far; what comes is not known."""

    def __init__(self, jobs: Sequence[PipelineJob], nodes: Sequence[str], ways: Ways) -> None:
        self._jobs, self._fleet, self._ways = jobs, tuple(sorted(nodes)), ways
        held = Held(jobs, nodes)
        self._now = [
            _Standing(tuple(mine), len(mine) // job.stages) for job, mine in zip(jobs, held.nodes, strict=True)
        ]
        self._seen = _Rates()

    def react(self, hour: float, up: Collection[str]) -> Sequence[Effect]:
        """Return the effect on each job."""
        self._seen.look(hour, set(up), len(self._fleet))
        rate = self._seen.faults_per_node_day
        nodes = tuple(Node(name, failures_per_day=rate, is_usable=name in up) for name in self._fleet)
        jobs = tuple(self._describe(job, one) for job, one in zip(self._jobs, self._now, strict=True))
        plan = plan_allocation(Cluster(nodes, jobs, repairs_per_day=self._seen.repairs_per_day))
        return [self._carry_out(place, one) for place, one in enumerate(plan.jobs)]

    def _describe(self, job: PipelineJob, now: _Standing) -> Job:
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
            ways=replace(self._ways, recycled=further) if self._ways.recycle_s is not None else self._ways,
        )

    def _carry_out(self, place: int, plan: JobPlan) -> Effect:
        job, now = self._jobs[place], self._now[place]
        whole = now.pipelines * job.stages
        is_rerouted = plan.change == "recycle" or (now.missing > 0 and whole - now.missing <= plan.after < whole)
        pipelines = now.pipelines if is_rerouted else plan.after // job.stages
        self._now[place] = _Standing(plan.placement.nodes, pipelines, whole - plan.after if is_rerouted else 0)
        return Effect(plan.waf_after, plan.downtime_s + plan.lost_work_s)


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

    def look(self, hour: float, up: set[str], total: int) -> None:
        """Take note of a change."""
        days = (hour - self._hour) / _H_PER_DAY
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
