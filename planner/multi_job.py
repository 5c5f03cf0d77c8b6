"""What a plan over all jobs means for each job that it touches: one decision each, which belong together.

Jobs that give nodes go before those that take them. A plan in which somebody gives is carried out only as far as a
person approves each of its decisions; a job that gets back what lay idle follows the policy for `grow`.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, AllJobs, Cost, Decision, Option, Shift
from lockstep.errors import BadInput
from lockstep.sections import PlannerSettings
from planner.allocation.allocate import Allocation, JobPlan, WarmAnswers
from planner.allocation.calibration import in_gpus
from planner.allocation.cluster import Cluster, Event, Job, Node, Recovery, apply
from planner.allocation.throughput import tabulate
from planner.checkpoints.intervals import Slowness, Timing, choose_timing
from planner.context import ClusterFacts, Context, Durations, JobFacts, Resume
from planner.decide import LIFETIME_S
from planner.limits import Constraints

_LATEST_S = 30.0  # after a checkpoint was expected: then it is looked at again whether it is there


@dataclass(frozen=True, slots=True)
class Part:
    """What a plan does to one job, and what is needed to do it."""

    plan: JobPlan
    job: JobFacts
    resume: Resume  # the newest checkpoint that loads on the new count
    incident: str  # which made nodes scarce
    names: tuple[str, ...] = ()  # that the job had before

    @property
    def gives(self) -> bool:
        return self.plan.after < self.plan.before


@dataclass(frozen=True, slots=True)
class Cause:
    """Why there is a plan."""

    trigger: str | None  # in words; None: an incident
    allocation: Allocation
    start_s: float  # of a new attempt, without loading
    price: float | None = None  # of a GPU-hour
    lost: float = 0.0  # weighted work a second that a fault costs until the plan is carried out


def decide_parts(
    parts: Sequence[Part],
    cause: Cause,
    constraints: Constraints,
    settings: PlannerSettings,
    generation: int,
    now_ns: int,
) -> list[Decision]:
    """Return the decisions of a plan, those that give first; each that takes comes after all that give."""
    plan = identify(parts)
    is_shared = any(part.gives for part in parts)
    made: list[Decision] = []
    for part in sorted(parts, key=lambda part: (not part.gives, part.job.job)):
        givers = tuple(each.id for each in made if not part.gives and each.action != "grow")
        begun = sum(each.mode == "execute" for each in made)  # by the policy, before this one
        counted = replace(constraints, restarts=constraints.restarts + begun)
        decision = _decide(part, cause, is_shared, counted, settings, now_ns)
        name = hashlib.sha256(f"{plan}/{part.job.job}/{generation}/{now_ns}".encode()).hexdigest()[:16]
        named = {"id": name, "generation": generation, "part_of": plan, "after": givers}
        made.append(decision.model_copy(update=named))
    return made


def identify(parts: Iterable[Part]) -> str:
    """Return the name of a plan: the same as long as the same jobs go from as many nodes to as many."""
    shifts = sorted(f"{part.job.job}:{part.plan.before}:{part.plan.after}" for part in parts)
    return hashlib.sha256("/".join(shifts).encode()).hexdigest()[:16]


def _decide(
    part: Part, cause: Cause, is_shared: bool, constraints: Constraints, settings: PlannerSettings, now_ns: int
) -> Decision:
    job, plan = part.job, part.plan
    action: Action = "reconfigure" if part.gives else "grow"
    mode = settings.mode_of(action)
    timing, hold = _find_timing(part, cause, now_ns), next(_find_holds(part, action, constraints, settings), None)
    until_ns = timing.until_ns if timing.waits else None
    expires_ns = now_ns + int(LIFETIME_S * NS_PER_S)
    gpus = job.gpus // max(len(job.nodes), 1) * plan.after
    layout = job.layout.on(gpus).as_target() if job.layout else {}
    return Decision(
        id="",
        job=job.job,
        attempt=job.attempt,
        incident=part.incident,
        generation=0,
        created_ns=now_ns,
        weighed_ns=now_ns,
        expires_ns=min(expires_ns, until_ns + int(_LATEST_S * NS_PER_S)) if until_ns else expires_ns,
        horizon_s=max(cause.allocation.running_s, 1.0),
        severity=3,
        mode="propose" if mode == "execute" and (is_shared or hold is not None) else mode,
        action=action,
        target={"nnodes": plan.after} | layout,
        resume=part.resume.as_document(),
        cost=_cost(part, cause, plan.after, 0.0 if timing.waits else part.resume.age_s),
        alternatives=(Option(action="none", cost=_cost(part, cause, plan.before, 0.0), reason="it stays as it is"),),
        verdicts=(),
        reason=_say(part, cause, timing),
        held_because=hold,
        checkpoint_age_s=part.resume.age_s,
        trigger=cause.trigger,
        waits_until_ns=until_ns,
    )


def _find_timing(part: Part, cause: Cause, now_ns: int) -> Timing:
    """Return whether the job is moved now or after its next checkpoint; waiting costs what the plan would gain."""
    allocation = cause.allocation
    gain = max(allocation.throughput_after - (allocation.throughput_before - cause.lost), 0.0)
    next_s = part.job.next_save_s
    work = max(part.plan.throughput_before, part.plan.throughput_after)
    speed = 1 - min(gain / work, 1.0) if work > 0 else 1.0
    next_ns = None if next_s is None else now_ns + int(next_s * NS_PER_S)
    return choose_timing(Slowness(None, speed, part.resume.age_s, next_ns), now_ns)


def _find_holds(part: Part, action: Action, constraints: Constraints, settings: PlannerSettings) -> Iterator[str]:
    """Yield what keeps a part of a plan from being carried out automatically."""
    if constraints.controller_trouble:
        yield f"the controller does not answer: {constraints.controller_trouble}"
    for decision in constraints.undone:
        if decision.job in (part.job.job, *part.names) and decision.action == action:
            yield f"a person has undone or rejected decision {decision.id}, which was to {action} {part.job.job}"
    if constraints.restarts >= (most := settings.restarts_per_hour):
        yield f"{constraints.restarts} jobs were restarted in the last hour, and {most} is the limit"
    if part.resume.obstacle:
        yield part.resume.obstacle


def _cost(part: Part, cause: Cause, nodes: int, again_s: float) -> Cost:
    """Return what a count costs until the next plan is expected, against the most that the job has had."""
    job = part.job
    downtime_s = cause.start_s + part.resume.back_s if nodes != part.plan.before else 0.0
    full = job.throughput.get(job.most_nodes) or 0.0
    speed = job.throughput.get(nodes, 0.0) / full if full else 0.0
    at_once_s = downtime_s + again_s
    lost_s = at_once_s + (1 - speed) * max(cause.allocation.running_s - at_once_s, 0.0)
    lost = job.gpus // max(len(job.nodes), 1) * job.most_nodes * lost_s / 3600
    return Cost(
        downtime_s=downtime_s,
        throughput_after=round(speed, 4),
        gpu_hours=round(lost, 2),
        money=None if cause.price is None else round(lost * cause.price, 2),
    )


def _say(part: Part, cause: Cause, timing: Timing) -> str:
    """Return a part in a sentence: what moves, what it does to the job's work, and why now."""
    plan, job = part.plan, part.job
    change = plan.throughput_after / plan.throughput_before - 1 if plan.throughput_before > 0 else 0.0
    moved = plan.placement.given_up if part.gives else plan.placement.taken
    what = f"{job.job} {'gives' if part.gives else 'gets back'} {', '.join(moved) or 'nodes'}"
    seen = "measured" if plan.is_measured else "by a model"
    work = f"{plan.before} -> {plan.after} nodes, {change:+.0%} of its work ({seen}; {job.throughput_from or 'set'})"
    begin = f"{cause.trigger}: " if cause.trigger else ""
    return f"{begin}{what}, {work}; {cause.allocation.reason}; {timing.reason}"


