"""What no schedule can beat: lower bounds on the period and on the makespan, for any times, transfers and memory.

Each bound follows from one worker or one micro-batch, so they hold for every schedule, found or not:

- The busiest worker of stage s has n micro-batches, the ceiling of M D / (D - f), and does all their work itself.
- Nothing comes back to a stage before its first micro-batch went down and up again; until then a worker has only
  forwards to do, at most as many as it may hold. What is left of the wait is idle.
- The last micro-batch of a stage further down still has to come up.
- A worker that may hold m micro-batches, each for at least a round trip, needs n / m round trips one after another.

`closed_form` is 3 max(M + P - 1, n) in equal slots. Its first term is what coupled 1F1B needs; a decoupled backward
can be below it, since weights fill the bubble. So it is a promise (no slower than without failures) and no bound.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from planner.recovery.recycle.routing import find_load
from planner.recovery.recycle.schedule import Shape, Times, Worker


@dataclass(frozen=True, slots=True)
class Bound:
    """The least that any schedule needs."""

    period: float
    makespan: float


def find_bound(
    shape: Shape,
    times: Times,
    failed: Collection[Worker],
    is_decoupled: bool,
    memory: Sequence[int] | None = None,  # of each stage, in micro-batches held at a time by one worker
) -> Bound:
    """Return the least period and makespan that any schedule can have.

    >>> shape, slot = Shape(stages=4, pipelines=3, micro_batches=6), (1.0,) * 4
    >>> find_bound(shape, Times(slot, slot, slot), {Worker(1, 2)}, is_decoupled=True)
    Bound(period=27.0, makespan=29.0)
    """
    loads = [find_load(shape, failed, stage) for stage in range(shape.stages)]
    held = [min(load, most) for load, most in zip(loads, memory or loads, strict=True)]
    way = _Way(times, is_decoupled)
    spans = [_span(way, stage, loads, held[stage]) for stage in range(shape.stages)]
    tails = [way.down(0, stage) + span for stage, span in enumerate(spans)]
    return Bound(period=max(spans), makespan=max(tails))


def closed_form(shape: Shape, times: Times, failed: Collection[Worker]) -> float:
    """Return the period that re-routing promises: as without failures, unless a stage has more work than fits.

    In equal slots this is 3 max(M + P - 1, ceil(M D / (D - f))).
    """
    slowest = max(times.work(stage) for stage in range(shape.stages))
    loads = [find_load(shape, failed, stage) * times.work(stage) for stage in range(shape.stages)]
    return max((shape.micro_batches + shape.stages - 1) * slowest, *loads)


@dataclass(frozen=True, slots=True)
class _Way:
    """How long a micro-batch is under way between stages."""

    times: Times
    is_decoupled: bool

    def down(self, first: int, last: int) -> float:
        """From the start of the forward at one stage to that at a later one."""
        return sum(self.times.forward[stage] + self.times.transfer for stage in range(first, last))

    def back(self, stage: int) -> float:
        """One backward on which the stage before waits."""
        return self.times.input[stage] + (0.0 if self.is_decoupled else self.times.weight[stage])

    def up(self, first: int, last: int) -> float:
        """From the end of the backward at a later stage to that at an earlier one."""
        return sum(self.times.transfer + self.back(stage) for stage in range(first, last))

    def after(self, stage: int) -> float:
        """What is left of a micro-batch after its last backward on which somebody waits."""
        return self.times.weight[stage] if self.is_decoupled else 0.0


def _span(way: _Way, stage: int, loads: Sequence[int], held: int) -> float:
    """Return the least time from the first start to the last end at a stage."""
    times, last = way.times, len(loads) - 1
    turn = way.down(stage, last) + times.forward[last] + way.up(stage, last) + way.back(last) - way.back(stage)
    idle = max(0.0, turn - held * times.forward[stage])
    alone = loads[stage] * times.work(stage) + idle
    trips = -(-loads[stage] // held) * (turn + way.back(stage) + way.after(stage))
    below = [_through(way, stage, other, loads[other]) for other in range(stage, last + 1)]
    return max(alone, trips, *below)


def _through(way: _Way, stage: int, other: int, load: int) -> float:
    """Return how long a stage is at work because another one below has to do its load in between."""
    there = load * (way.times.forward[other] + way.back(other))
    return way.down(stage, other) + there + way.up(stage, other) + way.after(stage)
