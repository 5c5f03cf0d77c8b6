"""The checker finds each kind of mistake in a schedule that was right before."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.pipeline.checking import Split, closed_form, find_bound, find_faults, place_failures, spread_failures
from lockstep.pipeline.dispatch import plan_schedule
from lockstep.pipeline.schedule import Op, Schedule, Shape, Times, Worker, unit_times
from tests.lockstep.pipeline.grids import EXAMPLE, ONE_GONE, SLOTS, failures_for, shapes, spread

RIGHT = plan_schedule(EXAMPLE, SLOTS, ONE_GONE)
SOMEBODY = Worker(0, 2)


def with_ops(ops: Sequence[Op], worker: Worker = SOMEBODY) -> Schedule:
    return replace(RIGHT, ops={**RIGHT.ops, worker: tuple(ops)})


def changed(number: int, start: float, end: float) -> Schedule:
    return with_ops([*OPS[:number], replace(OPS[number], start=start, end=end), *OPS[number + 1 :]])


OPS, PEER, GONE = RIGHT.ops[SOMEBODY], Worker(2, 2), Worker(1, 2)
LATE = replace(OPS[-1], start=90.0, end=91.0)
FIRST_WEIGHT = next(number for number, op in enumerate(OPS) if op.kind == "weight")
MOVED = {SOMEBODY: OPS[:-1], PEER: (*RIGHT.ops[PEER], replace(LATE, worker=PEER))}
SWAPPED = {
    one: tuple(replace(op, pipeline=other.pipeline) for op in RIGHT.ops[one])
    for one, other in ((Worker(0, 1), Worker(2, 1)), (Worker(2, 1), Worker(0, 1)))
}


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        (with_ops(OPS[:-1]), "is done in ['forward', 'input']"),
        (with_ops([*OPS, LATE]), "is done 2 times"),
        (with_ops([replace(OPS[0], worker=GONE)], GONE), "has failed"),
        (replace(RIGHT, ops={**RIGHT.ops, **MOVED}), "spread over several workers"),
        (changed(1, OPS[0].start, OPS[0].end), "begins before"),
        (changed(0, 0.0, 1.0), "is done and there"),  # before the stage above
        (changed(FIRST_WEIGHT, 0.0, 1.0), "is done and there"),  # before their input
        (changed(0, OPS[0].start, OPS[0].end - 0.5), "as long as it should"),
        (replace(RIGHT, ops={**RIGHT.ops, **SWAPPED}), "away from home"),
    ],
)
def test_each_mistake_is_named(schedule: Schedule, sentence: str) -> None:
    assert any(sentence in fault for fault in find_faults(schedule))


def test_a_right_schedule_has_no_faults_unless_it_takes_too_much_memory() -> None:
    assert find_faults(RIGHT, memory=8) == []
    for memory in (2, (8, 8, 2, 8)):
        assert any("which is more than 2" in fault for fault in find_faults(RIGHT, memory))


def test_a_step_is_bound_by_its_work_its_way_and_its_memory() -> None:
    bound = find_bound(EXAMPLE, SLOTS, ONE_GONE, is_decoupled=True)
    assert (bound.period, bound.makespan) == (9 * 3, 2 + 9 * 3), "by the work of the stage with the failure"
    coupled = find_bound(EXAMPLE, SLOTS, (), is_decoupled=False).makespan
    assert coupled == (6 + 4 - 1) * 3, "coupled backwards wait for the whole way down and up"
    assert find_bound(EXAMPLE, SLOTS, ONE_GONE, is_decoupled=False).makespan == 2 + 9 * 3 + 2 * 2
    assert find_bound(EXAMPLE, unit_times(4, transfer=0.5), (), is_decoupled=False).makespan == coupled + 6 * 0.5
    trip = 4 + 4 + 1  # down, up, weights
    assert find_bound(EXAMPLE, SLOTS, (), is_decoupled=True, memory=(1,) * 4).period == 6 * trip
    assert find_bound(Shape(stages=4, pipelines=1, micro_batches=1), SLOTS, (), is_decoupled=True).period == trip
    slow = Times((1.0, 3.0), (1.0, 3.0), (1.0, 3.0))
    assert find_bound(Shape(2, 1, 10), slow, (), is_decoupled=True).period == 90.0, "the slowest stage decides"


@given(st.data())
def test_a_failure_that_fits_the_bubble_is_free_to_within_a_slot(data: st.DataObject) -> None:
    drawn = data.draw(shapes())
    shape = replace(drawn, micro_batches=drawn.micro_batches + drawn.stages)  # with fewer the way itself is too long
    slots, failed = unit_times(shape.stages), data.draw(failures_for(shape))
    made = plan_schedule(shape, slots, failed)
    assert made.period <= closed_form(shape, slots, failed) + 1
    for stage in range(shape.stages):
        loads = [len(ops) for worker, ops in made.ops.items() if worker.stage == stage]
        assert max(loads) - min(loads) <= 3, "guests are spread evenly: one micro-batch is forward, input and weight"


def period_of(shape: Shape, times: Times, split: Split) -> float:
    return find_bound(shape, times, place_failures(split), is_decoupled=True).period


def test_failures_are_spread_evenly_over_equal_stages_while_there_are_copies() -> None:
    for failures, worst in ((1, 1), (4, 1), (5, 2), (8, 2)):
        split = spread_failures(EXAMPLE, SLOTS, failures)
        assert split is not None
        assert (sum(split), max(split)) == (failures, worst)
    assert spread_failures(EXAMPLE, SLOTS, 9) is None
    assert place_failures((0, 2, 1, 0)) == {Worker(0, 1), Worker(1, 1), Worker(0, 2)}
    assert period_of(EXAMPLE, SLOTS, (0, 2, 1, 0)) == 54.0
    shape = Shape(4, 8, 32)
    promised = [closed_form(shape, SLOTS, spread(shape, failures)) for failures in (0, 1, 4, 5)]
    assert promised == [105, 111, 111, 129], "the worst stage counts"


@given(st.data())
def test_no_split_of_as_many_failures_is_better(data: st.DataObject) -> None:
    shape = Shape(data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4)), data.draw(st.integers(8, 12)))
    work = tuple(data.draw(st.sampled_from([1.0, 1.5, 3.0])) for _ in range(shape.stages))
    times, failures = Times(work, work, work), data.draw(st.integers(0, (shape.pipelines - 1) * shape.stages))
    spread = spread_failures(shape, times, failures)
    splits = product(range(shape.pipelines), repeat=shape.stages)
    best = min(period_of(shape, times, split) for split in splits if sum(split) == failures)
    assert spread is not None
    assert period_of(shape, times, spread) == pytest.approx(best)
