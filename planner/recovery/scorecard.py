"""What Lockstep's advice would have been worth, held against what incidents turned out to be.

Meant for the weeks in which it only observes: how many GPU-hours its cures would have saved, and how many healthy
nodes it would have drained.
"""

from collections.abc import Iterable, Mapping

from pydantic import Field

from lockstep.decision import Decision
from lockstep.execution import Outcome
from lockstep.verdict import Frozen
from planner.recovery.decide import cost_of_nothing


class Scorecard(Frozen):
    """The advice of some time in figures; hours are those that were forecast when it was given."""

    advised: int = Field(description="incidents for which something was advised")
    confirmed: int = Field(description="of these, incidents whose outcome is known")
    right: int
    wrong: int
    precision: float | None = Field(description="right ones among those whose outcome is known; None: none is")
    saved_gpu_hours: float = Field(description="by right advice, against doing nothing")
    wasted_gpu_hours: float = Field(description="standstill by wrong advice, for nothing")
    wrongly_drained: tuple[str, ...] = Field(description="nodes that would have been drained, and were healthy")


def score(decisions: Iterable[Decision], outcomes: Mapping[str, Outcome], gpus: Mapping[str, int]) -> Scorecard:
    """Return the score of the newest advice of each incident; `gpus` are those of each decision's job."""
    newest = _newest_advice(decisions)
    known = [(decision, outcomes[name]) for name, decision in newest.items() if name in outcomes]
    right = [decision for decision, outcome in known if outcome.was_right]
    wrong = [decision for decision, outcome in known if not outcome.was_right]
    return Scorecard(
        advised=len(newest),
        confirmed=len(known),
        right=len(right),
        wrong=len(wrong),
        precision=len(right) / len(known) if known else None,
        saved_gpu_hours=round(sum(map(_saved, right)), 2),
        wasted_gpu_hours=round(sum(_standstill(decision, gpus.get(decision.job, 0)) for decision in wrong), 2),
        wrongly_drained=tuple(sorted({part.node for each in wrong for part in each.isolate if part.node})),
    )


def _newest_advice(decisions: Iterable[Decision]) -> dict[str, Decision]:
    # What follows from an incident for other jobs, or once its node is back, says nothing about who was at fault.
    own = [decision for decision in decisions if decision.isolate or not decision.part_of]
    advice = [decision for decision in own if decision.action != "none"]
    return {decision.incident: decision for decision in sorted(advice, key=lambda each: (each.created_ns, each.id))}


def _saved(decision: Decision) -> float:
    nothing, chosen = cost_of_nothing(decision).gpu_hours, decision.cost.gpu_hours
    return nothing - chosen if nothing is not None and chosen is not None else 0.0


def _standstill(decision: Decision, gpus: int) -> float:
    return gpus * (decision.cost.downtime_s or 0.0) / 3600
