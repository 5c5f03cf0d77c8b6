"""With which step the stages of a new generation go on, and who gives whom the state of it.

All stages must go on with the same step. A worker can go back to the last settled steps that it keeps, and to its
snapshots; nobody is ever two settled steps ahead of another, so after a loss there is one that all can go back to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from lockstep.errors import LockstepError
from lockstep.verdict import Frozen


class Position(Frozen):
    """Where a worker is as it enters a generation."""

    replica: int
    stage: int
    is_live: bool = Field(description="it was in every generation since it began")
    steps: tuple[int, ...] = Field(description="settled steps of which it has the state; 0: it has only begun")


@dataclass(frozen=True, slots=True)
class Resumption:
    """How the stages go on."""

    step: int
    givers: Mapping[int, int]  # by stage, the replica whose state counts
    takers: Mapping[int, tuple[int, ...]]  # by stage, the replicas that get it


def agree_on_step(positions: Sequence[Position]) -> Resumption:
    """Return how to go on; LockstepError where no step is left of which every stage has the state."""
    by_stage: dict[int, list[Position]] = {}
    for each in positions:
        by_stage.setdefault(each.stage, []).append(each)
    known = [{step for each in stage for step in each.steps} for stage in by_stage.values()]
    common = set.intersection(*known)
    if not common:
        raise LockstepError(f"no step has its state left at all stages: {dict(zip(by_stage, known, strict=True))}")
    live = [set(each.steps) for each in positions if each.is_live]
    # Of two steps the one that all live workers have: a step that is done again is less than a state that is sent.
    step = max(common.intersection(*live) or common)
    givers = {stage: min(_rank(each, step) for each in found)[-1] for stage, found in by_stage.items()}
    takers = {
        stage: tuple(each.replica for each in found if each.replica != givers[stage] and not _holds(each, step))
        for stage, found in by_stage.items()
    }
    return Resumption(step, givers, takers)


def _rank(position: Position, step: int) -> tuple[bool, bool, int]:
    return step not in position.steps, not position.is_live, position.replica


def _holds(position: Position, step: int) -> bool:
    """Return whether a worker has the state that counts: at the beginning each may have drawn another."""
    return step in position.steps and (step > 0 or position.is_live)
