"""Failures move to where they cost least, only if the copy pays, and a stage without copies means a restart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.recovery.recycle.normalising import (
    LostStage,
    Migration,
    Normalised,
    NormaliseOptions,
    Split,
    normalise,
    period_of,
    place_failures,
    split_failures,
    spread_failures,
)
from planner.recovery.recycle.schedule import Shape, Times, Worker, unit_times
from tests.planner.recovery.recycle.grids import EXAMPLE, SLOTS

TWO_IN_ONE_STAGE = frozenset({Worker(0, 2), Worker(1, 2)})


def normal(failed: frozenset[Worker], options: NormaliseOptions | None = None) -> Normalised:
    found = normalise(EXAMPLE, SLOTS, failed, options)
    assert isinstance(found, Normalised)
    return found


def test_the_second_failure_of_a_stage_moves_to_another() -> None:
    found = normal(TWO_IN_ONE_STAGE, NormaliseOptions(stage_bytes=(1, 2, 30, 4)))
    assert (found.period_before, found.period) == (54.0, 27.0)
    assert found.migrations == (Migration(leaves=Worker(0, 0), takes=Worker(0, 2), bytes=30),)
    assert found.failed == {Worker(1, 2), Worker(0, 0)}
    assert found.reason == "1 move shortens the least period from 54 to 27"


def test_a_copy_that_does_not_pay_is_not_made() -> None:
    found = normal(TWO_IN_ONE_STAGE, NormaliseOptions(copy_time=100.0, steps=3))
    assert (found.migrations, found.failed) == ((), TWO_IN_ONE_STAGE)
    assert found.reason == "no move pays: the least period is 54, and a copy takes 100"


def test_a_copy_that_pays_is_made() -> None:
    assert len(normal(TWO_IN_ONE_STAGE, NormaliseOptions(copy_time=100.0, steps=4)).migrations) == 1


def test_a_failure_where_it_should_be_stays() -> None:
    assert normal(frozenset({Worker(1, 2)})).migrations == ()


def test_failures_leave_the_slowest_stage() -> None:
    slow = Times((1.0, 2.0, 1.0), (1.0, 2.0, 1.0), (1.0, 2.0, 1.0))
    found = normalise(Shape(3, 4, 12), slow, {Worker(2, 1)})
    assert isinstance(found, Normalised)
    assert split_failures(Shape(3, 4, 12), found.failed) == (1, 0, 0)
    assert [move.takes for move in found.migrations] == [Worker(2, 1)]


def test_a_stage_without_copies_is_a_restart() -> None:
    found = normalise(EXAMPLE, SLOTS, {Worker(pipeline, 3) for pipeline in range(3)})
    assert found == LostStage(3, "stage 3 has lost all 3 copies; only a restart brings it back")


@pytest.mark.parametrize(("failures", "worst"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_failures_are_spread_evenly_over_equal_stages(failures: int, worst: int) -> None:
    split = spread_failures(EXAMPLE, SLOTS, failures)
    assert split is not None
    assert (sum(split), max(split)) == (failures, worst)


def test_more_failures_than_spare_copies_have_no_split() -> None:
    assert spread_failures(EXAMPLE, SLOTS, 9) is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_split_of_as_many_failures_is_better(data: st.DataObject) -> None:
    shape = Shape(data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4)), data.draw(st.integers(8, 12)))
    work = tuple(data.draw(st.sampled_from([1.0, 1.5, 3.0])) for _ in range(shape.stages))
    times = Times(work, work, work)
    split = tuple(data.draw(st.integers(0, shape.pipelines - 1)) for _ in range(shape.stages))
    found = normalise(shape, times, place_failures(split))
    spread = spread_failures(shape, times, sum(split))
    best = min(period_of(shape, times, one) for one in all_splits(shape, sum(split)))
    assert isinstance(found, Normalised)
    assert spread is not None
    assert found.period == pytest.approx(best)
    assert period_of(shape, times, spread) == pytest.approx(best)
    assert len(found.failed) == sum(split)


def all_splits(shape: Shape, failures: int) -> list[Split]:
    splits: list[Split] = [()]
    for _ in range(shape.stages):
        splits = [(*split, lost) for split in splits for lost in range(shape.pipelines)]
    return [split for split in splits if sum(split) == failures]


def test_places_stand_for_their_split() -> None:
    assert split_failures(EXAMPLE, place_failures((0, 2, 1, 0))) == (0, 2, 1, 0)
    assert period_of(EXAMPLE, unit_times(4), (0, 2, 1, 0)) == 54.0
