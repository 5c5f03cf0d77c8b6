"""Whether a schedule can be run as it stands: every complaint there is, found without any of the planner's code."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from lockstep.pipeline.schedule import RELEASING, Kind, Op, Schedule, Shape, Times, Worker, find_load

_LATE = 1e-6  # of the makespan: sums of floats in another order differ by less

Cell = tuple[int, int, int]  # home pipeline, micro-batch, stage
_WHOLE: tuple[set[Kind], ...] = ({"forward", "both"}, {"forward", "input", "weight"})


def find_faults(schedule: Schedule, memory: Sequence[int] | int | None = None) -> list[str]:
    """Return a sentence for each thing that is wrong; none means that the schedule can be run.

    `memory` is how many micro-batches a worker may hold at a time, of all stages or of each.
    """
    by_cell: dict[Cell, dict[Kind, Op]] = defaultdict(dict)
    done: list[tuple[Kind, int, int, int]] = []
    for op in (op for ops in schedule.ops.values() for op in ops):
        by_cell[op.pipeline, op.micro_batch, op.stage][op.kind] = op
        done.append((op.kind, op.pipeline, op.micro_batch, op.stage))
    return [
        *(f"{what} is done {times} times" for what, times in Counter(done).items() if times > 1),
        *_check_workers(schedule),
        *_check_cells(schedule, by_cell),
        *_check_order(schedule, by_cell),
        *_check_overlap(schedule),
        *_check_memory(schedule, memory),
    ]


def _check_workers(schedule: Schedule) -> Iterator[str]:
    shape = schedule.shape
    for worker, ops in schedule.ops.items():
        if not (0 <= worker.pipeline < shape.pipelines and 0 <= worker.stage < shape.stages):
            yield f"{worker} is not on the grid"
        if worker in schedule.failed and ops:
            yield f"{worker} has failed and is given work"
        yield from (f"{op} is listed under {worker}" for op in ops if op.worker != worker)
        yield from (f"{op} is done at another stage" for op in ops if op.stage != worker.stage)


def _check_cells(schedule: Schedule, by_cell: Mapping[Cell, Mapping[Kind, Op]]) -> Iterator[str]:
    shape = schedule.shape
    wanted = set(product(range(shape.pipelines), range(shape.micro_batches), range(shape.stages)))
    yield from (f"{index} is not part of the step" for index in by_cell.keys() - wanted)
    for index in wanted:
        ops = by_cell.get(index, {})
        home = Worker(index[0], index[2])
        if set(ops) not in _WHOLE:
            yield f"{index} is done in {sorted(ops)}, which is not one forward and one backward"
        if len({op.worker for op in ops.values()}) > 1:
            yield f"{index} is spread over several workers"
        if home not in schedule.failed and any(op.worker != home for op in ops.values()):
            yield f"{index} is done away from home, though {home} is live"


def _check_order(schedule: Schedule, by_cell: Mapping[Cell, Mapping[Kind, Op]]) -> Iterator[str]:
    hop, late = schedule.times.transfer, _LATE * schedule.makespan
    for (pipeline, micro_batch, stage), ops in by_cell.items():
        above = by_cell.get((pipeline, micro_batch, stage - 1), {})
        below = by_cell.get((pipeline, micro_batch, stage + 1), {})
        back = ops.get("both") or ops.get("input")
        pairs = [
            (above.get("forward"), ops.get("forward"), hop),
            (below.get("both") or below.get("input"), back, hop),
            (ops.get("forward"), back, 0.0),
            (ops.get("input"), ops.get("weight"), 0.0),
        ]
        for first, second, gap in pairs:
            if first and second and second.start < first.end + gap - late:
                yield f"{second} begins before {first} is done and there"


def _check_overlap(schedule: Schedule) -> Iterator[str]:
    late = _LATE * schedule.makespan
    for ops in schedule.ops.values():
        for op in ops:
            if abs(op.end - op.start - schedule.times.lasts(op.kind, op.stage)) > late or op.start < -late:
                yield f"{op} does not last as long as it should"
        yield from (f"{two} begins before {one} ends" for one, two in pairwise(ops) if two.start < one.end - late)


def _check_memory(schedule: Schedule, memory: Sequence[int] | int | None) -> Iterator[str]:
    for worker, ops in schedule.ops.items():
        limit = memory if memory is None or isinstance(memory, int) else memory[worker.stage]
        if limit is None:
            continue
        # What is let go in the same moment makes room for what begins.
        changes = [(op.start, 1) for op in ops if op.kind == "forward"]
        changes += [(op.end, -1) for op in ops if op.kind in RELEASING]
        held = most = 0
        for _, change in sorted(changes):
            held += change
            most = max(most, held)
        if most > limit:
            yield f"{worker} holds {most} micro-batches at a time, which is more than {limit}"


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

    Each bound follows from one worker or one micro-batch, so they hold for every schedule, found or not:

    - The busiest worker of stage s has n micro-batches, the ceiling of M D / (D - f), and does all their work itself.
    - Nothing comes back to a stage before its first micro-batch went down and up again; until then a worker has only
      forwards to do, at most as many as it may hold. What is left of the wait is idle.
    - The last micro-batch of a stage further down still has to come up.
    - A worker that may hold m micro-batches, each for at least a round trip, needs n / m of them one after another.

    `closed_form` is 3 max(M + P - 1, n) in equal slots. Its first term is what coupled 1F1B needs; a decoupled
    backward can be below it, since weights fill the bubble. So it is a promise (no slower than
    without failures) and no bound.

    >>> shape, slot = Shape(stages=4, pipelines=3, micro_batches=6), (1.0,) * 4
    >>> find_bound(shape, Times(slot, slot, slot), {Worker(1, 2)}, is_decoupled=True)
    Bound(period=27.0, makespan=29.0)
    """
    loads = [find_load(shape, failed, stage) for stage in range(shape.stages)]
    held = [min(load, most) for load, most in zip(loads, memory or loads, strict=True)]
    transit = _Transit(times, is_decoupled)
    spans = [_span(transit, stage, loads, held[stage]) for stage in range(shape.stages)]
    tails = [transit.down(0, stage) + span for stage, span in enumerate(spans)]
    return Bound(period=max(spans), makespan=max(tails))


