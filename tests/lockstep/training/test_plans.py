"""One plan serves all losses of a kind, whoever was lost, and one that cannot be run is not taken."""

from itertools import product
from pathlib import Path

import pytest

from lockstep.in_job import JobFolder
from lockstep.pipeline.checking import place_failures
from lockstep.pipeline.dispatch import ScheduleOptions, plan_schedule
from lockstep.pipeline.schedule import Shape, StepSchedule, Worker, pack_schedule, unit_times, unpack_schedule
from lockstep.training.plans import Grid, assign_roles, find_plan, find_split, plan_name

SHAPE = Shape(stages=2, pipelines=3, micro_batches=4)
GRID = Grid(SHAPE, unit_times(2))
ALL = [Worker(*place) for place in product(range(3), range(2))]


def says(plan: StepSchedule | None) -> object:
    assert plan is not None
    return plan.model_dump(mode="json")


@pytest.mark.parametrize("lost", [Worker(pipeline, 1) for pipeline in range(3)])
def test_whoever_of_a_stage_is_lost_the_others_play_the_live_ones_of_one_plan(tmp_path: Path, lost: Worker) -> None:
    live = [worker for worker in ALL if worker != lost]
    assert find_split(SHAPE, live) == (0, 1)
    schedule = unpack_schedule(find_plan(JobFolder(tmp_path), GRID, (0, 1)))
    roles = assign_roles(schedule, live)
    assert sorted(roles.values()) == live
    assert roles.keys() == schedule.ops.keys()
    assert all(role.stage == worker.stage for role, worker in roles.items())


def test_a_plan_is_made_once_and_one_that_somebody_lays_there_is_taken(tmp_path: Path) -> None:
    folder, name = JobFolder(tmp_path), plan_name((0, 1))
    made = find_plan(folder, GRID, (0, 1))
    assert says(folder.read(name, StepSchedule)) == says(made)
    options = ScheduleOptions(is_decoupled=False)
    other = pack_schedule(plan_schedule(SHAPE, unit_times(2), {Worker(2, 1)}, options))
    folder.write(name, other)
    assert says(find_plan(folder, GRID, (0, 1))) == says(other) != says(made)


@pytest.mark.parametrize("fault", ["another grid", "other losses", "a piece is missing"])
def test_a_plan_that_cannot_be_run_is_replaced(tmp_path: Path, fault: str) -> None:
    folder, name = JobFolder(tmp_path), plan_name((0, 1))
    shape = Shape(2, 3, 8) if fault == "another grid" else SHAPE
    failed = place_failures((1, 0)) if fault == "other losses" else place_failures((0, 1))
    laid = pack_schedule(plan_schedule(shape, unit_times(2), failed))
    folder.write(name, laid.model_copy(update={"ops": laid.ops[1:]}) if fault == "a piece is missing" else laid)
    with pytest.warns(UserWarning, match=r"plans/0-1\.json cannot be run, and another plan is made"):
        found = find_plan(folder, GRID, (0, 1))
    assert says(found) == says(find_plan(folder, GRID, (0, 1)))
    assert unpack_schedule(found).failed == place_failures((0, 1))
