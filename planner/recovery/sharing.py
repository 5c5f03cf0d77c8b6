"""How nodes are best shared among all jobs: Unicron's plan over what is known of them now.

It says something only where the work of jobs by node counts is known. Jobs of which it is not, that have no complete
checkpoint, or that something else is being done about keep what they have. Nodes are those that jobs hold, spares,
and such as are known to be free: whatever else a controller lists may be somebody's.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from lockstep.decision import AllJobs, Shift
from lockstep.errors import BadInput
from planner.recovery.allocation.calibration import in_gpus
from planner.recovery.allocation.events import Event, apply
from planner.recovery.allocation.jobs import Cluster, Job, Node, Ways
from planner.recovery.allocation.planning import Allocation
from planner.recovery.allocation.throughput import tabulate
from planner.recovery.allocation.warm import WarmAnswers
from planner.recovery.facts import ClusterFacts, Durations, JobFacts
from planner.recovery.situation import Situation


def share_nodes(
    situation: Situation, others: Sequence[JobFacts], warm: WarmAnswers, now_ns: int
) -> Allocation | None:
    """Return the best plan over all jobs without the faulty node; None where nothing is known to plan with."""
    jobs = [situation.job, *others]
    if situation.node is None or not any(map(can_move, jobs)):
        return None
    try:
        before = build_cluster(jobs, situation.cluster, situation.durations, hit=situation.job.job)
        lost = Event("node_lost", situation.node)
        return warm.answer(before, lost, apply(before, lost), now_ns)
    except BadInput:
        return None  # telemetry and hints contradict each other, or there are too few nodes for all: no advice


def build_cluster(
    jobs: Sequence[JobFacts],
    facts: ClusterFacts,
    durations: Durations,
    pinned: Collection[str] = (),
    hit: str | None = None,
) -> Cluster:
    """Return what is planned over; jobs that are pinned keep what they have, the one that was hit may lose a node."""
    held = {node for job in jobs for node in job.nodes}
    nodes = tuple(_as_node(host, facts) for host in sorted({*held, *facts.spares, *facts.free}))
    planned = tuple(
        _as_job(job, durations, job.job in pinned, job.job == hit)
        for job in sorted(_in_one_unit(jobs), key=lambda job: job.job)
        if job.nodes
    )
    return Cluster(nodes, planned)


def can_move(job: JobFacts) -> bool:
    """Return whether a plan may give a job another count of nodes."""
    return job.throughput.get(len(job.nodes), 0.0) > 0 and job.resume is not None


def describe(plan: Allocation) -> AllJobs:
    """Return a plan as it stands beside a decision."""
    shifts = [
        Shift(
            job=each.job,
            nodes_before=each.before,
            nodes_after=each.after,
            change=each.change,
            downtime_s=each.downtime_s,
        )
        for each in plan.jobs
        if each.change != "none"
    ]
    return AllJobs(waf_before=plan.waf_before, waf_after=plan.waf_after, reason=plan.reason, shifts=tuple(shifts))


def _in_one_unit(jobs: Sequence[JobFacts]) -> list[JobFacts]:
    """Return the jobs with tables that compare: where only some are told by the site, all in GPU-equivalents."""
    if not any(job.is_in_gpus or not can_move(job) for job in jobs):  # one that cannot move counts as its GPUs
        return list(jobs)
    return [
        job if job.is_in_gpus else replace(job, throughput=in_gpus(job.throughput, len(job.nodes), job.gpus))
        for job in jobs
    ]


def _as_node(host: str, facts: ClusterFacts) -> Node:
    block = facts.block_of.get(host)
    rate = facts.failures_of.get(host, facts.failures_per_node_day)
    return Node(host, facts.leaf_of.get(host, block), block, rate)


def _as_job(job: JobFacts, durations: Durations, is_pinned: bool, is_hit: bool) -> Job:
    """Return a job as the plan sees it; it is given no more than it has had, and one that cannot move what it has."""
    held, full = len(job.nodes), float(job.gpus or len(job.nodes))
    kept = {count: full * count / held for count in ((held - 1, held) if is_hit else (held,)) if count}
    table = dict(job.throughput) if can_move(job) and not is_pinned else kept
    back_s, age_s = (job.resume.back_s, job.resume.age_s) if job.resume else (0.0, 0.0)
    return Job(
        id=job.job,
        throughput=tabulate(table, job.measured & set(table)),
        nodes=job.nodes,
        weight=job.weight,
        minimum=job.min_nodes,
        least=min(job.min_nodes, *table),
        most=max(table),
        may_stop=False,
        # A planned move waits for the next checkpoint where one is expected; else it costs the work since the last.
        ways=Ways(durations.start_s + back_s, age_s, save_s=0.0 if job.next_save_s is not None else age_s),
    )
