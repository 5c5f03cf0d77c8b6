"""Whether a schedule can be run as it stands: every complaint there is, found without any of the planner's code."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from planner.recovery.recycle.schedule import RELEASING, Kind, Op, Schedule, Worker

_LATE = 1e-6  # of the makespan: sums of floats in another order differ by less

Place = tuple[int, int, int]  # home pipeline, micro-batch, stage
_WHOLE: tuple[set[Kind], ...] = ({"forward", "both"}, {"forward", "input", "weight"})


def find_faults(schedule: Schedule, memory: Sequence[int] | int | None = None) -> list[str]:
    """Return a sentence for each thing that is wrong; none means that the schedule can be run.

    `memory` is how many micro-batches a worker may hold at a time, of all stages or of each.
    """
    by_place: dict[Place, dict[Kind, Op]] = defaultdict(dict)
    for ops in schedule.ops.values():
        for op in ops:
            by_place[op.pipeline, op.micro_batch, op.stage][op.kind] = op
    return [
        *_check_count(schedule),
        *_check_workers(schedule),
        *_check_places(schedule, by_place),
        *_check_order(schedule, by_place),
        *_check_overlap(schedule),
        *_check_memory(schedule, memory),
    ]


def _check_count(schedule: Schedule) -> Iterator[str]:
    ops = [(op.kind, op.pipeline, op.micro_batch, op.stage) for some in schedule.ops.values() for op in some]
    yield from (f"{what} is done {times} times" for what, times in Counter(ops).items() if times > 1)


def _check_workers(schedule: Schedule) -> Iterator[str]:
    shape = schedule.shape
    for worker, ops in schedule.ops.items():
        if not (0 <= worker.pipeline < shape.pipelines and 0 <= worker.stage < shape.stages):
            yield f"{worker} is not on the grid"
        if worker in schedule.failed and ops:
            yield f"{worker} has failed and is given work"
        yield from (f"{op} is listed under {worker}" for op in ops if op.worker != worker)
        yield from (f"{op} is done at another stage" for op in ops if op.stage != worker.stage)


def _check_places(schedule: Schedule, by_place: Mapping[Place, Mapping[Kind, Op]]) -> Iterator[str]:
    shape = schedule.shape
    wanted = {
        (pipeline, micro_batch, stage)
        for pipeline in range(shape.pipelines)
        for micro_batch in range(shape.micro_batches)
        for stage in range(shape.stages)
    }
    yield from (f"{place} is not part of the step" for place in by_place.keys() - wanted)
    for place in wanted:
        ops = by_place.get(place, {})
        home = Worker(place[0], place[2])
        if set(ops) not in _WHOLE:
            yield f"{place} is done in {sorted(ops)}, which is not one forward and one backward"
        if len({op.worker for op in ops.values()}) > 1:
            yield f"{place} is spread over several workers"
        if home not in schedule.failed and any(op.worker != home for op in ops.values()):
            yield f"{place} is done away from home, though {home} is live"


def _check_order(schedule: Schedule, by_place: Mapping[Place, Mapping[Kind, Op]]) -> Iterator[str]:
    hop, late = schedule.times.transfer, _LATE * schedule.makespan
    for (pipeline, micro_batch, stage), ops in by_place.items():
        above = by_place.get((pipeline, micro_batch, stage - 1), {})
        below = by_place.get((pipeline, micro_batch, stage + 1), {})
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
