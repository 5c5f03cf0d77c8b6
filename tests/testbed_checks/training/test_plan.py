"""The plan of a pipeline job travels as JSON and is refused where it contradicts itself."""

from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.pipeline.dispatch import plan_schedule
from lockstep.pipeline.schedule import Schedule, Shape, Worker, unit_times
from lockstep.pipeline.schedule_file import pack_schedule, unpack_schedule
from tests.testbed.training.job import read_run
from tests.testbed.training.plan import (
    Kill,
    LossLine,
    StepLine,
    TrainingPlan,
    find_schedule,
)

GRID = Shape(stages=2, pipelines=3, micro_batches=4)
LOST = Worker(1, 1)
WHOLE, WITHOUT = (plan_schedule(GRID, unit_times(2), failed) for failed in (set(), {LOST}))


def plan(*schedules: Schedule) -> TrainingPlan:
    kills = (Kill(worker=LOST, step=1, after_ops=2),)
    return TrainingPlan(folder=Path("job"), steps=3, schedules=tuple(map(pack_schedule, schedules)), kills=kills)


def test_schedules_and_plans_come_back_as_they_went() -> None:
    packed = pack_schedule(WITHOUT)
    back = unpack_schedule(type(packed).model_validate_json(packed.model_dump_json()))

    assert {worker: list(ops) for worker, ops in back.ops.items()} == {
        worker: list(ops) for worker, ops in WITHOUT.ops.items()
    }
    assert (back.shape, back.failed, back.makespan) == (GRID, WITHOUT.failed, WITHOUT.makespan)
    sent = plan(WHOLE, WITHOUT)
    arrived = TrainingPlan.model_validate_json(sent.model_dump_json())
    assert arrived.kills == sent.kills
    assert find_schedule(arrived, frozenset({LOST})).failed == {LOST}


def test_plan_needs_one_schedule_for_each_set_of_failures_all_of_one_grid() -> None:
    with pytest.raises(BadInput, match=r"no schedule for the failed workers \[Worker\(pipeline=0, stage=0\)\]"):
        find_schedule(plan(WHOLE), frozenset({Worker(0, 0)}))
    with pytest.raises(ValueError, match="one schedule without failures"):
        plan(WITHOUT)
    with pytest.raises(ValueError, match="one for each set"):
        plan(WHOLE, WITHOUT, WITHOUT)
    with pytest.raises(ValueError, match="different grids"):
        plan(WHOLE, plan_schedule(Shape(2, 2, 4), unit_times(2), {LOST}))


def test_what_was_told_of_steps_that_began_again_is_void(tmp_path: Path) -> None:
    def line(step: int, worker: Worker, loss: float) -> StepLine:
        return StepLine(worker=worker, step=step, loss=loss, norm=1.0, factor=1.0, redone=0)

    kept, void, again = line(0, LOST, 1.0), line(1, LOST, 2.0), line(1, Worker(0, 1), 3.0)
    lost = LossLine(lost=LOST, exit_code=-9, step=1)
    told = [kept, void, lost, again]
    (tmp_path / "lines.jsonl").write_text("".join(f"{each.model_dump_json()}\n" for each in told))

    run = read_run(tmp_path)

    assert (run.steps, run.losses) == ([kept, again], [lost])
