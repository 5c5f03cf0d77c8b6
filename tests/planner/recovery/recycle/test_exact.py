"""On small grids the greedy schedule is as short as the proven one, or a slot longer."""

import pytest

from lockstep.errors import BadInput, NotPresent
from planner.recovery.recycle.checking import find_faults
from planner.recovery.recycle.exact import solve_schedule
from planner.recovery.recycle.planning import ScheduleOptions, plan_schedule
from planner.recovery.recycle.schedule import Shape, Times, Worker, unit_times

UNEVEN = Times((1.0, 2.0), (2.0, 1.0), (1.0, 2.0), transfer=1.0)


def greedy_and_proven(
    shape: Shape, times: Times, failed: set[Worker], options: ScheduleOptions
) -> tuple[float, float]:
    """Return the length of both; of the proven one among schedules at most two slots longer than the greedy one."""
    greedy = plan_schedule(shape, times, failed, options)
    proven = solve_schedule(shape, times, failed, options, longest=round(greedy.makespan) + 2 * options.is_staggered)
    assert find_faults(greedy, options.memory) == find_faults(proven, options.memory) == []
    return (greedy.period, proven.period) if options.is_staggered else (greedy.makespan, proven.makespan)


@pytest.mark.parametrize("is_decoupled", [True, False])
@pytest.mark.parametrize("is_staggered", [True, False])
@pytest.mark.parametrize("times", [unit_times(2), UNEVEN])
def test_two_stages_with_a_failure_are_within_a_slot(times: Times, is_decoupled: bool, is_staggered: bool) -> None:
    options = ScheduleOptions(is_decoupled, is_staggered)
    greedy, proven = greedy_and_proven(Shape(2, 2, 2), times, {Worker(0, 1)}, options)
    assert proven <= greedy <= proven + 1


@pytest.mark.parametrize("is_staggered", [True, False])
def test_tight_memory_is_within_a_slot(is_staggered: bool) -> None:
    options = ScheduleOptions(is_staggered=is_staggered, memory=2)
    greedy, proven = greedy_and_proven(Shape(2, 2, 3), unit_times(2), set(), options)
    assert (greedy, proven) == (10.0, 10.0)


def test_what_cannot_be_reached_is_said() -> None:
    with pytest.raises(NotPresent, match="no schedule of 7 slots or less"):
        solve_schedule(Shape(2, 1, 2), unit_times(2), (), ScheduleOptions(is_staggered=False, memory=1), longest=7)


def test_times_between_slots_are_refused() -> None:
    with pytest.raises(BadInput, match="whole numbers"):
        solve_schedule(Shape(2, 1, 1), unit_times(2, transfer=0.5), (), ScheduleOptions(), longest=9)
