"""The staggered optimizer: each stage steps when its own gradients are there, and the step is judged afterwards.

Order of events of a stage: its last backward ends; its peers all-reduce their gradients; it steps, as if nothing had
to be clipped and all were finite; it begins the next step's work. When the last stage has all-reduced, the norm over
all stages and the flag for NaN are known everywhere, and each step is kept or taken back:

- finite, and the norm within the limit: every step was right and is kept;
- finite, and the norm above the limit: every stage takes its step back and steps again, scaled to the limit;
- not finite: every stage takes its step back and goes without one, as an unscaled loss would have it.

Work of the next step that began in between rests on the wrong parameters and is done again. So parameters after a
step are those of one optimizer for all, whatever the outcome.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal

from lockstep.errors import BadInput

Doing = Literal["all-reduce", "step", "validate", "roll back", "step again"]
Outcome = Literal["kept", "clipped", "skipped"]


@dataclass(frozen=True, slots=True)
class StageGradients:
    """What a stage has when its last backward ends."""

    done: float  # when, in the unit of the schedule's times
    squared_norm: float  # of its share of the gradients; NaN or infinite where they are


@dataclass(frozen=True, slots=True)
class StepCosts:
    """How long the parts of an optimizer step take."""

    all_reduce: float = 0.0
    step: float = 0.0
    validate: float = 0.0  # one small all-reduce over the stages
    roll_back: float = 0.0


@dataclass(frozen=True, slots=True)
class StageEvent:
    """Something a stage does, from when to when."""

    stage: int
    doing: Doing
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Settled:
    """How the optimizer step of all stages went."""

    outcome: Outcome
    scale: float  # by which the gradients of the step that holds were multiplied; 0 where there is none
    events: tuple[StageEvent, ...]  # in order of time
    stepped: tuple[float, ...]  # when each stage was free for the next step's work
    rolled_back: tuple[int, ...]  # stages that had stepped and took it back
    redone: tuple[int, ...]  # of these, the stages that may have begun the next step's work, and begin it again
    reason: str


def settle_step(stages: Sequence[StageGradients], costs: StepCosts, max_norm: float = float("inf")) -> Settled:
    """Return which stage steps when, and what is taken back; `max_norm` is the limit for clipping."""
    if not stages or not max_norm > 0:
        raise BadInput(f"a step needs a stage and a norm above zero, not {len(stages)} stages and {max_norm:g}")
    first = [event for stage, gradients in enumerate(stages) for event in _step_alone(stage, gradients, costs)]
    stepped = tuple(event.end for event in first if event.doing == "step")
    known = max(event.end for event in first if event.doing == "all-reduce")
    first += [StageEvent(stage, "validate", known, known + costs.validate) for stage in range(len(stages))]
    norm = (
        sqrt(sum(one.squared_norm for one in stages)) if all(isfinite(one.squared_norm) for one in stages) else None
    )
    outcome, scale = _judge(norm, max_norm)
    wrong = range(len(stages)) if outcome != "kept" else ()
    known += costs.validate
    again = [event for stage in wrong for event in _step_again(stage, max(known, stepped[stage]), costs, outcome)]
    return Settled(
        outcome=outcome,
        scale=scale,
        events=tuple(sorted([*first, *again], key=lambda event: (event.start, event.end, event.stage))),
        stepped=tuple(
            max([stepped[n], *(event.end for event in again if event.stage == n)]) for n in range(len(stages))
        ),
        rolled_back=tuple(wrong),
        redone=tuple(stage for stage in wrong if stepped[stage] < known),
        reason=_reason(outcome, norm, max_norm),
    )


def _step_alone(stage: int, gradients: StageGradients, costs: StepCosts) -> Iterator[StageEvent]:
    reduced = gradients.done + costs.all_reduce
    yield StageEvent(stage, "all-reduce", gradients.done, reduced)
    yield StageEvent(stage, "step", reduced, reduced + costs.step)


def _step_again(stage: int, since: float, costs: StepCosts, outcome: Outcome) -> Iterator[StageEvent]:
    back = since + costs.roll_back
    yield StageEvent(stage, "roll back", since, back)
    if outcome == "clipped":
        yield StageEvent(stage, "step again", back, back + costs.step)


def _judge(norm: float | None, max_norm: float) -> tuple[Outcome, float]:
    if norm is None:
        return "skipped", 0.0
    return ("kept", 1.0) if norm <= max_norm else ("clipped", max_norm / norm)


def _reason(outcome: Outcome, norm: float | None, max_norm: float) -> str:
    match outcome:
        case "kept":
            return f"all gradients are finite and their norm {norm:g} is within {max_norm:g}: every step is kept"
        case "clipped":
            return f"the norm {norm:g} is above {max_norm:g}: every stage steps again with scaled gradients"
        case "skipped":
            return "gradients are not finite: every stage takes its step back and goes without one"
