"""Plans are there before the fault, fit whoever has failed, lead back on a return."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput, NotPresent
from planner.pipeline.plans import (
    Change,
    LostStage,
    Migration,
    Normalised,
    NormaliseOptions,
    Split,
    find_plan,
    make_plans,
    normalise,
    period_of,
    place_failures,
    split_failures,
    spread_failures,
    take_back,
)
from planner.pipeline.schedule import Shape, Times, Worker, unit_times
from tests.planner.pipeline.grids import EXAMPLE, SLOTS

BOOK = make_plans(EXAMPLE, SLOTS, most=3)


def found(failed: set[Worker]) -> Change:
    change = find_plan(BOOK, failed)
    assert isinstance(change, Change)
    return change


def test_there_is_a_plan_per_number_of_failures_while_each_stage_has_a_copy() -> None:
    assert [len(schedule.failed) for schedule in BOOK.schedules] == [0, 1, 2, 3]
    assert BOOK.schedules[1].period == 27.0
    assert len(make_plans(Shape(2, 2, 2), unit_times(2), most=9).schedules) == 3  # 0, 1 and 2 failures
    assert [sum(BOOK.split(failures)) for failures in range(4)] == [0, 1, 2, 3]


def test_everybody_plays_one_role_and_himself_without_failures() -> None:
    change = found(set())
    assert (change.migrations, len(change.roles)) == ((), 12)
    assert all(role == worker for role, worker in change.roles.items())
    change = found({Worker(0, 0), Worker(1, 0), Worker(2, 3)})
    assert set(change.roles) == set(change.schedule.ops)
    assert len(set(change.roles.values())) == len(change.roles)


def test_a_failure_in_the_planned_stage_needs_no_copy_and_one_elsewhere_is_moved_to_it() -> None:
    (planned,) = BOOK.schedules[1].failed
    gone = Worker((planned.pipeline + 1) % 3, planned.stage)
    change = found({gone})
    assert change.migrations == ()
    assert gone not in change.roles.values()
    assert change.roles[gone] == planned  # the planned one is live and plays the role of the failed one
    (planned,) = BOOK.schedules[1].failed
    gone = Worker(2, (planned.stage + 1) % 4)
    change = found({gone})
    assert [(move.leaves.stage, move.takes) for move in change.migrations] == [(planned.stage, gone)]
    assert change.reason == "plan for 1 failures with 1 copies: a step takes 27"


def test_a_lost_stage_and_more_failures_than_plans_have_no_plan() -> None:
    assert isinstance(find_plan(BOOK, {Worker(pipeline, 1) for pipeline in range(3)}), LostStage)
    gone = {Worker(0, stage) for stage in range(4)}
    with pytest.raises(NotPresent, match="up to 3 failures, and 4 workers have failed"):
        find_plan(BOOK, gone)
    with pytest.raises(BadInput, match="no place is empty"):
        take_back(BOOK, set(), Worker(0, 0))


def test_a_worker_that_comes_back_copies_its_stage_or_gets_the_empty_place() -> None:
    (gone,) = BOOK.schedules[1].failed
    change = take_back(BOOK, {gone}, gone, stage_bytes=(5, 6, 7, 8))
    assert isinstance(change, Change)
    assert change.schedule is BOOK.schedules[0]
    assert change.migrations == (Migration(gone, gone, 5 + gone.stage),)
    (empty,) = BOOK.schedules[1].failed
    old = Worker(2, (empty.stage + 1) % 4)
    change = take_back(BOOK, {empty}, old)
    assert isinstance(change, Change)
    assert [(move.leaves, move.takes) for move in change.migrations] == [(old, empty)]
    assert f"comes back as {tuple(empty)}" in change.reason


def test_going_down_and_back_up_ends_where_it_began() -> None:
    failed = set(BOOK.schedules[3].failed)
    while failed:
        gone = max(failed)
        change = take_back(BOOK, failed, gone)
        assert isinstance(change, Change)
        failed -= {change.migrations[0].takes}
        assert change.schedule is BOOK.schedules[len(failed)]


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


def test_a_copy_is_made_only_where_it_pays() -> None:
    found = normal(TWO_IN_ONE_STAGE, NormaliseOptions(copy_time=100.0, steps=3))
    assert (found.migrations, found.failed) == ((), TWO_IN_ONE_STAGE)
    assert found.reason == "no move pays: the least period is 54, and a copy takes 100"
    assert len(normal(TWO_IN_ONE_STAGE, NormaliseOptions(copy_time=100.0, steps=4)).migrations) == 1
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


def test_failures_are_spread_evenly_over_equal_stages_while_there_are_copies() -> None:
    for failures, worst in ((1, 1), (4, 1), (5, 2), (8, 2)):
        split = spread_failures(EXAMPLE, SLOTS, failures)
        assert split is not None
        assert (sum(split), max(split)) == (failures, worst)
    assert spread_failures(EXAMPLE, SLOTS, 9) is None


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
