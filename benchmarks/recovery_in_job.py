"""A real data-parallel job that loses a replica: seconds without progress and speed after, beside a new start of all.

Four processes on gloo train a small GPT; each micro-batch takes as long as it would on a device, by a timer, so that
the speed after a loss is the job's and not that of the cores that the processes share here. The new start is one that
a launcher makes of whole jobs: all processes are killed when one dies, new ones import torch, load the newest
checkpoint, and do again what came after it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure, Note
from lockstep.in_job import Effect, JobFolder
from planner.context import Layout
from planner.cost import share_micro_batches, speed_without_replica
from tests.testbed.training.jobs import Fault, TrainingJob, run_jobs

_REPLICAS, _MICRO_BATCHES, _PAUSE_S = 4, 12, 0.05
_LIMIT_S = 300.0
_STEPS, _LOST_AT, _SAVED_EVERY = 16, 8, 5
_FLOOR_S, _GOAL_S = 5.0, 2.0  # from the loss to progress, of the issue that asked for this
_FLOOR, _GOAL = 0.9, 0.95  # of the planner's forecast


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
            yield _standstill(name, [each.standstill_s for each in found], _FLOOR_S, _GOAL_S)
            ratios = sorted((each.speed_after or 0.0) / forecast for each in found)
            beside = f"forecast {forecast:.0%} of the speed before; {ratios[0]:.2f} to {ratios[-1]:.2f}"
            middle = ratios[len(ratios) // 2]
            yield Figure(f"replica {name}: speed after over the forecast", middle, "", _FLOOR, _GOAL, True, beside)
        note("a replica of a real job: all are started again")
        again = [_start_again(Path(place) / f"again-{run}") for run in range(runs)]
        yield _standstill(f"killed, all start again from a checkpoint of every {_SAVED_EVERY} steps", again)


def _standstill(name: str, seconds: list[float], floor: float | None = None, goal: float | None = None) -> Figure:
    ordered = sorted(seconds)
    beside = f"{ordered[0]:.2f} to {ordered[-1]:.2f} s in {len(ordered)} runs; a step takes {_step_s():.2f} s"
    middle = ordered[len(ordered) // 2]
    return Figure(f"replica {name}: without progress", middle, "s", floor, goal, False, beside)


def _step_s() -> float:
    return _PAUSE_S * _MICRO_BATCHES / _REPLICAS


def _job(folder: Path, **changes: object) -> TrainingJob:
    shape = {"replicas": _REPLICAS, "micro_batches": _MICRO_BATCHES, "steps": _STEPS, "pause_s": _PAUSE_S}
    usual = {"beat_s": 0.25, "silence_s": 1.5, "disk_every": _SAVED_EVERY}  # the library's own, not those of tests
    return TrainingJob.model_validate({"folder": folder, **shape, "options": usual, **changes})


def _lose(folder: Path, fault: Fault) -> Effect:
    """Return what the loss of a replica has cost and brought, as the job measures it."""
    run_jobs([_job(folder, faults=(fault,))], _LIMIT_S)
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
