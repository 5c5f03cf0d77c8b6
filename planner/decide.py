"""One decision per incident: the cheapest recovery that its severity allows, its price, and what every other costs.

A job that stands still is answered at once. A slow one is answered once waiting has cost as much as the answer would
(break_even), and its restart waits for the next checkpoint where that is cheaper. What must not be done without a
person is proposed, with the reason (limits.py).
"""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Cost, Decision, Isolation, ManualReason, Mode, Option
from lockstep.in_job import IN_JOB_ACTS
from lockstep.sections import PlannerSettings
from lockstep.verdict import Incident
from planner.checkpoints.intervals import Saving, Slowness, Timing, advise_interval, choose_timing, say_time
from planner.context import ClusterFacts, Context, Durations, JobFacts, horizon_s, is_in_the_fabric, node_of
from planner.controllers.protocol import ControllerAct, Wanted, list_commands
from planner.cost import MOVES, count_lost_replicas, price_of_acting, resume_for, share_micro_batches, weigh
from planner.escalation import LEVELS, Level, Severity
from planner.limits import SHRINKING, Constraints, find_hold


def find_break_even(lost: float, now_ns: int, lost_per_hour: float, price_gpu_hours: float) -> int | None:
    """Return when the GPU-hours lost since the fault began reach the price of acting; None: never at this rate.

    Nobody knows how long a slow part stays slow. Whoever acts when the loss so far equals the price of acting never
    pays more than twice what somebody who knew would have paid, and cheap cures come before dear ones by themselves.

    >>> find_break_even(5.0, now_ns=7, lost_per_hour=10.0, price_gpu_hours=4.0)
    7
    """
    if lost >= price_gpu_hours:
        return now_ns
    if lost_per_hour <= 0:
        return None
    return now_ns + round((price_gpu_hours - lost) / lost_per_hour * 3600 * NS_PER_S)


_FAR = 2.0  # times beyond what the doubt about the rate leaves open: Young's optimum is flat around its bottom
LIFETIME_S = 600.0  # of a decision: an old one rests on an old verdict
_RECHECK_S = 10.0  # after deciding to do nothing; a fifth of it where the job stands still
_WORTH_IT = 0.01  # of the time; less is not worth a change of a job's settings


def advise_saving(job: JobFacts, cluster: ClusterFacts) -> str | None:
    """Return how often a job should save, where it saves far too seldom or too often; None: it does well, or unknown.

    How long a save holds the job up is not in the telemetry: it is taken to last as long as loading one.
    """
    rate, every_s, resume = cluster.failure_rate, job.save_every_s, job.resume
    if rate is None or every_s is None or resume is None or resume.load_s <= 0 or not job.nodes:
        return None
    best = advise_interval(rate, Saving(len(job.nodes), resume.load_s, interval_s=every_s))
    is_far = every_s * _FAR < best.low_s or (best.high_s is not None and every_s > best.high_s * _FAR)
    if not is_far or (best.lost_share_now or 0.0) - best.lost_share < _WORTH_IT:
        return None
    return f"{job.job} saves every {say_time(every_s)}: {best.reason} (if a save lasts as long as loading one)"


@dataclass(frozen=True, slots=True)
class Choice:
    """An option and the reason that bound."""

    option: Option
    reason: str
    until_ns: int | None = None  # when the answer will be another one, if nothing else changes; None: it stays


