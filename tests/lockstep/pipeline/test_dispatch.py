"""Schedules around failed workers are right, are as short as the worked example, and keep to their memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.pipeline.checking import find_bound, find_faults
from lockstep.pipeline.dispatch import ScheduleOptions, plan_schedule, spread_limit
from lockstep.pipeline.schedule import Shape, Times, Worker, find_load, unit_times
from tests.lockstep.pipeline.grids import EXAMPLE, ONE_GONE, SLOTS, failures_for, shapes, spread, times_for
from tests.tiers import long_except

IN_1F1B = ScheduleOptions(is_decoupled=False, is_staggered=False, keeps_order=True)
ONE_OPTIMIZER = ScheduleOptions(is_staggered=False)


def test_the_worked_example_takes_27_36_29_and_27_slots() -> None:
    fault_free = plan_schedule(EXAMPLE, SLOTS, (), IN_1F1B)
    coupled = plan_schedule(EXAMPLE, SLOTS, ONE_GONE, IN_1F1B)
    decoupled = plan_schedule(EXAMPLE, SLOTS, ONE_GONE, ONE_OPTIMIZER)
    staggered = plan_schedule(EXAMPLE, SLOTS, ONE_GONE)
    found = (fault_free.makespan, coupled.makespan, decoupled.makespan, staggered.period)
    assert found == (27.0, 36.0, 29.0, 27.0)
    assert not any(map(find_faults, (fault_free, coupled, decoupled, staggered)))
    ahead = plan_schedule(EXAMPLE, SLOTS, ONE_GONE, ScheduleOptions(is_decoupled=False, is_staggered=False))
    assert ahead.makespan == find_bound(EXAMPLE, SLOTS, ONE_GONE, is_decoupled=False).makespan == 33.0
    assert not find_faults(ahead)
    assert [fault_free.most_held(Worker(0, stage)) for stage in range(4)] == [4, 3, 2, 1]
    first = [op.kind for op in fault_free.ops[Worker(0, 2)]]
    assert first == ["forward", *["forward", "both"] * 5, "both"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "staggered", "one_optimizer"),
    [((2, 16, 32), 105, 106), ((4, 8, 32), 111, 114), ((8, 4, 32), 129, 136), ((8, 4, 64), 258, None)],
)
def test_one_failure_in_the_last_stage_costs_what_its_work_costs(
    shape: tuple[int, int, int], staggered: int, one_optimizer: int | None
) -> None:
    grid = Shape(*shape)
    slots = unit_times(grid.stages)
    assert plan_schedule(grid, slots, spread(grid, 1)).period == staggered
    if one_optimizer:
        assert plan_schedule(grid, slots, spread(grid, 1), ONE_OPTIMIZER).makespan == one_optimizer


GRIDS_AND_FAILURES = [(shape, failures) for shape in ((2, 16, 32), (4, 8, 32)) for failures in (2, 3, 4)]


@pytest.mark.parametrize("case", long_except([GRIDS_AND_FAILURES[0], GRIDS_AND_FAILURES[-1]], GRIDS_AND_FAILURES))
def test_several_failures_are_at_the_bound(case: tuple[tuple[int, int, int], int]) -> None:
    shape, failures = case
    grid = Shape(*shape)
    slots, failed = unit_times(grid.stages), spread(grid, failures)
    made = plan_schedule(grid, slots, failed)
    assert not find_faults(made)
    assert made.period == find_bound(grid, slots, failed, is_decoupled=True).period


UNEVEN = Times((1.0, 2.0), (2.0, 1.0), (1.0, 2.0), transfer=1.0)
UNEVEN_THREE = Times((2.0, 1.0, 1.0), (1.0, 1.0, 2.0), (1.0, 2.0, 2.0), transfer=1.0)
SMALL: list[tuple[Shape, Times, set[Worker], int | None, float]] = [  # the last: slots above the bound
    (Shape(2, 2, 2), unit_times(2), {Worker(0, 1)}, None, 0.0),
    (Shape(2, 2, 2), UNEVEN, {Worker(0, 1)}, None, 0.0),
    (Shape(2, 2, 3), unit_times(2), set(), 2, 0.0),
    (Shape(2, 3, 3), unit_times(2), {Worker(2, 0), Worker(2, 1)}, None, 0.0),
    (Shape(3, 2, 3), unit_times(3), {Worker(0, 1)}, None, 0.0),
    (Shape(3, 3, 2), unit_times(3), {Worker(1, 0), Worker(2, 1)}, None, 0.0),
    (Shape(3, 3, 2), unit_times(3), {Worker(1, 0), Worker(2, 1)}, 2, 0.0),
    (Shape(3, 3, 2), UNEVEN_THREE, {Worker(0, 2)}, None, 0.0),
    (Shape(3, 3, 2), UNEVEN_THREE, {Worker(0, 2)}, 2, 2.0),  # a solver finds none that is two slots shorter
]


@pytest.mark.parametrize("is_staggered", [True, False])
@pytest.mark.parametrize(("shape", "times", "failed", "memory", "above"), SMALL)
def test_small_grids_are_as_short_as_can_be(
    shape: Shape, times: Times, failed: set[Worker], memory: int | None, above: float, is_staggered: bool
) -> None:
    held = spread_limit(memory, [find_load(shape, failed, stage) for stage in range(shape.stages)])
    for is_decoupled in (True, False) if memory is None and len(failed) == 1 else (True,):
        made = plan_schedule(shape, times, failed, ScheduleOptions(is_decoupled, is_staggered, memory))
        bound = find_bound(shape, times, failed, is_decoupled, held)
        assert find_faults(made, memory) == []
        length, least = (made.period, bound.period) if is_staggered else (made.makespan, bound.makespan)
        assert least <= length <= least + above


@given(st.data())
def test_every_schedule_can_be_run_and_is_not_below_the_bound(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    times, failed = data.draw(times_for(shape)), data.draw(failures_for(shape))
    memory = data.draw(st.none() | st.integers(1, 5))
    options = ScheduleOptions(data.draw(st.booleans()), data.draw(st.booleans()), memory, data.draw(st.booleans()))
    made = plan_schedule(shape, times, failed, options)
    assert find_faults(made, memory) == []
    loads = [len([op for op in made.ops[worker] if op.kind == "forward"]) for worker in made.ops]
    held = None if memory is None else [min(memory, max(loads))] * shape.stages
    bound = find_bound(shape, times, failed, options.is_decoupled, held)
    assert made.period >= bound.period * (1 - 1e-9)
    assert made.makespan >= bound.makespan * (1 - 1e-9)


def test_less_memory_makes_longer_steps() -> None:
    periods = [plan_schedule(EXAMPLE, SLOTS, ONE_GONE, ScheduleOptions(memory=room)).period for room in (1, 3, 7)]
    assert periods == sorted(periods, reverse=True)
    assert periods[-1] == 27.0 < periods[0]
    made = plan_schedule(EXAMPLE, SLOTS, ONE_GONE, ScheduleOptions(memory=(6, 5, 4, 2)))
    assert find_faults(made, (6, 5, 4, 2)) == [], "it may differ between stages"


ONES = (1.0,) * 4
NO_COPIES = {Worker(pipeline, 1) for pipeline in range(3)}


@pytest.mark.parametrize(
    ("shape", "times", "failed", "memory", "sentence"),
    [
        (EXAMPLE, SLOTS, NO_COPIES, None, "stage 1 has lost all 3 copies"),
        (EXAMPLE, SLOTS, {Worker(3, 0)}, None, "not on a grid"),
        (EXAMPLE, SLOTS, set(), 0, "at least one micro-batch"),
        (EXAMPLE, SLOTS, set(), (1, 1), "2 stages, the grid has 4"),
        (EXAMPLE, unit_times(3), set(), None, "forward times are given for 3 stages"),
        (EXAMPLE, Times((1.0, 0.0, 1.0, 1.0), ONES, ONES), set(), None, "above zero"),
        (EXAMPLE, Times(ONES, ONES, ONES, transfer=-1.0), set(), None, "cannot take -1.0"),
        (Shape(4, 3, 0), SLOTS, set(), None, "at least one"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    shape: Shape, times: Times, failed: set[Worker], memory: int | tuple[int, ...] | None, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        plan_schedule(shape, times, failed, ScheduleOptions(memory=memory))


@pytest.mark.slow
@pytest.mark.parametrize("failures", long_except([3], [1, 2, 3, 4]))
@pytest.mark.parametrize("shape", long_except([(8, 4, 32)], [(8, 4, 32), (8, 4, 64)]))
def test_deep_pipelines_are_at_the_bound(shape: tuple[int, int, int], failures: int) -> None:
    grid = Shape(*shape)
    slots, failed = unit_times(grid.stages), spread(grid, failures)
    bound = find_bound(grid, slots, failed, is_decoupled=True)
    staggered = plan_schedule(grid, slots, failed)
    one_optimizer = plan_schedule(grid, slots, failed, ScheduleOptions(is_staggered=False))
    assert find_faults(staggered) == find_faults(one_optimizer) == []
    assert (staggered.period, one_optimizer.makespan) == (bound.period, bound.makespan)