@dataclass(frozen=True, slots=True)
class Lenders:
    """The other jobs, and what each could start from on so many nodes."""

    jobs: Sequence[JobFacts]
    resume_on: Callable[[JobFacts, int], Resume | None]


def borrow(
    own: Decision,
    context: Context,
    plan: Allocation,
    lenders: Lenders,
    decide_again: Callable[[Context], Decision],
    constraints: Constraints,
    settings: PlannerSettings,
) -> list[Decision]:
    """Return the decisions of lenders and then of the job that was hit; only its own where nobody should lend.

    A job that has an answer of its own which is carried out by itself does not wait for others. Else the plan over
    all jobs is proposed: one decision for each job that gives, and one for the job that was hit, which comes after
    them.
    """
    parts = _list_givers(own, context, plan, lenders)
    if not parts or (own.mode == "execute" and own.held_because is None and own.action != "none"):
        return [own]
    lent = parts[0].plan.placement.given_up[0]
    helped = decide_again(replace(context, cluster=replace(context.cluster, spares=(lent,))))
    if helped.action != "replace" or own.action == "replace":
        return [own]
    hit = next(each for each in plan.jobs if each.job == context.job.job)
    lost = hit.throughput_before * (1 - context.speed_now)
    cause = Cause(None, plan, context.durations.start_s, context.gpu_hour_price, lost)
    givers = decide_parts(parts, cause, constraints, settings, own.generation, own.created_ns)
    link = {
        "mode": "propose" if helped.mode == "execute" else helped.mode,
        "part_of": givers[0].part_of,
        "after": tuple(each.id for each in givers),
        # A lender that waits for its checkpoint is decided about again when that is due, and both together.
        "expires_ns": min(helped.expires_ns, *(each.expires_ns for each in givers)),
        "reason": f"{helped.reason}; {lent} is lent by {parts[0].job.job}: {plan.reason}",
    }
    return [*givers, helped.model_copy(update=link)]


def _list_givers(own: Decision, context: Context, plan: Allocation, lenders: Lenders) -> list[Part]:
    """Return the healthy jobs that give nodes in a plan; none where one of them cannot start on fewer."""
    jobs, parts = {job.job: job for job in lenders.jobs}, list[Part]()
    for each in plan.jobs:
        if each.job == context.job.job or each.after >= each.before or not each.placement.given_up:
            continue
        resume = lenders.resume_on(jobs[each.job], each.after)
        if resume is None:
            return []
        parts.append(Part(each, jobs[each.job], resume, own.incident))
    return parts


def share_nodes(context: Context, others: Sequence[JobFacts], warm: WarmAnswers, now_ns: int) -> Allocation | None:
    """Return the best plan over all jobs without the faulty node; None where nothing is known to plan with.

    It says something only where the work of jobs by node counts is known. Jobs of which it is not, that have no
    complete checkpoint, or that something else is being done about keep what they have. Nodes are those that jobs
    hold, spares, and such as are known to be free: whatever else a controller lists may be somebody's.
    """
    jobs = [context.job, *others]
    if context.node is None or not any(map(can_move, jobs)):
        return None
    try:
        before = build_cluster(jobs, context.cluster, context.durations, hit=context.job.job)
        lost = Event("node_lost", context.node)
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
    return AllJobs(
        throughput_before=plan.throughput_before,
        throughput_after=plan.throughput_after,
        reason=plan.reason,
        shifts=tuple(shifts),
    )


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
        recovery=Recovery(durations.start_s + back_s, age_s, save_s=0.0 if job.next_save_s is not None else age_s),
    )
