"""One decision per incident. Today it observes: it says what waiting costs, and does nothing.

Draining or replacing a part needs what this planner does not know yet (checkpoints, spares, a controller to
carry it out), so those options are listed with their cost unknown rather than guessed.
"""

import hashlib
from dataclasses import dataclass

from lockstep.decision import Cost, Decision, Isolation, Option
from lockstep.incident import Incident
from lockstep.verdict import Verdict

_HARDWARE = ("nic:", "link:", "gpu:", "host:", "switch:", "nvlink:", "pcie:")


@dataclass(frozen=True, slots=True)
class DecideOptions:
    """Limits on what a decision may say."""

    lifetime_ns: int = 600_000_000_000  # an old decision rests on an old verdict


def decide(incident: Incident, ranks: int, generation: int, now_ns: int, options: DecideOptions) -> Decision:
    """Return what to do about an incident of a job with that many ranks, and why."""
    verdict = incident.verdict
    waiting = _cost_of_waiting(verdict.impact.step_time_ratio, ranks)
    replace = Option(
        action="replace", cost=Cost(), reason="needs a checkpoint, a spare and a controller, none of which is known"
    )
    isolate = Isolation(component=verdict.component, reason=verdict.reason, evidence=(verdict.id,))
    return Decision(
        id=_identify(incident, generation, now_ns),
        job=incident.job,
        attempt=incident.attempt,
        incident=incident.id,
        generation=generation,
        created_ns=now_ns,
        expires_ns=now_ns + options.lifetime_ns,
        severity=2 if verdict.grade == "isolate" else 3,
        mode="observe",
        action="none",
        isolate=(isolate,) if _justifies_isolation(verdict) else (),
        cost=waiting,
        alternatives=(replace,),
        verdicts=(verdict.id,),
        reason=_reason(waiting, verdict.component),
    )


def _justifies_isolation(verdict: Verdict) -> bool:
    """Return whether a part would be drained for this; software never takes hardware out of service."""
    is_hardware = verdict.component.startswith(_HARDWARE) and verdict.fault_class != "software"
    return verdict.grade == "isolate" and is_hardware


def _cost_of_waiting(step_time_ratio: float | None, ranks: int) -> Cost:
    """Return what doing nothing costs: a job whose steps take twice as long loses half of its GPUs' time.

    >>> _cost_of_waiting(2.0, ranks=64).gpu_hours
    32.0
    """
    if step_time_ratio is None or step_time_ratio <= 0:
        return Cost(downtime_s=0.0)
    share = min(1.0, 1 / step_time_ratio)
    return Cost(downtime_s=0.0, waf_after=round(share, 4), gpu_hours=round(ranks * (1 - share), 2))


def _reason(waiting: Cost, component: str) -> str:
    if waiting.gpu_hours is None:
        return f"{component} is watched; what it costs the job is not known yet"
    return f"{component} is watched; waiting costs {waiting.gpu_hours} GPU-hours every hour"


def _identify(incident: Incident, generation: int, now_ns: int) -> str:
    """Return an id of its own for every decision, so that none is written over by the one that follows it."""
    return hashlib.sha256(f"{incident.id}/{generation}/{now_ns}".encode()).hexdigest()[:16]
