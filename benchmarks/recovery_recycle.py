"""ReCycle's claims: schedules within a slot of the lower bound, ahead of dropping pipelines, and planned quickly."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import perf_counter

from benchmarks.figures import Figure, Note
from planner.recovery.recycle.bounds import closed_form, find_bound
from planner.recovery.recycle.checking import find_faults
from planner.recovery.recycle.comparing import compare
from planner.recovery.recycle.planning import plan_schedule
from planner.recovery.recycle.schedule import Schedule, Shape, Times, Worker, unit_times

# (stages, pipelines, micro-batches) of the paper's testbed, and one with twice the micro-batches
_GRIDS = (Shape(2, 16, 32), Shape(4, 8, 32), Shape(8, 4, 32), Shape(8, 4, 64))
_FAILURES = (1, 2, 3, 4)
_LARGE = Shape(16, 16, 64)
_RANDOM, _RANDOM_QUICK = 100, 10
_SEED = 20240514
_UNEVEN = 0.3  # times of stages differ by so much, up and down


@dataclass(frozen=True)
class Point:
    """One schedule beside its bounds, in slots of the mean piece of work."""

    above_bound: float
    above_promise: float
    seconds: float


def measure_recycle(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of schedules around failed workers."""
    note("schedules around failed workers")
    grid = [
        _score(shape, unit_times(shape.stages), spread(shape, failures))
        for shape in (_GRIDS[:2] if quick else _GRIDS)
        for failures in _FAILURES
    ]
    note("schedules of random grids")
    even, uneven = (
        [_score(*case) for case in random_cases(_RANDOM_QUICK if quick else _RANDOM, is_even)]
        for is_even in (True, False)
    )
    return (
        *_claim("grids of the paper, 1 to 4 failures", grid, floor=1.0),
        *_claim("random grids, equal times", even),
        *_claim("random grids, unequal times and transfers", uneven),
        *_compare_dropping(_GRIDS[:2] if quick else _GRIDS),
        *_time(note, [_GRIDS[0]] if quick else [_GRIDS[3], _LARGE]),
    )


def spread(shape: Shape, failures: int) -> frozenset[Worker]:
    """Return failures in different stages and pipelines, from the last stage upwards."""
    stages, pipelines = shape.stages, shape.pipelines
    return frozenset(
        Worker((number + number // stages) % pipelines, (-1 - number) % stages) for number in range(failures)
    )


def random_cases(number: int, is_even: bool) -> Iterator[tuple[Shape, Times, frozenset[Worker]]]:
    """Yield grids with failures in some stages; always the same ones."""
    random = Random(_SEED + is_even)  # noqa: S311  # cases, not secrets
    for _ in range(number):
        stages, pipelines = random.randint(2, 8), random.randint(2, 8)
        shape = Shape(stages, pipelines, stages * random.choice((1, 2, 3, 4)))
        hit = random.sample(range(stages), random.randint(1, stages))
        failed = frozenset(Worker(random.randrange(pipelines), stage) for stage in hit)
        forward, back, weight = ([random.uniform(1 - _UNEVEN, 1 + _UNEVEN) for _ in range(stages)] for _ in range(3))
        uneven = Times(forward, back, weight, transfer=random.choice((0.0, 0.1)))
        yield shape, unit_times(stages) if is_even else uneven, failed


def _score(shape: Shape, times: Times, failed: frozenset[Worker]) -> Point:
    begin = perf_counter()
    made = plan_schedule(shape, times, failed)
    seconds = perf_counter() - begin
    _check(made)
    bound = find_bound(shape, times, failed, is_decoupled=True)
    return Point(made.period - bound.period, made.period - closed_form(shape, times, failed), seconds)


def _check(made: Schedule) -> None:
    faults = find_faults(made)
    if faults:
        raise AssertionError(f"a schedule that cannot be run: {faults[0]}")


def _claim(name: str, points: list[Point], floor: float | None = None) -> Iterator[Figure]:
    within = sum(point.above_bound <= 1 + 1e-6 for point in points) / len(points)
    exact = sum(point.above_bound <= 1e-6 for point in points) / len(points)
    worst = max(point.above_bound for point in points)
    promise = max(point.above_promise for point in points)
    beside = f"{len(points)} schedules, all checked; at the bound: {exact:.0%}; worst {worst:.2f} above it"
    yield Figure(f"{name}: period within 1 slot of the bound", within, "", floor, 1.0, reference=beside)
    yield Figure(f"{name}: most above the closed form", promise, "slots", 1.0, 0.0, higher_is_better=False)


def _compare_dropping(shapes: tuple[Shape, ...]) -> Iterator[Figure]:
    for shape in shapes:
        made = compare(shape, unit_times(shape.stages), spread(shape, 1))
        assert made.dropped is not None
        name = f"{shape.stages} x {shape.pipelines}, {shape.micro_batches} micro-batches, 1 failure: throughput kept"
        beside = (
            f"pipeline dropped: {made.fault_free / made.dropped:.1%}; "
            f"one optimizer: {made.fault_free / made.decoupled.makespan:.1%}"
        )
        dropped = made.fault_free / made.dropped
        yield Figure(name, made.fault_free / made.staggered.period, "", dropped, reference=beside)


def _time(note: Note, shapes: list[Shape]) -> Iterator[Figure]:
    for shape in shapes:
        note(f"timing {shape}")
        point = _score(shape, unit_times(shape.stages), spread(shape, 1))
        name = f"{shape.stages} x {shape.pipelines}, {shape.micro_batches} micro-batches: seconds to plan"
        yield Figure(name, point.seconds, "s", reference=f"{point.above_bound:g} slots above the bound")
