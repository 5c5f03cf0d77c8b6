"""One decision per incident: the cheapest way back that its severity allows, its price, and what every other costs.

A job that stands still is answered at once. A slow one is answered once waiting has cost as much as the answer would
(rental.py), and its restart waits for the next checkpoint where that is cheaper. What must not be done without a
person is proposed, with the reason (limits.py).
"""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Cost, Decision, Isolation, Mode, Option
from lockstep.incident import Incident
from planner.recovery.checkpoints.boundary import Moment, Slowness, choose_moment
from planner.recovery.facts import horizon_s
from planner.recovery.ladder import RUNGS, Standing
from planner.recovery.limits import SHRINKING, Limits, Surroundings, find_hold
from planner.recovery.rental import weigh_waiting
from planner.recovery.saving import advise_saving
from planner.recovery.shrinking import share_micro_batches
from planner.recovery.situation import Situation
from planner.recovery.weighing import MOVES, price_of_acting, resume_for, weigh


@dataclass(frozen=True, slots=True)
class Policy:
    """What a site lets Lockstep do by itself."""

    modes: Mapping[Action, Mode] = field(default_factory=dict)  # what is not named is only observed
    limits: Limits = field(default_factory=Limits)
    lifetime_s: float = 600.0  # an old decision rests on an old verdict
    test_after_s: float | None = None  # that an isolated node rests before its test; None: nobody tests it
    look_again_s: float = 10.0  # after deciding to do nothing; a fifth of it where the job stands still

    def mode_of(self, action: Action) -> Mode:
        """Return what may be done about an action by itself."""
        return self.modes.get(action, "observe")


@dataclass(frozen=True, slots=True)
class Choice:
    """An option and the reason that bound."""

    option: Option
    reason: str
    until_ns: int | None = None  # when the answer will be another one, if nothing else changes; None: it stays


def decide(
    incident: Incident,
    situation: Situation,
    standing: Standing,
    around: Surroundings,
    policy: Policy,
    generation: int,
    now_ns: int,
) -> Decision:
    """Return what to do about an incident, and why."""
    options = weigh(situation)
    choice = choose(options, situation, standing, now_ns)
    action = choice.option.action
    wait_s = policy.look_again_s / 5 if situation.stands_still else policy.look_again_s
    lifetime_s = wait_s if action == "none" else policy.lifetime_s
    expires_ns = min(now_ns + int(lifetime_s * NS_PER_S), choice.until_ns or sys.maxsize)
    mode, hold = policy.mode_of(action), find_hold(incident, action, situation, around, policy.limits, now_ns)
    job = situation.job
    return Decision(
        id=_identify(incident, generation, now_ns),
        job=incident.job,
        attempt=incident.attempt,
        incident=incident.id,
        generation=generation,
        created_ns=now_ns,
        weighed_ns=now_ns,
        expires_ns=expires_ns,
        horizon_s=horizon_s(job, situation.cluster),
        severity=standing.severity,
        mode="propose" if hold and mode == "execute" else mode,
        action=action,
        isolate=_isolations(action, situation, policy, now_ns),
        target=_target(action, situation),
        resume=_resume(action, situation),
        cost=choice.option.cost,
        alternatives=tuple(option for option in options if option.action != action),
        verdicts=(situation.verdict.id,),
        reason=choice.reason,
        held_because=hold,
        advice=advise_saving(job, situation.cluster),
        checkpoint_age_s=resume.age_s if (resume := resume_for(action, job) or job.resume) else None,
    )


def choose(options: list[Option], situation: Situation, standing: Standing, now_ns: int) -> Choice:
    """Return the cheapest option that the severity allows and whose time has come."""
    nothing = next(option for option in options if option.action == "none")
    if situation.job.is_over:
        return Choice(nothing, f"{situation.job.job} is over: there is nothing to bring back")
    if standing.is_exhausted:
        return Choice(nothing, f"a person is needed: {standing.reason}, and nothing is left to try")
    allowed = [option for option in options if option.action in RUNGS[standing.severity]]
    known = [option for option in allowed if option.cost.gpu_hours is not None]
    if nothing not in known:
        return Choice(nothing, f"{situation.verdict.component} is watched; what it costs the job is not known yet")
    best = known[0]
    if best is nothing:
        return Choice(nothing, _why_nothing(nothing, allowed, situation))
    if situation.stands_still:
        return Choice(best, _why(best, known, situation))
    return _choose_moment(best, nothing, known, situation, now_ns)


