"""Bounds are those of the worked example, follow the failures, and say when a failure is free."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.recovery.recycle.bounds import closed_form, find_bound
from planner.recovery.recycle.planning import ScheduleOptions, plan_schedule
from planner.recovery.recycle.schedule import Shape, Times, unit_times
from tests.planner.recovery.recycle.grids import EXAMPLE, ONE_GONE, SLOTS, failures_for, shapes, spread


def test_the_worked_example_is_bound_by_the_work_of_the_stage_with_the_failure() -> None:
    bound = find_bound(EXAMPLE, SLOTS, ONE_GONE, is_decoupled=True)
    assert (bound.period, bound.makespan) == (9 * 3, 2 + 9 * 3)


def test_coupled_backwards_wait_for_the_whole_way_down_and_up() -> None:
    assert find_bound(EXAMPLE, SLOTS, (), is_decoupled=False).makespan == (6 + 4 - 1) * 3
    assert find_bound(EXAMPLE, SLOTS, ONE_GONE, is_decoupled=False).makespan == 2 + 9 * 3 + 2 * 2


def test_transfers_are_part_of_the_way() -> None:
    slow = unit_times(4, transfer=0.5)
    more = find_bound(EXAMPLE, slow, (), is_decoupled=False).makespan
    assert more == find_bound(EXAMPLE, SLOTS, (), is_decoupled=False).makespan + 6 * 0.5


def test_little_memory_means_one_round_trip_after_another() -> None:
    trip = 4 + 4 + 1  # down, up, weights
    assert find_bound(EXAMPLE, SLOTS, (), is_decoupled=True, memory=(1,) * 4).period == 6 * trip


def test_few_micro_batches_leave_the_first_stage_waiting() -> None:
    one = Shape(stages=4, pipelines=1, micro_batches=1)
    assert find_bound(one, SLOTS, (), is_decoupled=True).period == 4 + 4 + 1


def test_the_slowest_stage_decides() -> None:
    slow = Times((1.0, 3.0), (1.0, 3.0), (1.0, 3.0))
    assert find_bound(Shape(2, 1, 10), slow, (), is_decoupled=True).period == 90.0


@pytest.mark.parametrize(("failures", "promised"), [(0, 105), (1, 111), (4, 111), (5, 129)])
def test_the_closed_form_counts_the_worst_stage(failures: int, promised: int) -> None:
    shape = Shape(4, 8, 32)
    assert closed_form(shape, unit_times(4), spread(shape, failures)) == promised


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_failure_that_fits_the_bubble_is_free_to_within_a_slot(data: st.DataObject) -> None:
    drawn = data.draw(shapes())
    shape = replace(drawn, micro_batches=drawn.micro_batches + drawn.stages)  # with fewer the way itself is too long
    slots, failed = unit_times(shape.stages), data.draw(failures_for(shape))
    made = plan_schedule(shape, slots, failed)
    assert made.period <= closed_form(shape, slots, failed) + 1


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_coupled_schedules_are_bounded_too(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    slots, failed = unit_times(shape.stages), data.draw(failures_for(shape))
    made = plan_schedule(shape, slots, failed, ScheduleOptions(is_decoupled=False))
    assert made.period >= find_bound(shape, slots, failed, is_decoupled=False).period
