"""The checker finds each kind of mistake in a schedule that was right before."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.pipeline.checking import closed_form, find_bound, find_faults
from planner.pipeline.dispatch import ScheduleOptions, plan_schedule
from planner.pipeline.schedule import Op, Schedule, Shape, Times, Worker, unit_times
from tests.planner.pipeline.grids import EXAMPLE, ONE_GONE, SLOTS, failures_for, shapes, spread

RIGHT = plan_schedule(EXAMPLE, SLOTS, ONE_GONE)
SOMEBODY = Worker(0, 2)


def with_ops(ops: Sequence[Op], worker: Worker = SOMEBODY) -> Schedule:
    return replace(RIGHT, ops={**RIGHT.ops, worker: tuple(ops)})


def changed(number: int, **fields: object) -> Schedule:
    ops = list(RIGHT.ops[SOMEBODY])
    ops[number] = replace(ops[number], **fields)  # type: ignore[arg-type]  # fields of Op
    return with_ops(ops)


def test_a_right_schedule_has_no_faults() -> None:
    assert find_faults(RIGHT, memory=8) == []


def test_work_that_is_missing_is_named() -> None:
    faults = find_faults(with_ops(RIGHT.ops[SOMEBODY][:-1]))
    assert any("is done in ['forward', 'input']" in fault for fault in faults)


def test_work_that_is_done_twice_is_named() -> None:
    ops = RIGHT.ops[SOMEBODY]
    again = replace(ops[-1], start=90.0, end=91.0)
    assert any("is done 2 times" in fault for fault in find_faults(with_ops([*ops, again])))


def test_work_of_a_failed_worker_is_refused() -> None:
    op = replace(RIGHT.ops[SOMEBODY][0], worker=Worker(1, 2))
    assert any("has failed" in fault for fault in find_faults(with_ops([op], Worker(1, 2))))


def test_pieces_of_one_micro_batch_stay_with_one_worker() -> None:
    other = Worker(2, 2)
    ops = list(RIGHT.ops[SOMEBODY])
    moved = replace(ops[-1], worker=other, start=90.0, end=91.0)
    made = replace(RIGHT, ops={**RIGHT.ops, SOMEBODY: ops[:-1], other: [*RIGHT.ops[other], moved]})
    assert any("spread over several workers" in fault for fault in find_faults(made))


def test_two_things_at_a_time_are_named() -> None:
    ops = RIGHT.ops[SOMEBODY]
    assert any("begins before" in fault for fault in find_faults(changed(1, start=ops[0].start, end=ops[0].end)))


def test_a_forward_before_the_stage_above_is_named() -> None:
    assert any("is done and there" in fault for fault in find_faults(changed(0, start=0.0, end=1.0)))


def test_weights_before_their_input_are_named() -> None:
    late = next(number for number, op in enumerate(RIGHT.ops[SOMEBODY]) if op.kind == "weight")
    assert any("is done and there" in fault for fault in find_faults(changed(late, start=0.0, end=1.0)))


def test_a_piece_that_is_too_short_is_named() -> None:
    first = RIGHT.ops[SOMEBODY][0]
    assert any("as long as it should" in fault for fault in find_faults(changed(0, end=first.end - 0.5)))


@pytest.mark.parametrize("memory", [2, (8, 8, 2, 8)])
def test_too_much_memory_is_named(memory: int | tuple[int, ...]) -> None:
    assert any("which is more than 2" in fault for fault in find_faults(RIGHT, memory))


def test_work_away_from_a_live_home_is_named() -> None:
    here, there = Worker(0, 1), Worker(2, 1)
    pairs = ((here, there), (there, here))
    swapped = {one: [replace(op, pipeline=other.pipeline) for op in RIGHT.ops[one]] for one, other in pairs}
    made = replace(RIGHT, ops={**RIGHT.ops, **swapped})
    assert any("away from home" in fault for fault in find_faults(made))


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


@given(st.data())
def test_a_failure_that_fits_the_bubble_is_free_to_within_a_slot(data: st.DataObject) -> None:
    drawn = data.draw(shapes())
    shape = replace(drawn, micro_batches=drawn.micro_batches + drawn.stages)  # with fewer the way itself is too long
    slots, failed = unit_times(shape.stages), data.draw(failures_for(shape))
    made = plan_schedule(shape, slots, failed)
    assert made.period <= closed_form(shape, slots, failed) + 1


@given(st.data())
def test_coupled_schedules_are_bounded_too(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    slots, failed = unit_times(shape.stages), data.draw(failures_for(shape))
    made = plan_schedule(shape, slots, failed, ScheduleOptions(is_decoupled=False))
    assert made.period >= find_bound(shape, slots, failed, is_decoupled=False).period