def decide(
    incident: Incident,
    context: Context,
    level: Level,
    constraints: Constraints,
    settings: PlannerSettings,
    generation: int,
    now_ns: int,
) -> Decision:
    """Return what to do about an incident, and why."""
    options = weigh(context)
    choice = choose(options, context, level, now_ns)
    action = choice.option.action
    wait_s = _RECHECK_S / 5 if context.stands_still else _RECHECK_S
    lifetime_s = wait_s if action == "none" else LIFETIME_S
    expires_ns = min(now_ns + int(lifetime_s * NS_PER_S), choice.until_ns or sys.maxsize)
    hold = find_hold(incident, action, context, constraints, settings, now_ns)
    manual = find_manual(action, settings.mode_of(action), hold, context.cluster)
    job, resume = context.job, resume_for(action, context.job)
    decision = Decision(
        id=hashlib.sha256(f"{incident.id}/{generation}/{now_ns}".encode()).hexdigest()[:16],  # none is written over
        job=incident.job,
        attempt=incident.attempt,
        incident=incident.id,
        generation=generation,
        created_ns=now_ns,
        weighed_ns=now_ns,
        expires_ns=expires_ns,
        horizon_s=horizon_s(job, context.cluster),
        severity=level.severity,
        mode=_MODES.get(manual, settings.mode_of(action)),
        action=action,
        isolate=_isolations(action, context, settings, now_ns),
        target=_target(action, context),
        resume=resume.as_document() if resume else None,
        cost=choice.option.cost,
        alternatives=tuple(option for option in options if option.action != action),
        verdicts=(context.verdict.id, *(verdict.id for verdict in context.also_dead)),
        part=context.verdict.component,
        grade=context.verdict.grade,
        evidence_age_s=max(now_ns - context.verdict.last_seen_ns, 0) / NS_PER_S,
        manual_because=manual,
        inspect=list_inspections(context) if action == "none" and not job.is_over else (),
        reason=choice.reason,
        held_because=hold,
        advice=advise_saving(job, context.cluster),
        checkpoint_age_s=resume.age_s if (resume := resume_for(action, job) or job.resume) else None,
    )
    return decision.model_copy(update={"by_hand": _list_by_hand(decision, context)})


_NEEDED: Mapping[Action, frozenset[ControllerAct]] = {
    "reattempt": frozenset({"reattempt"}),
    "restart_process": frozenset({"restart"}),
    **dict.fromkeys(SHRINKING, frozenset[ControllerAct]({"isolate", "restart"})),
    **dict.fromkeys(IN_JOB_ACTS, frozenset[ControllerAct]({"isolate"})),  # the rest the job does
}
_MODES: Mapping[ManualReason | None, Mode] = {"no_controller": "observe", "unable": "observe", "held": "propose"}


def find_manual(action: Action, mode: Mode, hold: str | None, cluster: ClusterFacts) -> ManualReason | None:
    """Return why a person has to act; None: it happens by itself, as paths do, or nothing is to be done."""
    needed = _NEEDED.get(action)
    if needed and not cluster.can_restart:
        return "no_controller"
    if needed and not needed <= cluster.acts:
        return "unable"
    if mode == "execute" or not needed:
        return "held" if hold and mode == "execute" else None
    return "observed" if mode == "observe" else "proposed"


def _list_by_hand(decision: Decision, context: Context) -> tuple[str, ...]:
    """Return what somebody types who does it without us."""
    nodes = tuple(part.node for part in decision.isolate if part.node)
    # Without our mark in front, so that nobody gives back what a person took.
    count, reason = (decision.target or {}).get("nnodes"), f"{context.verdict.reason} (incident {decision.incident})"
    is_fewer = count is not None and count < len(context.job.nodes)
    wanted = Wanted(decision.job, nodes, reason, count if is_fewer else None, (decision.resume or {}).get("convert"))
    return list_commands(context.cluster.controller, decision.action, wanted)


_INSPECTIONS: Mapping[str, tuple[str, ...]] = {
    "global_slow": ("storage and data loading", "clocks and power of all hosts", "what changed in code or settings"),
    "telemetry_lost": ("collectors and their spools", "the way from these hosts to the gateway"),
    "software": ("the program's own log and stacks", "what changed in code, data or settings"),
}
_OF_PART: Mapping[str, str] = {
    "nic": "error counters, cable and optics",
    "link": "error counters, cable and optics",
    "gpu": "clock, temperature and XIDs",
    "host": "power, console and kernel log",
    "nvlink": "error counters",
    "pcie": "width, speed and replays",
}


