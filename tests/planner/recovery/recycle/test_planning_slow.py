"""Schedules of deep pipelines with many micro-batches, which take seconds to plan, are at the bound too."""

import pytest

from planner.recovery.recycle.bounds import find_bound
from planner.recovery.recycle.checking import find_faults
from planner.recovery.recycle.planning import ScheduleOptions, plan_schedule
from planner.recovery.recycle.schedule import Shape, unit_times
from tests.planner.recovery.recycle.grids import spread

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("failures", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(8, 4, 32), (8, 4, 64)])
def test_deep_pipelines_are_at_the_bound(shape: tuple[int, int, int], failures: int) -> None:
    grid = Shape(*shape)
    slots, failed = unit_times(grid.stages), spread(grid, failures)
    bound = find_bound(grid, slots, failed, is_decoupled=True)
    staggered = plan_schedule(grid, slots, failed)
    one_optimizer = plan_schedule(grid, slots, failed, ScheduleOptions(is_staggered=False))
    assert find_faults(staggered) == find_faults(one_optimizer) == []
    assert (staggered.period, one_optimizer.makespan) == (bound.period, bound.makespan)


def test_one_failure_of_a_deep_pipeline_costs_what_its_work_costs() -> None:
    shape = Shape(8, 4, 64)
    assert plan_schedule(shape, unit_times(8), spread(shape, 1)).period == 258
