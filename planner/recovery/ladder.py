"""Which rung of the ladder an incident stands on: try again, restart the process, take the node away.

What was tried is read from the executions that were written down, so the ladder survives whoever climbed it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.clock import NS_PER_S
from lockstep.decision import Action
from lockstep.execution import Execution
from planner.recovery.taxonomy import Severity

# What may be done at each severity; whatever was right one rung below may still be right above.
RUNGS: Mapping[Severity, tuple[Action, ...]] = {
    3: ("none", "reroute", "reattempt"),
    2: ("none", "reroute", "restart_process"),
    1: ("none", "reroute", "recycle", "drop_replica", "reconfigure", "replace"),
}
_RUNG_OF: Mapping[str, Severity] = {"reroute": 3, "reattempt": 3, "restart_process": 2}  # all others: 1


def rung_of(action: str) -> Severity:
    """Return the severity at which an action is the usual answer."""
    return _RUNG_OF.get(action, 1)


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """How long a cure must hold to count as one."""

    memory_s: float = 3600.0  # the same part failing again within this time has not been cured
    failures: int = 2  # of taking the node away, after which a person is needed


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an incident stands."""

    severity: Severity
    reason: str
    is_raised: bool = False  # a cure in place was tried and did not hold
    is_exhausted: bool = False  # taking the node away was tried as well: a person is needed


def find_standing(
    base: Severity,
    why: str,
    component: str,
    tried: Sequence[Execution],
    now_ns: int,
    options: LadderOptions,
) -> Standing:
    """Return the severity of an incident: that of the error, raised by each cure of the same part that did not hold.

    `tried` are executions of the job, in any order; those about other parts or long ago do not count.
    """
    floor_ns = now_ns - int(options.memory_s * NS_PER_S)
    spent = [
        run
        for run in tried
        if run.component == component and run.outcome in ("done", "failed") and (run.ended_ns or 0) >= floor_ns
    ]
    severity, reason = base, why
    failed = sum(rung_of(run.action) == 1 for run in spent if run.outcome == "failed")
    for run in sorted(spent, key=lambda run: run.began_ns):
        rung = rung_of(run.action)
        if rung == 1:
            is_exhausted = run.state == "done" or failed >= options.failures
            return Standing(1, f"{run.action} did not cure {component}", True, is_exhausted)
        if rung <= severity:
            severity, reason = _above(rung), f"{run.action} did not cure {component}"
    return Standing(severity, reason, is_raised=severity < base)


def _above(rung: Severity) -> Severity:
    return 2 if rung == 3 else 1
