"""Plans are there before the fault, fit whoever has failed, lead back on a return, and survive a file."""

import json
from typing import Any

import pytest

from lockstep.errors import BadInput, NotPresent
from planner.recovery.recycle.normalising import LostStage, Migration
from planner.recovery.recycle.plan_file import from_json, to_json
from planner.recovery.recycle.plans import Change, PlanBook, find_plan, make_plans, take_back
from planner.recovery.recycle.schedule import Shape, Worker, unit_times
from tests.planner.recovery.recycle.grids import EXAMPLE, SLOTS

BOOK = make_plans(EXAMPLE, SLOTS, most=3)


def found(failed: set[Worker]) -> Change:
    change = find_plan(BOOK, failed)
    assert isinstance(change, Change)
    return change


def test_there_is_a_plan_per_number_of_failures() -> None:
    assert [len(schedule.failed) for schedule in BOOK.schedules] == [0, 1, 2, 3]
    assert BOOK.schedules[1].period == 27.0


def test_plans_end_where_a_stage_would_have_no_copy() -> None:
    assert len(make_plans(Shape(2, 2, 2), unit_times(2), most=9).schedules) == 3  # 0, 1 and 2 failures


def test_without_failures_everybody_plays_himself() -> None:
    change = found(set())
    assert (change.migrations, len(change.roles)) == ((), 12)
    assert all(role == worker for role, worker in change.roles.items())


def test_a_failure_in_the_planned_stage_needs_no_copy() -> None:
    (planned,) = BOOK.schedules[1].failed
    gone = Worker((planned.pipeline + 1) % 3, planned.stage)
    change = found({gone})
    assert change.migrations == ()
    assert gone not in change.roles.values()
    assert change.roles[gone] == planned  # the planned one is live and plays the role of the failed one


def test_a_failure_elsewhere_is_moved_to_the_planned_stage() -> None:
    (planned,) = BOOK.schedules[1].failed
    gone = Worker(2, (planned.stage + 1) % 4)
    change = found({gone})
    assert [(move.leaves.stage, move.takes) for move in change.migrations] == [(planned.stage, gone)]
    assert change.reason == "plan for 1 failures with 1 copies: a step takes 27"


def test_every_role_is_played_by_somebody_else_once() -> None:
    change = found({Worker(0, 0), Worker(1, 0), Worker(2, 3)})
    assert set(change.roles) == set(change.schedule.ops)
    assert len(set(change.roles.values())) == len(change.roles)


def test_a_lost_stage_has_no_plan() -> None:
    assert isinstance(find_plan(BOOK, {Worker(pipeline, 1) for pipeline in range(3)}), LostStage)


def test_more_failures_than_plans_are_said() -> None:
    gone = {Worker(0, stage) for stage in range(4)}
    with pytest.raises(NotPresent, match="up to 3 failures, and 4 workers have failed"):
        find_plan(BOOK, gone)


def test_a_worker_that_comes_back_copies_its_stage_and_the_plan_before_holds() -> None:
    (gone,) = BOOK.schedules[1].failed
    change = take_back(BOOK, {gone}, gone, stage_bytes=(5, 6, 7, 8))
    assert isinstance(change, Change)
    assert change.schedule is BOOK.schedules[0]
    assert change.migrations == (Migration(gone, gone, 5 + gone.stage),)


def test_a_worker_whose_place_is_taken_gets_the_empty_one() -> None:
    (empty,) = BOOK.schedules[1].failed
    old = Worker(2, (empty.stage + 1) % 4)
    change = take_back(BOOK, {empty}, old)
    assert isinstance(change, Change)
    assert [(move.leaves, move.takes) for move in change.migrations] == [(old, empty)]
    assert f"comes back as {tuple(empty)}" in change.reason


def test_nobody_comes_back_where_nobody_is_gone() -> None:
    with pytest.raises(BadInput, match="no place is empty"):
        take_back(BOOK, set(), Worker(0, 0))


def test_going_down_and_back_up_ends_where_it_began() -> None:
    failed = set(BOOK.schedules[3].failed)
    while failed:
        gone = max(failed)
        change = take_back(BOOK, failed, gone)
        assert isinstance(change, Change)
        failed -= {change.migrations[0].takes}
        assert change.schedule is BOOK.schedules[len(failed)]


def written() -> Any:
    return json.loads(json.dumps(to_json(BOOK)))


def test_plans_are_the_same_after_a_file() -> None:
    read = from_json(written())
    assert read.shape == BOOK.shape
    assert [one.ops for one in read.schedules] == [dict(one.ops) for one in BOOK.schedules]
    assert [one.failed for one in read.schedules] == [one.failed for one in BOOK.schedules]


def test_a_plan_that_cannot_be_run_is_refused() -> None:
    values = written()
    values["plans"][1]["work"][0]["starts"][0] += 50.0
    with pytest.raises(BadInput, match="plan for 1 failures cannot be run"):
        from_json(values)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, "no stored plans"),
        ({"plans": [{"failed": [], "work": []}]}, "no work"),
        ({"stages": "many"}, "no stored plans"),
    ],
)
def test_other_files_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        from_json(written() | change)


def test_a_book_knows_its_splits() -> None:
    assert isinstance(BOOK, PlanBook)
    assert [sum(BOOK.split(failures)) for failures in range(4)] == [0, 1, 2, 3]
