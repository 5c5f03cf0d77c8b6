"""Advice is scored by what incidents turned out to be, and time is booked where it went."""

import pytest

from api.routes.decisions import find_downtimes, score
from lockstep.decision import Action, Cost, Decision, Option
from lockstep.execution import Execution, Outcome, Step
from tests.planner.build import crash, decision, execution, incident, seconds


def advice(about: str, action: Action = "replace", *, saves: float = 90.0, at_s: float = 10.0) -> Decision:
    nothing = Option(action="none", cost=Cost(gpu_hours=100.0), reason="")
    cost = Cost(gpu_hours=100.0 - saves, downtime_s=180.0)
    changes = {"id": f"d-{about}-{at_s}", "incident": about, "cost": cost, "alternatives": (nothing,)}
    return decision(action).model_copy(update=changes | {"created_ns": seconds(at_s), "checkpoint_age_s": 100.0})


def shared(made: Decision) -> Decision:
    """Return a decision as one that only follows for another job."""
    return made.model_copy(update={"part_of": "p1", "isolate": ()})


def outcome(about: str, was_right: bool) -> Outcome:
    return Outcome(incident=about, was_right=was_right, who="ada", ts_ns=seconds(1000))


def test_right_advice_saves_and_wrong_advice_drains_healthy_nodes() -> None:
    outcomes = {"i1": outcome("i1", True), "i2": outcome("i2", False)}
    card = score([advice("i1"), advice("i2"), advice("i3")], outcomes, {"train": 64})
    assert (card.advised, card.confirmed, card.right, card.wrong, card.precision) == (3, 2, 1, 1, 0.5)
    assert (card.saved_gpu_hours, card.wasted_gpu_hours) == (90.0, 64 * 180 / 3600)
    assert card.wrongly_drained == ("h3",)


@pytest.mark.parametrize(
    ("given", "saved"),
    [
        ([advice("i1", saves=10.0, at_s=5), advice("i1", saves=50.0, at_s=9), advice("i2", "none")], 50.0),
        ([advice("i1"), shared(advice("i1", "grow", saves=1.0, at_s=20))], 90.0),
    ],
)
def test_newest_advice_counts_and_neither_none_nor_what_follows_for_others(
    given: list[Decision], saved: float
) -> None:
    card = score(given, {"i1": outcome("i1", True)}, {})
    assert (card.advised, card.saved_gpu_hours) == (1, saved)
    assert score([advice("i1")], {}, {}).precision is None


def run(**changes: object) -> Execution:
    steps = (Step(act="isolate", subject="h3", state="done"), Step(act="restart", subject="train", state="done"))
    return execution(**({"began_ns": seconds(12), "ended_ns": seconds(52), "steps": steps} | changes))


def test_time_of_a_fault_goes_into_four_rows_of_which_one_may_be_open() -> None:
    # The fault began at 0 s, the incident was opened at 5 s.
    made = advice("i1", at_s=10.0).model_copy(update={"weighed_ns": seconds(10)})
    (row,) = find_downtimes([run()], {"d1": made}, {"i1": incident(crash())})
    assert (row.post_checkpoint_s, row.detection_s, row.diagnosis_s, row.reinitialisation_s) == (90, 5, 7, 40)
    assert row.total_s == 142
    made = advice("i1").model_copy(update={"checkpoint_age_s": None})
    (row,) = find_downtimes([run()], {"d1": made}, {"i1": incident(crash())})
    assert (row.post_checkpoint_s, row.total_s) == (None, 52)


@pytest.mark.parametrize(
    ("weighed_s", "age_s", "expected_s"),
    [
        (10, 100, 90),  # weighed when it was made: the checkpoint is from 90 s before the fault
        (310, 400, 90),  # the same answer was given again 5 min later, and then approved
        (310, 200, 0),  # saved meanwhile: nothing from before the fault is done again
        (None, 402, 90),  # of an older version: its figures are not newer than its beginning, at 312 s
    ],
)
def test_work_done_again_is_the_same_however_often_the_answer_was_repeated(
    weighed_s: float | None, age_s: float, expected_s: float
) -> None:
    weighed_ns = None if weighed_s is None else seconds(weighed_s)
    made = advice("i1", at_s=10.0).model_copy(update={"weighed_ns": weighed_ns, "checkpoint_age_s": age_s})
    begun = run(began_ns=seconds(312), ended_ns=seconds(352))
    (row,) = find_downtimes([begun], {"d1": made}, {"i1": incident(crash())})
    assert row.post_checkpoint_s == expected_s
    assert (row.detection_s, row.diagnosis_s, row.reinitialisation_s) == (5, 307, 40)


def test_what_restarted_no_job_or_only_gave_nodes_back_is_no_downtime() -> None:
    watched = run(steps=(Step(act="watch", subject="train", state="done"),))
    found = {"i1": incident(crash())}
    assert find_downtimes([watched, run(state="failed")], {"d1": advice("i1")}, found) == []
    assert find_downtimes([run()], {"d1": shared(advice("i1"))}, found) == []