def closed_form(shape: Shape, times: Times, failed: Collection[Worker]) -> float:
    """Return the period that re-routing promises: as without failures, unless a stage has more work than fits.

    In equal slots this is 3 max(M + P - 1, ceil(M D / (D - f))).
    """
    slowest = max(times.work(stage) for stage in range(shape.stages))
    loads = [find_load(shape, failed, stage) * times.work(stage) for stage in range(shape.stages)]
    return max((shape.micro_batches + shape.stages - 1) * slowest, *loads)


Split = tuple[int, ...]  # failed workers of each stage


def spread_failures(shape: Shape, times: Times, failures: int) -> Split | None:
    """Return the split of so many failures with the least period; None where no stage could keep a copy.

    One more failure only adds to one stage, so that plans for n and n - 1 failures differ in one place.
    """
    split = (0,) * shape.stages
    for _ in range(failures):
        open_to = [stage for stage in range(shape.stages) if split[stage] < shape.pipelines - 1]
        if not open_to:
            return None
        more = [(*split[:stage], split[stage] + 1, *split[stage + 1 :]) for stage in open_to]
        split = min(more, key=lambda one: _rank_split(shape, times, one))
    return split


def place_failures(split: Split) -> frozenset[Worker]:
    """Return failed workers in places that stand for all with this split: in turn over the pipelines."""
    return frozenset(Worker(number, stage) for stage, lost in enumerate(split) for number in range(lost))


def _rank_split(shape: Shape, times: Times, split: Split) -> tuple[float, float]:
    """Return the work of the busiest stage that has lost somebody, then the least period."""
    failed = place_failures(split)
    loads = [find_load(shape, failed, stage) * times.work(stage) for stage, lost in enumerate(split) if lost]
    return max(loads), find_bound(shape, times, failed, is_decoupled=True).period


@dataclass(frozen=True, slots=True)
class _Transit:
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


def _span(transit: _Transit, stage: int, loads: Sequence[int], held: int) -> float:
    """Return the least time from the first start to the last end at a stage."""
    times, last = transit.times, len(loads) - 1
    round_trip = (
        transit.down(stage, last)
        + times.forward[last]
        + transit.up(stage, last)
        + transit.back(last)
        - transit.back(stage)
    )
    idle = max(0.0, round_trip - held * times.forward[stage])
    alone = loads[stage] * times.work(stage) + idle
    trips = -(-loads[stage] // held) * (round_trip + transit.back(stage) + transit.after(stage))
    below = [_through(transit, stage, other, loads[other]) for other in range(stage, last + 1)]
    return max(alone, trips, *below)


def _through(transit: _Transit, stage: int, other: int, load: int) -> float:
    """Return how long a stage is at work because another one below has to do its load in between."""
    there = load * (transit.times.forward[other] + transit.back(other))
    return transit.down(stage, other) + there + transit.up(stage, other) + transit.after(stage)
