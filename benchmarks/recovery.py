"""The recovery planner's claims: the optimum over all jobs in time, schedules at their bound, work that is saved.

Real jobs, too, lose a replica, or a worker of their pipelines: seconds without progress, and the speed after. Four
processes on gloo train a small GPT, eight a pipeline of a few blocks. Each micro-batch, or piece of work, takes as
long as it would on a device, by a timer, so that the speed after a loss is the job's and not that of the cores that
the processes share here. The new start is one that a launcher makes of whole jobs: all processes are killed when one
dies, new ones import torch, load the newest checkpoint, and do again what came after it.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median

import numpy as np

from benchmarks.figures import Figure, Note, clocked, scratch
from benchmarks.recovery_fleet import measure_fleet
from benchmarks.recovery_peers import measure_peers
from benchmarks.recovery_replay import measure_replay
from lockstep.in_job import Announcement, Effect, JobFolder
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
from planner.context import Layout
from planner.cost import share_micro_batches, speed_without_replica
from tests.testbed.training.jobs import Fault, TrainingJob, run_jobs

_SEED = 8
_PER_LEAF, _PER_BLOCK = 16, 256
_FAILURES_PER_DAY = 0.0065  # of a node: Meta's RSC-1, 6.50 per 1,000 node-days
_REPLICAS, _MICRO_BATCHES, _PAUSE_S = 4, 12, 0.05
_LIMIT_S = 300.0
_STEPS, _LOST_AT, _SAVED_EVERY = 16, 8, 5
_FLOOR_S, _GOAL_S = 5.0, 2.0  # from the loss to progress, of the issue that asked for this
_FLOOR, _GOAL = 0.9, 0.95  # of the planner's forecast
_PIPELINES = ((2, 4), (4, 2))  # replicas and stages
_EACH, _PIECE_S = 8, 0.03  # micro-batches of a replica; a forward, and each half of a backward
_FREE = 1e6  # nothing is clipped, so nothing is taken back and done again


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


def draw_cluster(size: Size) -> Cluster:
    """Return a cluster whose jobs hold all nodes but one in a hundred."""
    rng = np.random.default_rng(_SEED)
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


def measure_in_job(quick: bool, note: Note) -> Iterator[Figure]:
    """Yield the figures; quick: one run of each instead of five."""
    runs = 1 if quick else 5
    layout = Layout(replicas=_REPLICAS, micro_batches=_MICRO_BATCHES // _REPLICAS)
    forecast = speed_without_replica(layout, share_micro_batches(layout))
    losses = {
        "killed": Fault(replica=1, step=_LOST_AT, after=1),
        "stopped, found by its silence": Fault(replica=1, step=_LOST_AT, after=1, kind="stop"),
        "stopped, ordered out": Fault(replica=1, step=_LOST_AT, after=1, kind="stop", ordered=True),
    }
    with scratch() as place:
        for number, (name, fault) in enumerate(losses.items()):
            note(f"a replica of a real job: {name}")
            found = [_lose(place / f"{number}-{run}", fault) for run in range(runs)]
            yield _standstill(f"replica {name}", [each.standstill_s for each in found], _step_s(), _FLOOR_S, _GOAL_S)
            yield _speed(f"replica {name}", found, forecast)
        note("a replica of a real job: all are started again")
        again = [_start_again(place / f"again-{run}") for run in range(runs)]
        name = f"replica killed, all start again from a checkpoint of every {_SAVED_EVERY} steps"
        yield _standstill(name, again, _step_s())


def measure_pipelines(quick: bool, note: Note) -> Iterator[Figure]:
    """Yield the figures of pipelines that lose a worker in mid-step; quick: one run instead of three of each."""
    cases = [(*grid, how) for grid in _PIPELINES for how in ("killed", "stopped, ordered out")]
    with scratch() as place:
        for number, (replicas, stages, how) in enumerate(cases[:1] if quick else cases):
            name = f"pipeline of {replicas} replicas x {stages} stages, a worker {how}"
            note(name)
            folders = [place / f"{number}-{run}" for run in range(1 if quick else 3)]
            found = [_lose_worker(folder, replicas, stages, is_ordered=how != "killed") for folder in folders]
            announced = JobFolder(folders[0]).read("job.json", Announcement)
            assert announced is not None
            assert announced.speed_after is not None
            step_s = 3 * _EACH * _PIECE_S
            yield _standstill(name, [each.standstill_s for each in found], step_s, _FLOOR_S, _GOAL_S)
            yield _speed(name, found, announced.speed_after)


def _lose_worker(folder: Path, replicas: int, stages: int, *, is_ordered: bool) -> Effect:
    """Return what the loss of a worker of the second stage has cost and brought."""
    kind = "stop" if is_ordered else "kill"
    fault = Fault(replica=1, stage=1, step=_LOST_AT, after=_EACH, kind=kind, ordered=is_ordered)
    shape = {"replicas": replicas, "stages": stages, "micro_batches": _EACH * replicas, "pause_s": _PIECE_S}
    return _lose(folder, fault, **shape, largest_norm=_FREE)


def _standstill(
    name: str, seconds: list[float], step_s: float, floor: float | None = None, goal: float | None = None
) -> Figure:
    ordered = sorted(seconds)
    beside = f"{ordered[0]:.2f} to {ordered[-1]:.2f} s in {len(ordered)} runs; a step takes {step_s:.2f} s"
    middle = ordered[len(ordered) // 2]
    return Figure(f"{name}: without progress", middle, "s", floor, goal, False, beside)


def _speed(name: str, found: list[Effect], forecast: float) -> Figure:
    ratios = sorted((each.speed_after or 0.0) / forecast for each in found)
    beside = f"forecast {forecast:.0%} of the speed before; {ratios[0]:.2f} to {ratios[-1]:.2f}"
    return Figure(f"{name}: speed after over the forecast", ratios[len(ratios) // 2], "", _FLOOR, _GOAL, True, beside)


def _step_s() -> float:
    return _PAUSE_S * _MICRO_BATCHES / _REPLICAS


def _job(folder: Path, **changes: object) -> TrainingJob:
    shape = {"replicas": _REPLICAS, "micro_batches": _MICRO_BATCHES, "steps": _STEPS, "pause_s": _PAUSE_S}
    usual = {"beat_s": 0.25, "silence_s": 1.5, "disk_every": _SAVED_EVERY}  # the library's own, not those of tests
    return TrainingJob.model_validate({"folder": folder, **shape, "options": usual, **changes})


def _lose(folder: Path, fault: Fault, **changes: object) -> Effect:
    """Return what the loss of a process has cost and brought, as the job measures it."""
    run_jobs([_job(folder, faults=(fault,), **changes)], _LIMIT_S)
    effect = JobFolder(folder).read("effects/2.json", Effect)
    assert effect is not None
    return effect


def _start_again(folder: Path) -> float:
    """Return the seconds from the last step before a death to the first new one of a new start, less a step."""
    first = _job(folder, faults=(Fault(replica=1, step=_LOST_AT, after=1),), snapshots=True, ends_with_fault=True)
    run_jobs([first], _LIMIT_S)
    fresh = folder / "again"
    fresh.mkdir()
    (folder / "disk").rename(fresh / "disk")
    run_jobs([_job(fresh, snapshots=True)], _LIMIT_S)
    before = max(at for step, at in _read(folder) if step < _LOST_AT)
    after = min(at for step, at in _read(fresh) if step >= _LOST_AT)
    return (after - before) / 1e9 - _step_s()


def _read(folder: Path) -> list[tuple[int, int]]:
    rows = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
    return [(row["step"], row["at_ns"]) for row in rows]