def list_inspections(context: Context) -> tuple[str, ...]:
    """Return what a person should look at where no act of ours is the answer."""
    component = context.verdict.component
    if is_in_the_fabric(component, context.hosts):
        return (f"error counters of both ports of {component}", f"whether {component} can leave the routing")
    kind, fault_class = component.partition(":")[0], context.verdict.fault_class
    if kind in _OF_PART and fault_class not in _INSPECTIONS:
        return (f"{_OF_PART[kind]} of {component}",)
    hung = ("stacks of the ranks that wait",) if context.stands_still else ()
    return _INSPECTIONS.get(fault_class, hung)


def leave_to(made: Decision, lead: Decision) -> Decision:
    """Return that nothing is to be done about an incident, because another one's decision does it."""
    nothing = next(option for option in made.alternatives if option.action == "none")
    others = (
        Option(action=made.action, cost=made.cost, reason=made.reason),
        *(each for each in made.alternatives if each is not nothing),
    )
    nodes = " and ".join(part.node for part in lead.isolate if part.node)
    emptied = {"isolate": (), "target": None, "resume": None, "by_hand": (), "manual_because": None}
    told = {
        "action": "none",
        "cost": nothing.cost,
        "alternatives": others,
        "answered_by": lead.id,
        "held_because": None,
        "expires_ns": lead.expires_ns,
        "reason": f"decision {lead.id} takes {nodes} out of service together",
    }
    return made.model_copy(update=emptied | told)


def choose(options: list[Option], context: Context, level: Level, now_ns: int) -> Choice:
    """Return the cheapest option that the severity allows and whose time has come."""
    nothing = next(option for option in options if option.action == "none")
    if context.job.is_over:
        free = Option(action="none", cost=Cost(gpu_hours=0.0), reason="the job is over")
        return Choice(free, f"{context.job.job} is over: there is nothing to bring back")
    if context.verdict.fault_class == "telemetry_lost":
        return Choice(nothing, "nothing is known to be wrong with the hosts: see why their telemetry does not arrive")
    if level.is_exhausted:
        return Choice(nothing, f"a person is needed: {level.reason}, and nothing is left to try")
    allowed = find_allowed(options, context, level)
    known = [option for option in allowed if option.cost.gpu_hours is not None]
    if nothing not in known:
        return Choice(nothing, f"{context.verdict.component} is watched; what it costs the job is not known yet")
    best = known[0]
    if best is nothing:
        return Choice(nothing, _why_nothing(allowed, context))
    if context.stands_still:
        return Choice(best, _why(best, known, context))
    return _choose_timing(best, nothing, known, context, now_ns)


def find_allowed(options: list[Option], context: Context, level: Level) -> list[Option]:
    """Return what may be done at an incident's level; of a job that stands still, up to the next with an answer."""
    actions, allowed = set[Action](), list[Option]()
    for severity in range(level.severity, 0, -1):
        actions |= {*LEVELS[cast(Severity, severity)]}
        allowed = [option for option in options if option.action in actions]
        if not context.stands_still or any(
            each.cost.gpu_hours is not None for each in allowed if each.action != "none"
        ):
            return allowed
    return allowed


def _choose_timing(best: Option, nothing: Option, known: list[Option], context: Context, now_ns: int) -> Choice:
    """Return the cure of a slow job when its time has come, else to wait for it."""
    per_hour = lost_per_hour(context)
    price = price_of_acting(best, context.job)
    lost = context.verdict.lost_gpu_hours(now_ns) or 0.0
    due_ns = find_break_even(lost, now_ns, per_hour, price)
    if lost < price:
        left_s = ((due_ns or now_ns) - now_ns) / NS_PER_S
        message = f"{best.action} costs {price:.1f} GPU-hours at once and waiting has cost {lost:.1f} so far"
        return Choice(nothing, f"{message}: it is time in {left_s:.0f} s, if the fault lasts", due_ns)
    timing = _find_timing(best, context, now_ns)
    if timing is not None and timing.waits:
        message = timing.reason.removeprefix("wait: ")
        return Choice(nothing, f"{best.action} waits for the next checkpoint: {message}", timing.until_ns)
    return Choice(best, _why(best, known, context))


def lost_per_hour(context: Context) -> float:
    """Return the GPU-hours that every hour of waiting costs, as the incident's page has it."""
    return context.verdict.lost_per_hour or 0.0


