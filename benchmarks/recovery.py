"""The recovery planner's claims: the optimum over all jobs in time, schedules at their bound, work that is saved."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from statistics import median

import numpy as np

from benchmarks.figures import Figure, Note, clocked
from benchmarks.recovery_fleet import measure_fleet
from benchmarks.recovery_in_job import measure_in_job, measure_pipelines
from benchmarks.recovery_peers import measure_peers
from benchmarks.recovery_replay import measure_replay
from lockstep.pipeline.checking import closed_form, find_bound, find_faults
from lockstep.pipeline.comparing import compare
from lockstep.pipeline.dispatch import plan_schedule
from lockstep.pipeline.schedule import Shape, Times, Worker, unit_times
from planner.allocation.allocate import finish, solve_now
from planner.allocation.cluster import Cluster, Event, Job, Node, Recovery, apply, expect_running_s
from planner.allocation.foresight import foresee
from planner.allocation.gains import list_choices, state_of
from planner.allocation.solve import solve
from planner.allocation.throughput import tabulate

_SEED = 8
_PER_LEAF, _PER_BLOCK = 16, 256
_FAILURES_PER_DAY = 0.0065  # of a node: Meta's RSC-1, 6.50 per 1,000 node-days


@dataclass(frozen=True)
class Size:
    """A cluster that is measured."""

    jobs: int
    nodes: int
    window: int | None  # counts up and down from what a job holds that it may have; None: any
    floor_s: float | None
    goal_s: float | None
    runs: int


SIZES = (
    Size(6, 128, None, None, None, 50),
    Size(50, 1_280, None, 0.5, 0.1, 20),
    Size(1_000, 12_500, 20, None, 1.0, 7),
)


def measure_allocation(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of all sizes; quick: fewer runs, and no foresight for the largest."""
    return tuple(figure for size in SIZES for figure in measure_size(size, quick, note))


def measure_size(size: Size, quick: bool, note: Note) -> Iterator[Figure]:
    """Yield the figures of one size, after the loss of a node."""
    name = f"{size.jobs:,} jobs x {size.nodes:,} nodes"
    note(f"sharing nodes among jobs: {name}")
    runs, few = (3, 1) if quick else (size.runs, 3)
    after = apply(draw_cluster(size), Event("node_lost", "h0"))
    outlook = solve_now(after)
    yield _time(f"solve, {name}", lambda: solve_now(after), runs, size.floor_s, size.goal_s)
    yield _time(f"solve, nothing left out, {name}", lambda: _solve_whole(after), few, size.floor_s, size.goal_s)
    yield _time(f"nodes and alternatives, {name}", lambda: finish(after, outlook), few)
    if not quick or size.window is None:
        yield _time(f"all single next events, {name}", lambda: foresee(after), few)


def draw_cluster(size: Size, seed: int = _SEED) -> Cluster:
    """Return a cluster whose jobs hold all nodes but one in a hundred."""
    rng = np.random.default_rng(seed)
    nodes = tuple(
        Node(f"h{at}", f"leaf{at // _PER_LEAF}", f"block{at // _PER_BLOCK}", float(rate))
        for at, rate in enumerate(rng.gamma(2.0, _FAILURES_PER_DAY / 2, size.nodes))
    )
    cuts = np.sort(rng.choice(np.arange(1, int(size.nodes * 0.99)), size.jobs - 1, replace=False))
    ends = [0, *cuts.tolist(), int(size.nodes * 0.99)]
    jobs = (_draw_job(f"j{at}", range(a, b), size, rng) for at, (a, b) in enumerate(pairwise(ends)))
    return Cluster(nodes, tuple(jobs))


def _draw_job(name: str, held: range, size: Size, rng: np.random.Generator) -> Job:
    first, last = 1, size.nodes
    if size.window is not None:
        first, last = max(1, len(held) - size.window), len(held) + size.window
    counts = np.arange(first, last + 1)
    rates = counts ** rng.uniform(0.75, 0.97) * rng.uniform(0.97, 1.0, len(counts))
    table = tabulate(dict(zip(counts.tolist(), rates.tolist(), strict=True)))
    recovery = Recovery(peer_s=float(rng.uniform(10, 60))) if rng.random() < 0.5 else Recovery()
    made = Job(name, table, tuple(f"h{at}" for at in held), float(rng.uniform(0.5, 2.0)), recovery=recovery)
    return replace(made, minimum=min(int(rng.integers(1, 5)), len(held)))