def _choose_moment(best: Option, nothing: Option, known: list[Option], situation: Situation, now_ns: int) -> Choice:
    """Return the cure of a slow job when its time has come, else to wait for it."""
    per_hour = lost_per_hour(situation)
    price = price_of_acting(best, situation.job)
    wait = weigh_waiting(situation.verdict.since_ns, now_ns, per_hour, price)
    if not wait.is_over:
        left_s = ((wait.due_ns or now_ns) - now_ns) / NS_PER_S
        said = (
            f"{best.action} costs {price:.1f} GPU-hours at once and waiting has cost {wait.lost_gpu_hours:.1f} so far"
        )
        return Choice(nothing, f"{said}: it is time in {left_s:.0f} s, if the fault lasts", wait.due_ns)
    moment = _find_moment(best, situation, now_ns)
    if moment is not None and moment.waits:
        said = moment.reason.removeprefix("wait: ")
        return Choice(nothing, f"{best.action} waits for the next checkpoint: {said}", moment.until_ns)
    return Choice(best, _why(best, known, situation))


def lost_per_hour(situation: Situation) -> float:
    """Return the GPU-hours that every hour of waiting costs."""
    return situation.job.gpus * (1 - situation.speed_now)


def _find_moment(best: Option, situation: Situation, now_ns: int) -> Moment | None:
    """Return whether a restart elsewhere is best made now or after the next checkpoint; None: it is no such cure."""
    job, resume = situation.job, resume_for(best.action, situation.job)
    if best.action not in MOVES or resume is None:
        return None
    next_ns = None if job.next_save_s is None else now_ns + int(job.next_save_s * NS_PER_S)
    per_s = len(job.nodes) * situation.cluster.failures_per_node_day / 86_400
    slowness = Slowness(situation.verdict.fault_class, situation.speed_now, resume.age_s, next_ns, per_s)
    return choose_moment(slowness, now_ns)


def _why(best: Option, known: list[Option], situation: Situation) -> str:
    second = next((option for option in known if option.action != best.action), None)
    reason = f"{best.reason}: {best.cost.gpu_hours} GPU-hours are expected to be lost"
    if second is not None:
        other = "if nothing is done" if second.action == "none" else f"with the next best, {second.action}"
        reason += f", and {second.cost.gpu_hours} {other}"
    return f"{situation.verdict.component}: {reason}"


def _why_nothing(nothing: Option, allowed: list[Option], situation: Situation) -> str:
    closed = [f"{option.action} is {option.reason}" for option in allowed if option.cost.gpu_hours is None]
    said = (
        f"{situation.verdict.component} is watched; waiting costs {lost_per_hour(situation):.1f} GPU-hours every hour"
    )
    if not situation.stands_still or not closed:
        return said
    return f"{said}; {'; '.join(closed)}"


def _isolations(action: Action, situation: Situation, policy: Policy, now_ns: int) -> tuple[Isolation, ...]:
    if action not in SHRINKING:
        return ()
    verdict = situation.verdict
    part = Isolation(
        component=verdict.component,
        node=situation.node,
        reason=verdict.reason,
        evidence=(verdict.id,),
        until_ns=None if policy.test_after_s is None else now_ns + int(policy.test_after_s * NS_PER_S),
    )
    return (part,)


def _target(action: Action, situation: Situation) -> dict[str, int] | None:
    """Return what the job looks like afterwards, as far as the layout is known; the global batch stays."""
    if action not in SHRINKING:
        return None
    job = situation.job
    nodes = len(job.nodes) - (0 if action == "replace" else 1)
    target = {"nnodes": nodes}
    if job.layout is None:
        return target
    if action not in ("drop_replica", "reconfigure"):
        return target | job.layout.as_target()
    left = job.layout.on(job.gpus * nodes // max(len(job.nodes), 1))
    layout = replace(job.layout, replicas=max(min(left.replicas, job.layout.replicas - 1), 1))
    # Where micro-batches are not known, neither is how many a replica has to do from now on.
    is_exact = action == "drop_replica" and job.layout.micro_batches is not None
    more = {"grad_accum": share_micro_batches(job.layout).most} if is_exact else {}
    return target | layout.as_target() | more


def _resume(action: Action, situation: Situation) -> dict[str, str] | None:
    resume = resume_for(action, situation.job)
    return resume.as_document() if resume else None


def _identify(incident: Incident, generation: int, now_ns: int) -> str:
    """Return an id of its own for every decision, so that none is written over by the one that follows it."""
    return hashlib.sha256(f"{incident.id}/{generation}/{now_ns}".encode()).hexdigest()[:16]


def cost_of_nothing(decision: Decision) -> Cost:
    """Return what doing nothing would have cost."""
    if decision.action == "none":
        return decision.cost
    return next((option.cost for option in decision.alternatives if option.action == "none"), Cost())
