"""An execution isolates before it restarts, and goes back when the restart does not come about."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.clock import NS_PER_S
from lockstep.decision import Action, Mode
from lockstep.execution import Execution, Order, Step
from planner import steps
from planner.controllers.protocol import Outcome, Report
from planner.steps import begin, due_step, mark_answered, mark_begun, next_step, undo
from tests.planner.build import decision, execution, seconds


def begun(action: Action = "replace", nodes: tuple[str, ...] = ("h3",)) -> Execution:
    return begin(decision(action, nodes), "host:h3", "policy", 1, seconds(0))


def answer(run: Execution, outcome: Outcome, at_s: float = 1.0) -> Execution:
    index = next_step(run)
    assert index is not None
    job = "train+1" if run.steps[index].act == "restart" and outcome != "failed" else None
    asked = mark_begun(run, index, seconds(at_s))
    return mark_answered(asked, index, Report(outcome, f"said {outcome}", job), seconds(at_s))


def acts(run: Execution) -> list[tuple[str, str]]:
    return [(step.act, step.state) for step in run.steps]


COMMAND = "python c --input_folder /ckpt/z --output_folder /ckpt/u"
CONVERT = {"checkpoint": "/ckpt/u", "format": "ds_zero", "convert": COMMAND}


def test_nodes_are_isolated_and_checkpoints_converted_before_a_restart() -> None:
    for about, expected in (
        (decision(), ["isolate", "restart", "watch"]),
        (decision("reroute", ()), ["watch"]),
        (decision("reattempt", (), resume=CONVERT), ["reattempt", "watch"]),
        (decision("restart_process", ()), ["restart", "watch"]),
        (decision(resume=CONVERT), ["isolate", "convert", "restart", "watch"]),
    ):
        assert [step.act for step in begin(about, "host:h3", "policy", 1, seconds(0)).steps] == expected


def test_execution_is_done_after_its_last_step_and_its_undo_releases_once() -> None:
    run = answer(answer(answer(begun(), "done"), "already"), "done", at_s=9)
    assert (run.state, run.ended_ns, run.new_job) == ("done", seconds(9), "train+1")
    turned = answer(undo(run, "ada", seconds(3)), "done")
    assert (turned.state, undo(turned, "ada again", seconds(4))) == ("undone", turned)


def test_refused_step_gives_back_what_was_or_may_have_been_isolated() -> None:
    run = answer(answer(begun(), "done"), "refused")
    assert (run.state, run.reason) == ("undoing", "said refused")
    assert acts(run) == [("isolate", "done"), ("restart", "failed"), ("release", "waiting")]
    assert answer(run, "done").state == "failed"
    run = answer(begun(), "refused")  # an earlier answer may have been lost
    assert acts(run) == [("isolate", "failed"), ("release", "waiting")]
    assert answer(run, "already").state == "failed"
    asked = mark_begun(begun(), 0, seconds(1))
    turned = undo(asked, "ada: wrong node", seconds(2))
    assert acts(turned) == [("isolate", "done"), ("release", "waiting")]
    assert answer(turned, "done").state == "undone"
    run = answer(answer(answer(begun(), "done"), "done"), "refused")
    assert (run.state, acts(run)[0]) == ("failed", ("isolate", "done"))


def test_failure_is_tried_again_after_longer_and_longer_waits_and_then_given_up() -> None:
    run, at_s, waits = answer(begun(), "done", at_s=0.0), 0.0, []
    for _ in range(steps.MOST_TRIES - 1):
        run = answer(run, "failed", at_s)
        assert (run.state, due_step(run, seconds(at_s))) == ("executing", None)
        waits.append(((run.steps[1].not_before_ns or 0) - seconds(at_s)) / NS_PER_S)
        at_s += waits[-1]
        assert due_step(run, seconds(at_s)) == 1
    assert waits == [5, 10, 20, 40, 60]
    run = answer(run, "failed", at_s)
    assert (run.state, run.steps[1].state, run.reason) == ("undoing", "failed", "said failed")
    kept = run.steps[1].failures
    assert [(each.ts_ns - seconds(0)) // NS_PER_S for each in kept] == [0, 5, 15, 35, 75, 135]
    assert {each.message for each in kept} == {"said failed"}
    lost = mark_begun(answer(answer(begun(), "done"), "failed", at_s=1), 1, seconds(6))
    assert due_step(lost, seconds(6)) == 1, "a try whose answer was lost is asked for again at once"
    assert (lost.steps[1].tries, lost.steps[1].message, len(lost.steps[1].failures)) == (2, "", 1)


def test_release_that_fails_for_ever_is_set_aside_and_tried_slowly() -> None:
    run = undo(answer(begun(), "done"), "ada", seconds(2))
    for count in range(steps.MOST_TRIES - 1):
        run = answer(run, "failed", at_s=count)
        assert run.state == "undoing"
    run = answer(run, "failed", at_s=99)
    assert (run.state, run.outcome, run.ended_ns) == ("release_failed", "undone", seconds(99))
    assert run.steps[-1].message == "release failed 6 times, a person must look: said failed"
    run = answer(run, "failed", at_s=100)
    assert due_step(run, seconds(100)) is None
    for count in range(5):
        run = answer(run, "failed", at_s=200 + count)
    assert due_step(run, seconds(204 + 599)) is None
    assert due_step(run, seconds(204 + 600)) is not None
    assert len(run.steps[-1].failures) == 10
    assert answer(run, "refused").state == "undone"
    late = answer(run, "done", at_s=900)
    assert (late.state, late.ended_ns) == ("undone", seconds(99))  # as far as its job goes, it was over before


def test_release_that_fails_does_not_hold_up_the_restart_of_a_stopped_job() -> None:
    run = answer(begun(), "done")
    run = mark_answered(mark_begun(run, 1, 1), 1, Report("failed", "no", is_half_done=True), seconds(1))
    run = undo(run, "ada", seconds(20))
    for count in range(steps.MOST_TRIES):
        index = next(index for index, step in enumerate(run.steps) if step.act == "release")
        stuck = mark_begun(run, index, seconds(20 + count))
        run = mark_answered(stuck, index, Report("failed", "no"), seconds(20 + count))
    assert run.state == "undoing"  # its job is not up again: nobody else may look after it
    due = due_step(run, seconds(26))
    assert due is not None
    assert run.steps[due].act == "restart"
    started = mark_answered(mark_begun(run, due, seconds(26)), due, Report("done", "up", "train+1"), seconds(26))
    assert started.new_job == "train+1"


def test_restart_is_told_where_not_to_run_and_where_to_resume() -> None:
    order = steps.restart_order(decision(), exclude=["h7"])
    assert (order.mark, order.job, order.exclude, order.nnodes) == ("d1", "train", ("h3", "h7"), 8)
    assert order.checkpoint == "/ckpt/400"
    assert order.environment == {"LOCKSTEP_ACTION": "replace", "LOCKSTEP_TARGET": '{"nnodes": 8, "dp": 4}'}
    order = steps.restart_order(decision(resume=CONVERT), exclude=[])
    assert (order.checkpoint, order.environment["LOCKSTEP_RESUME_FORMAT"]) == ("/ckpt/u", "universal")


ANSWERS = st.lists(st.sampled_from(["done", "already", "refused", "failed", "undo", "crash"]), max_size=40)


@given(ANSWERS, st.sampled_from(["replace", "reattempt", "restart_process"]), st.integers(1, 3))
def test_whatever_the_controller_answers_no_node_stays_isolated_that_the_job_has_not_left(
    answers: list[str], action: Action, count: int
) -> None:
    """The oracle keeps the isolated nodes as a controller would; a crash forgets all but what is written."""
    run = begun(action, nodes=tuple(f"h{n}" for n in range(count)) if action == "replace" else ())
    out: set[str] = set()
    for told in [*answers, *["done"] * 10]:
        index = next_step(run)
        if run.ended_ns is not None or index is None:
            break
        if told == "undo":
            run = undo(run, "ada", seconds(1))
            continue
        step = run.steps[index]
        run = mark_begun(run, index, seconds(1))
        if told in ("done", "already", "crash"):
            out |= {step.subject} if step.act == "isolate" else set()
            out -= {step.subject} if step.act == "release" else set()
        if told != "crash":
            run = mark_answered(run, index, Report(cast(Outcome, told), told), seconds(1))
    assert run.ended_ns is not None
    has_left = any(step.act == "restart" and step.state == "done" for step in run.steps)
    if run.state == "undone" or (run.state == "failed" and not has_left):
        assert out <= {step.subject for step in run.steps if step.act == "release" and step.state == "failed"}


def test_restart_that_has_stopped_its_job_is_never_given_up_and_ends_also_after_an_undo() -> None:
    run = answer(begun(), "done")
    for _ in range(5):
        index = next_step(run)
        assert index is not None
        run = mark_answered(mark_begun(run, index, 1), index, Report("failed", "no", is_half_done=True), 2)
    assert run.state == "executing"
    undone = undo(run, "I know", 3)
    assert [(step.act, step.state) for step in undone.steps[-2:]] == [("release", "waiting"), ("restart", "begun")]
    assert answer(answer(undone, "done"), "done").state == "undone"


@pytest.mark.parametrize(
    ("mode", "held", "words", "expected"),
    [
        ("execute", None, "", "policy"),
        ("execute", "it is stale", "", None),
        ("propose", None, "", None),
        ("propose", "it is stale", "approve", "ada"),
        ("observe", None, "approve", "ada"),
        ("execute", None, "reject", None),
        ("execute", None, "approve undo", None),
        ("propose", None, "reject approve", "ada"),
    ],
)
def test_the_last_word_of_a_person_counts_and_else_the_policy(
    mode: Mode, held: str | None, words: str, expected: str | None
) -> None:
    kinds: list[Any] = words.split()  # Any: the words of an order
    orders = [Order(decision="d1", kind=kind, who="ada", ts_ns=index) for index, kind in enumerate(kinds)]
    assert steps.find_approval(decision(mode=mode, held_because=held), orders) == expected


def ended(at_s: float) -> Execution:
    return begun().model_copy(update={"state": "done", "began_ns": seconds(at_s - 1), "ended_ns": seconds(at_s)})


def test_job_is_busy_and_its_decision_outdated_once_something_was_done() -> None:
    assert steps.is_busy("train", [begun()], seconds(1), settle_s=60.0)
    assert steps.is_busy("train", [ended(100)], seconds(159), settle_s=60.0)
    assert not steps.is_busy("train", [ended(100)], seconds(161), settle_s=60.0)
    assert not steps.is_busy("chat", [begun()], seconds(1), settle_s=60.0)
    assert steps.is_outdated(decision(), [ended(5)])
    assert not steps.is_outdated(decision(created_ns=seconds(6)), [ended(5)])
    assert not steps.is_outdated(decision(), [ended(5).model_copy(update={"job": "chat"})])
    known = decision()
    fresh = known.model_copy(update={"id": "d2", "created_ns": seconds(50), "reason": "said differently"})
    after = fresh.model_copy(update={"id": "d3", "job": "chat", "after": ("d2",)})
    kept = steps.keep_same([fresh, after], {"train": known}.get, [])
    assert [(each.id, each.after) for each in kept] == [("d1", ()), ("d3", ("d1",))]
    for other in ({"part_of": "p1"}, {"target": {"nnodes": 7}}):
        assert steps.keep_same([fresh.model_copy(update=other)], lambda job: known, [])[0].id == "d2"
    assert (
        steps.keep_same([fresh], lambda job: known, [ended(5)])
        == steps.keep_same([fresh], lambda job: None, [])
        == [fresh]
    )


def test_restarts_that_came_about_of_late_or_are_about_to_come_are_counted() -> None:
    done = Step(act="restart", subject="train", state="done", ended_ns=seconds(10))
    failed = done.model_copy(update={"state": "failed"})
    runs = [begun().model_copy(update={"steps": (step,)}) for step in (done, failed)]
    assert [steps.count_restarts(runs, seconds(since)) for since in (5, 11)] == [1, 0]
    assert [
        steps.count_restarts([execution(state=state, steps=begun().steps)], seconds(0))
        for state in ("executing", "failed")
    ] == [1, 0]


def test_spare_is_promised_until_the_job_that_takes_it_is_seen() -> None:
    taken = ended(100).model_copy(update={"new_job": "train+1"})
    assert steps.count_promised([begun(), taken], {"train"}, seconds(101)) == 2
    assert steps.count_promised([taken], {"train+1"}, seconds(101)) == 0, "it is seen on it"
    assert steps.count_promised([taken], {"train"}, seconds(700)) == 0, "who sends nothing for so long does not run"
    for nothing in ({"state": "failed"}, {"action": "reconfigure"}):
        assert steps.count_promised([taken.model_copy(update=nothing)], (), seconds(101)) == 0


def run(job: str, new_job: str | None) -> Execution:
    return execution(decision=f"d-{job}", job=job, new_job=new_job)


def test_names_go_back_to_the_first_and_on_to_the_newest_also_in_rings() -> None:
    runs = [run("102", "103"), run("101", "102"), run("7", "8"), run("6", None)]
    assert steps.names_of("103", runs) == ("103", "102", "101")
    assert steps.names_of("9", runs) == ("9",)
    assert [steps.newest_name(job, runs) for job in ("101", "103", "6")] == ["103", "103", "6"]
    assert steps.names_of("101", [run("101", "101")]) == ("101",)
    assert steps.names_of("a", [run("a", "b"), run("b", "a")]) == ("a", "b")
    assert steps.newest_name("a", [run("a", "b"), run("b", "a")]) == "b"
    assert steps.has_moved_on("101", [run("101", "102")])
    assert not steps.has_moved_on("101", [run("101", "101"), run("101", None)])
