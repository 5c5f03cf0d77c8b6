"""A person's word moves an isolated node, and a repair ends the history of the part that was replaced."""

import pytest

from lockstep.execution import Execution, Isolated, IsolationState, NodeOrder, NodeOrderKind, PartIdentity
from planner.recovery.ladder import LadderOptions, find_standing
from planner.recovery.way_back import follow_order, forget_repaired
from tests.planner.recovery.build import seconds


def isolated(state: IsolationState = "isolated", **changes: object) -> Isolated:
    whole = Isolated(
        node="h3",
        component="gpu:h3/0",
        decision="d1",
        job="train",
        reason="slow",
        state=state,
        since_ns=seconds(0),
        changed_ns=seconds(0),
        tests=2,
        until_ns=seconds(600),
    )
    return whole.model_copy(update=changes)


def order(kind: NodeOrderKind) -> NodeOrder:
    part = PartIdentity(uuid="GPU-1") if kind == "rma" else None
    return NodeOrder(number=7, decision="d1", node="h3", kind=kind, who="ada", why="so", part=part, ts_ns=seconds(1))


@pytest.mark.parametrize(
    ("state", "kind", "expected"),
    [
        ("isolated", "test", "testing"),
        ("repair", "test", "testing"),
        ("rma", "test", "rma"),
        ("isolated", "return", "returning"),
        ("rma", "return", "returning"),
        ("testing", "rma", "rma"),
        ("rma", "repaired", "testing"),
        ("repair", "repaired", "testing"),
    ],
)
def test_word_moves_a_node_from_one_state_to_another(
    state: IsolationState, kind: NodeOrderKind, expected: IsolationState
) -> None:
    after = follow_order(isolated(state), order(kind), can_test=True, now_ns=seconds(9))
    assert (after.state, after.heard, after.changed_ns) == (expected, 7, seconds(9))
    assert "says ada: so" in after.said


def test_repair_starts_the_tests_anew_and_forgets_the_old_part() -> None:
    sent = follow_order(isolated(), order("rma"), can_test=True, now_ns=seconds(9))
    assert sent.part == PartIdentity(uuid="GPU-1")
    back = follow_order(sent, order("repaired"), can_test=True, now_ns=seconds(10))
    assert (back.tests, back.part, back.repaired_ns) == (0, None, seconds(10))


def run(ended_s: float, component: str = "gpu:h3/0") -> Execution:
    return Execution(
        decision=f"d{ended_s}",
        incident="i1",
        job="train",
        action="replace",
        component=component,
        state="done",
        generation=1,
        approved_by="policy",
        began_ns=seconds(ended_s - 1),
        ended_ns=seconds(ended_s),
    )


def test_history_of_a_part_begins_with_its_repair() -> None:
    runs, repaired = [run(10), run(30), run(10, "gpu:h4/0")], isolated("returned", repaired_ns=seconds(20))
    assert forget_repaired(runs, [repaired, isolated()]) == runs[1:]
    assert forget_repaired(runs, [isolated()]) == runs


def test_new_part_stands_on_the_first_rung_again() -> None:
    tried = [run(10)]
    old = find_standing(2, "crash", "gpu:h3/0", tried, seconds(60), LadderOptions())
    after = forget_repaired(tried, [isolated("returned", repaired_ns=seconds(20))])
    new = find_standing(2, "crash", "gpu:h3/0", after, seconds(60), LadderOptions())
    assert (old.is_exhausted, new.is_exhausted, new.severity) == (True, False, 2)
