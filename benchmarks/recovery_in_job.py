"""Real jobs that lose a replica, or a worker of their pipelines: seconds without progress, and the speed after.

Four processes on gloo train a small GPT, eight a pipeline of a few blocks. Each micro-batch, or piece of work,
takes as long as it would on a device, by a timer, so that the speed after a loss is the job's and not that of the
cores that the processes share here. The new start is one that a launcher makes of whole jobs: all processes are
killed when one dies, new ones import torch, load the newest checkpoint, and do again what came after it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure, Note
from lockstep.in_job import Announcement, Effect, JobFolder
from planner.context import Layout
from planner.cost import share_micro_batches, speed_without_replica
from tests.testbed.training.jobs import Fault, TrainingJob, run_jobs

_REPLICAS, _MICRO_BATCHES, _PAUSE_S = 4, 12, 0.05
_LIMIT_S = 300.0
_STEPS, _LOST_AT, _SAVED_EVERY = 16, 8, 5
_FLOOR_S, _GOAL_S = 5.0, 2.0  # from the loss to progress, of the issue that asked for this
_FLOOR, _GOAL = 0.9, 0.95  # of the planner's forecast
_GRIDS = ((2, 4), (4, 2))  # replicas and stages
_EACH, _PIECE_S = 8, 0.03  # micro-batches of a replica; a forward, and each half of a backward
_FREE = 1e6  # nothing is clipped, so nothing is taken back and done again


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
    with TemporaryDirectory(prefix="lockstep-bench-") as place:
        for number, (name, fault) in enumerate(losses.items()):
            note(f"a replica of a real job: {name}")
            found = [_lose(Path(place) / f"{number}-{run}", fault) for run in range(runs)]
            yield _standstill(f"replica {name}", [each.standstill_s for each in found], _step_s(), _FLOOR_S, _GOAL_S)
            yield _speed(f"replica {name}", found, forecast)
        note("a replica of a real job: all are started again")
        again = [_start_again(Path(place) / f"again-{run}") for run in range(runs)]
        name = f"replica killed, all start again from a checkpoint of every {_SAVED_EVERY} steps"
        yield _standstill(name, again, _step_s())


def measure_pipelines(quick: bool, note: Note) -> Iterator[Figure]:
    """Yield the figures of pipelines that lose a worker in mid-step; quick: one run instead of three of each."""
    cases = [(*grid, how) for grid in _GRIDS for how in ("killed", "stopped, ordered out")]
    with TemporaryDirectory(prefix="lockstep-bench-") as place:
        for number, (replicas, stages, how) in enumerate(cases[:1] if quick else cases):
            name = f"pipeline of {replicas} replicas x {stages} stages, a worker {how}"
            note(name)
            folders = [Path(place) / f"{number}-{run}" for run in range(1 if quick else 3)]
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