def _solve_whole(cluster: Cluster) -> None:
    running_s, capacity = expect_running_s(cluster), len(cluster.usable)
    solve(
        [list_choices(job, state_of(job, cluster), running_s, capacity) for job in cluster.jobs],
        capacity,
        prune=False,
    )


def _time(
    name: str, call: Callable[[], object], runs: int, floor_s: float | None = None, goal_s: float | None = None
) -> Figure:
    """Return the median of several runs; beside it the best, and the processor time of the best."""
    _, seconds, cpu = zip(*(clocked(call) for _ in range(runs)), strict=True)
    beside = f"best {min(seconds):.4f} s, CPU {min(cpu):.4f} s, of {runs} runs"
    return Figure(name, median(seconds), "s", floor_s, goal_s, False, beside)


# (stages, pipelines, micro-batches) of the paper's testbed, and one with twice the micro-batches
_GRIDS = (Shape(2, 16, 32), Shape(4, 8, 32), Shape(8, 4, 32), Shape(8, 4, 64))
_FAILURES = (1, 2, 3, 4)
_LARGE = Shape(16, 16, 64)
_RANDOM, _RANDOM_QUICK = 100, 10
_LOSS_SEED = 20240514
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
        *_time_schedule(note, [_GRIDS[0]] if quick else [_GRIDS[3], _LARGE]),
    )


def spread(shape: Shape, failures: int) -> frozenset[Worker]:
    """Return failures in different stages and pipelines, from the last stage upwards."""
    stages, pipelines = shape.stages, shape.pipelines
    return frozenset(
        Worker((number + number // stages) % pipelines, (-1 - number) % stages) for number in range(failures)
    )


def random_cases(number: int, is_even: bool) -> Iterator[tuple[Shape, Times, frozenset[Worker]]]:
    """Yield grids with failures in some stages; always the same ones."""
    random = Random(_LOSS_SEED + is_even)  # noqa: S311  # cases, not secrets
    for _ in range(number):
        stages, pipelines = random.randint(2, 8), random.randint(2, 8)
        shape = Shape(stages, pipelines, stages * random.choice((1, 2, 3, 4)))
        hit = random.sample(range(stages), random.randint(1, stages))
        failed = frozenset(Worker(random.randrange(pipelines), stage) for stage in hit)
        forward, back, weight = ([random.uniform(1 - _UNEVEN, 1 + _UNEVEN) for _ in range(stages)] for _ in range(3))
        uneven = Times(forward, back, weight, transfer=random.choice((0.0, 0.1)))
        yield shape, unit_times(stages) if is_even else uneven, failed


def _score(shape: Shape, times: Times, failed: frozenset[Worker]) -> Point:
    made, seconds, _ = clocked(lambda: plan_schedule(shape, times, failed))
    if faults := find_faults(made):
        raise AssertionError(f"a schedule that cannot be run: {faults[0]}")
    bound = find_bound(shape, times, failed, is_decoupled=True)
    return Point(made.period - bound.period, made.period - closed_form(shape, times, failed), seconds)


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


def _time_schedule(note: Note, shapes: list[Shape]) -> Iterator[Figure]:
    for shape in shapes:
        note(f"timing {shape}")
        point = _score(shape, unit_times(shape.stages), spread(shape, 1))
        name = f"{shape.stages} x {shape.pipelines}, {shape.micro_batches} micro-batches: seconds to plan"
        yield Figure(name, point.seconds, "s", reference=f"{point.above_bound:g} slots above the bound")


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of planning, of schedules, and of fleets under faults."""
    return (
        *measure_allocation(quick, note),
        *measure_recycle(quick, note),
        *measure_peers(quick, note),
        *measure_fleet(quick, note),
        *measure_replay(quick, note),
        *measure_in_job(quick, note),
        *measure_pipelines(quick, note),
    )
