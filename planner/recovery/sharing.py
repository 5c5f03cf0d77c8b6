"""How nodes would best be shared among all jobs after a node is gone: Unicron's plan beside the decision on one job.

It says something only where the throughput of jobs by node counts is known. Jobs of which it is not, or that have no
complete checkpoint, keep what they have.
"""

from collections.abc import Sequence

from lockstep.decision import AllJobs, Shift
from lockstep.errors import BadInput
from planner.recovery.allocation.jobs import Cluster, Job, Node, Ways
from planner.recovery.allocation.planning import plan_allocation
from planner.recovery.allocation.throughput import tabulate
from planner.recovery.facts import JobFacts
from planner.recovery.weighing import Situation


def share_nodes(situation: Situation, others: Sequence[JobFacts]) -> AllJobs | None:
    """Return the best plan over all jobs without the faulty node; None where nothing is known to plan with."""
    jobs = [situation.job, *others]
    if not any(_can_move(job) for job in jobs):
        return None
    nodes = tuple(
        Node(
            host,
            leaf=situation.cluster.block_of.get(host),
            failures_per_day=situation.cluster.failures_per_node_day,
            is_usable=host != situation.node,
        )
        for host in sorted(situation.hosts.union(*(job.nodes for job in others)))
    )
    try:
        plan = plan_allocation(Cluster(nodes, tuple(_as_job(job, situation) for job in jobs)))
    except BadInput:
        return None  # telemetry and hints contradict each other, or there are too few nodes for all: no advice
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


def _can_move(job: JobFacts) -> bool:
    return bool(job.throughput) and job.resume is not None


def _as_job(job: JobFacts, situation: Situation) -> Job:
    """Return a job as the plan sees it; one that cannot move keeps its count, or one node less where it lost one."""
    held, is_hit = len(job.nodes), situation.node in job.nodes
    pinned = {count: float(count) for count in ((held - 1, held) if is_hit else (held,)) if count}
    table = dict(job.throughput) if _can_move(job) else pinned
    load_s, age_s = (job.resume.load_s, job.resume.age_s) if job.resume else (0.0, 0.0)
    return Job(
        id=job.job,
        throughput=tabulate(table),
        nodes=job.nodes,
        weight=job.weight,
        minimum=job.min_nodes,
        least=min(job.min_nodes, *table),
        most=max(table),
        may_stop=False,
        ways=Ways(restart_s=situation.durations.start_s + load_s, lost_work_s=age_s),
    )