def _find_timing(best: Option, context: Context, now_ns: int) -> Timing | None:
    """Return whether a restart elsewhere is best made now or after the next checkpoint; None: it is no such cure."""
    job, resume = context.job, resume_for(best.action, context.job)
    if best.action not in MOVES or resume is None:
        return None
    next_ns = None if job.next_save_s is None else now_ns + int(job.next_save_s * NS_PER_S)
    per_s = len(job.nodes) * context.cluster.failures_per_node_day / 86_400
    slowness = Slowness(context.verdict.fault_class, context.speed_now, resume.age_s, next_ns, per_s)
    return choose_timing(slowness, now_ns)


def _why(best: Option, known: list[Option], context: Context) -> str:
    second = next((option for option in known if option.action != best.action), None)
    reason = f"{best.reason}: {best.cost.gpu_hours} GPU-hours are expected to be lost"
    if second is not None:
        other = "if nothing is done" if second.action == "none" else f"with the next best, {second.action}"
        reason += f", and {second.cost.gpu_hours} {other}"
    return f"{context.verdict.component}: {reason}"


def _why_nothing(allowed: list[Option], context: Context) -> str:
    unavailable = [option for option in allowed if option.cost.gpu_hours is None]
    message = (
        f"{context.verdict.component} is watched; waiting costs {lost_per_hour(context):.1f} GPU-hours every hour"
    )
    if context.verdict.fault_class == "global_slow" and not context.stands_still:
        return f"{message}; nobody stands out, so no restart and no other node would change it"
    if not context.stands_still or not unavailable:
        return message
    reasons = [f"{option.action} ({option.reason.removeprefix('unavailable: ')})" for option in unavailable]
    return f"{message}; options unavailable: {', '.join(reasons)}"


def _isolations(action: Action, context: Context, settings: PlannerSettings, now_ns: int) -> tuple[Isolation, ...]:
    if action not in SHRINKING:
        return ()
    until_ns = now_ns + int(settings.test_after_s * NS_PER_S) if settings.test_command else None
    blamed = [(context.part, context.verdict), *((verdict.component, verdict) for verdict in context.also_dead)]
    return tuple(
        Isolation(
            component=part,
            node=node_of(part, context.hosts),
            reason=verdict.reason,
            evidence=(verdict.id,),
            until_ns=until_ns,
        )
        for part, verdict in blamed
    )


def _target(action: Action, context: Context) -> dict[str, int] | None:
    """Return what the job looks like afterwards, as far as the layout is known; the global batch stays."""
    if action not in SHRINKING:
        return None
    job = context.job
    nodes = len(job.nodes) - (0 if action == "replace" else len(context.nodes))
    target = {"nnodes": nodes}
    if job.layout is None:
        return target
    if action not in ("drop_replica", "reconfigure"):
        return target | job.layout.as_target()
    lost = min(count_lost_replicas(context), job.layout.replicas - 1) if action == "drop_replica" else 1
    left = job.layout.on(job.gpus * nodes // max(len(job.nodes), 1))
    layout = replace(job.layout, replicas=max(min(left.replicas, job.layout.replicas - lost), 1))
    # Where micro-batches are not known, neither is how many a replica has to do from now on.
    is_exact = action == "drop_replica" and job.layout.micro_batches is not None
    more = {"grad_accum": share_micro_batches(job.layout, lost).most} if is_exact else {}
    return target | layout.as_target() | more


def cost_of_nothing(decision: Decision) -> Cost:
    """Return what doing nothing would have cost."""
    if decision.action == "none":
        return decision.cost
    return next((option.cost for option in decision.alternatives if option.action == "none"), Cost())


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """How this site decides."""

    settings: PlannerSettings = field(default_factory=PlannerSettings)
    settle_s: float = 60.0  # after an execution has ended, before its job gets another decision
    survey_s: float = 30.0  # between two looks at all jobs, at their nodes and their checkpoints

    @property
    def durations(self) -> Durations:
        """Return how long cures take here."""
        return Durations(start_s=self.settings.start_s)
