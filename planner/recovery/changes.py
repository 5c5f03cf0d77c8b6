"""What a plan over all jobs means for each job that it touches: one decision each, which belong together.

Jobs that give nodes go before those that take them. A plan in which somebody gives is carried out only as far as a
person approves each of its decisions; a job that gets back what lay idle follows the policy for `grow`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Cost, Decision, Mode, Option
from planner.recovery.allocation.planning import Allocation, JobPlan
from planner.recovery.checkpoints.boundary import Moment, Slowness, choose_moment
from planner.recovery.decide import Policy
from planner.recovery.facts import JobFacts, Resume
from planner.recovery.limits import Surroundings

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
    parts: Sequence[Part], cause: Cause, around: Surroundings, policy: Policy, generation: int, now_ns: int
) -> list[Decision]:
    """Return the decisions of a plan, those that give first; each that takes comes after all that give."""
    plan = identify(parts)
    is_shared = any(part.gives for part in parts)
    made: list[Decision] = []
    for part in sorted(parts, key=lambda part: (not part.gives, part.job.job)):
        givers = tuple(each.id for each in made if not part.gives and each.action != "grow")
        begun = sum(each.mode == "execute" for each in made)  # by the policy, before this one
        counted = replace(around, restarts=around.restarts + begun)
        decision = _decide(part, cause, is_shared, counted, policy, now_ns)
        name = hashlib.sha256(f"{plan}/{part.job.job}/{generation}/{now_ns}".encode()).hexdigest()[:16]
        named = {"id": name, "generation": generation, "part_of": plan, "after": givers}
        made.append(decision.model_copy(update=named))
    return made


def identify(parts: Iterable[Part]) -> str:
    """Return the name of a plan: the same as long as the same jobs go from as many nodes to as many."""
    shifts = sorted(f"{part.job.job}:{part.plan.before}:{part.plan.after}" for part in parts)
    return hashlib.sha256("/".join(shifts).encode()).hexdigest()[:16]


def _decide(part: Part, cause: Cause, is_shared: bool, around: Surroundings, policy: Policy, now_ns: int) -> Decision:
    job, plan = part.job, part.plan
    action: Action = "reconfigure" if part.gives else "grow"
    moment, hold = _find_moment(part, cause, now_ns), next(_find_holds(part, action, around, policy), None)
    until_ns = moment.until_ns if moment.waits else None
    expires_ns = now_ns + int(policy.lifetime_s * NS_PER_S)
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
        mode=_mode_of(policy.mode_of(action), is_shared or hold is not None),
        action=action,
        target=_target(job, plan.after),
        resume=part.resume.as_document(),
        cost=_cost(part, cause, plan.after, 0.0 if moment.waits else part.resume.age_s),
        alternatives=(Option(action="none", cost=_cost(part, cause, plan.before, 0.0), reason="it stays as it is"),),
        verdicts=(),
        reason=_say(part, cause, moment),
        held_because=hold,
        checkpoint_age_s=part.resume.age_s,
        trigger=cause.trigger,
        waits_until_ns=until_ns,
    )


def _mode_of(mode: Mode, needs_person: bool) -> Mode:
    return "propose" if mode == "execute" and needs_person else mode


def _target(job: JobFacts, nodes: int) -> dict[str, int]:
    layout = job.layout.on(job.gpus // max(len(job.nodes), 1) * nodes).as_target() if job.layout else {}
    return {"nnodes": nodes} | layout


def _find_moment(part: Part, cause: Cause, now_ns: int) -> Moment:
    """Return whether the job is moved now or after its next checkpoint; waiting costs what the plan would gain."""
    allocation = cause.allocation
    gain = max(allocation.waf_after - (allocation.waf_before - cause.lost), 0.0)
    next_s = part.job.next_save_s
    work = max(part.plan.waf_before, part.plan.waf_after)
    speed = 1 - min(gain / work, 1.0) if work > 0 else 1.0
    next_ns = None if next_s is None else now_ns + int(next_s * NS_PER_S)
    return choose_moment(Slowness(None, speed, part.resume.age_s, next_ns), now_ns)


def _find_holds(part: Part, action: Action, around: Surroundings, policy: Policy) -> Iterator[str]:
    """Yield what keeps a part of a plan from being carried out by itself."""
    if around.controller_trouble:
        yield f"the controller does not answer: {around.controller_trouble}"
    for decision in around.undone:
        if decision.job in (part.job.job, *part.names) and decision.action == action:
            yield f"a person has undone or rejected decision {decision.id}, which was to {action} {part.job.job}"
    if around.restarts >= (most := policy.limits.restarts_per_hour):
        yield f"{around.restarts} jobs were restarted in the last hour, and {most} is the limit"
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
        waf_after=round(speed, 4),
        gpu_hours=round(lost, 2),
        money=None if cause.price is None else round(lost * cause.price, 2),
    )


def _say(part: Part, cause: Cause, moment: Moment) -> str:
    """Return a part in a sentence: what moves, what it does to the job's work, and why now."""
    plan, job = part.plan, part.job
    change = plan.waf_after / plan.waf_before - 1 if plan.waf_before > 0 else 0.0
    moved = plan.placement.given_up if part.gives else plan.placement.taken
    what = f"{job.job} {'gives' if part.gives else 'gets back'} {', '.join(moved) or 'nodes'}"
    seen = "measured" if plan.is_measured else "by a model"
    work = f"{plan.before} -> {plan.after} nodes, {change:+.0%} of its work ({seen}; {job.throughput_from or 'told'})"
    begin = f"{cause.trigger}: " if cause.trigger else ""
    return f"{begin}{what}, {work}; {cause.allocation.reason}; {moment.reason}"
