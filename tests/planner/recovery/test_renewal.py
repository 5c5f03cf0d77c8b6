"""A decision holds while it is the same answer, nothing was done to its job, and nobody has spoken against it."""

import pytest

from lockstep.decision import Decision, Mode
from lockstep.execution import Execution, Order, OrderKind, Step
from planner.recovery.renewal import (
    count_promised,
    count_restarts,
    find_approval,
    is_busy,
    is_outdated,
    keep_same,
)
from tests.planner.recovery.build import seconds
from tests.planner.recovery.test_steps import begun, decision


@pytest.mark.parametrize(
    ("mode", "held", "words", "expected"),
    [
        ("execute", None, [], "policy"),
        ("execute", "it is stale", [], None),
        ("propose", None, [], None),
        ("propose", "it is stale", ["approve"], "ada"),
        ("observe", None, ["approve"], "ada"),
        ("execute", None, ["reject"], None),
        ("execute", None, ["approve", "undo"], None),
        ("propose", None, ["reject", "approve"], "ada"),
    ],
)
def test_the_last_word_of_a_person_counts_and_else_the_policy(
    mode: Mode, held: str | None, words: list[OrderKind], expected: str | None
) -> None:
    about: Decision = decision().model_copy(update={"mode": mode, "held_because": held})
    orders = [Order(decision="d1", kind=kind, who="ada", ts_ns=place) for place, kind in enumerate(words)]
    assert find_approval(about, orders) == expected


def ended(at_s: float) -> Execution:
    return begun().model_copy(update={"state": "done", "began_ns": seconds(at_s - 1), "ended_ns": seconds(at_s)})


def test_job_is_busy_while_something_is_done_for_it_and_for_a_while_afterwards() -> None:
    assert is_busy("train", [begun()], seconds(1), settle_s=60.0)
    assert is_busy("train", [ended(100)], seconds(159), settle_s=60.0)
    assert not is_busy("train", [ended(100)], seconds(161), settle_s=60.0)
    assert not is_busy("chat", [begun()], seconds(1), settle_s=60.0)


def test_decision_is_outdated_once_something_was_done_to_its_job() -> None:
    assert is_outdated(decision(), [ended(5)])
    assert not is_outdated(decision().model_copy(update={"created_ns": seconds(6)}), [ended(5)])
    assert not is_outdated(decision(), [ended(5).model_copy(update={"job": "chat"})])


def test_same_answer_keeps_its_id_and_another_does_not() -> None:
    known = decision()
    fresh = known.model_copy(update={"id": "d2", "created_ns": seconds(50), "reason": "said differently"})
    assert keep_same(known, fresh, []).id == "d1"
    assert keep_same(known, fresh.model_copy(update={"part_of": "p1"}), []).id == "d2"
    assert keep_same(known, fresh.model_copy(update={"target": {"nnodes": 7}}), []).id == "d2"
    assert keep_same(known, fresh, [ended(5)]).id == "d2"
    assert keep_same(None, fresh, []) is fresh


def test_restarts_that_came_about_of_late_are_counted() -> None:
    done = Step(act="restart", subject="train", state="done", ended_ns=seconds(10))
    failed = done.model_copy(update={"state": "failed"})
    runs = [begun().model_copy(update={"steps": (step,)}) for step in (done, failed)]
    assert [count_restarts(runs, seconds(since)) for since in (5, 11)] == [1, 0]


def test_restart_that_is_about_to_come_is_counted_and_one_that_was_given_up_is_not() -> None:
    assert count_restarts([begun()], seconds(0)) == 1
    assert count_restarts([begun().model_copy(update={"state": "failed"})], seconds(0)) == 0


def test_spare_is_promised_until_the_job_that_takes_it_is_seen() -> None:
    taken = ended(100).model_copy(update={"new_job": "train+1"})
    assert count_promised([begun(), taken], {"train"}, seconds(101)) == 2
    assert count_promised([taken], {"train+1"}, seconds(101)) == 0, "it is seen on it"
    assert count_promised([taken], {"train"}, seconds(700)) == 0, "who sends nothing for so long does not run"
    for nothing in ({"state": "failed"}, {"action": "reconfigure"}):
        assert count_promised([taken.model_copy(update=nothing)], (), seconds(101)) == 0
