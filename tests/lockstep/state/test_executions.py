"""Decisions, orders and executions come back as saved, under the lease, and every change is a line in the audit."""

import pytest

from lockstep.decision import AllJobs, Cost
from lockstep.errors import LeaseLost, NotPresent
from lockstep.execution import Execution, ExecutionState, Isolated, Order, Outcome, Step
from lockstep.state import decisions
from lockstep.state.database import ControlDatabase
from lockstep.state.documents import list_audit
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease, take_lease
from tests.fixtures.control import hold_lease
from tests.lockstep.state.build import decision, incident

STEP = Step(act="isolate", subject="h3", state="done", ended_ns=9)
ISOLATED = Isolated(
    node="h3",
    component="nic:h3/eth1",
    decision="d1",
    job="train",
    reason="slow",
    state="isolated",
    since_ns=7,
    changed_ns=7,
)


@pytest.fixture
def lease(db: ControlDatabase) -> Lease:
    save_incidents(db, [incident("i1"), incident("i2", job="other")], None)
    decisions.save_decisions(db, [decision("d1"), decision("d2")], None)
    return hold_lease(db, "planner", "me", ttl_ns=100)


def execution(name: str = "d1", state: ExecutionState = "executing", began_ns: int = 5) -> Execution:
    told = {"decision": name, "state": state, "began_ns": began_ns, "steps": (STEP,), "generation": 1}
    about = {"incident": "i1", "job": "train", "action": "replace", "component": "nic:h3/eth1", "approved_by": "ada"}
    return Execution.model_validate(told | about)


def isolated(**changes: object) -> Isolated:
    return ISOLATED.model_copy(update=changes)


def last_line(db: ControlDatabase) -> tuple[str, str, str, str]:
    line = list_audit(db, 1)[0]
    return line.who, line.what, line.subject, line.why


def test_decisions_are_saved_whole_and_found_newest_first(db: ControlDatabase, lease: Lease) -> None:
    with pytest.raises(NotPresent, match="there is no decision 'd9'"):
        decisions.get_decision(db, "d9")
    approved = decision("d1", created_ns=1).model_copy(update={"approved_by": "ada"})
    second, other = decision("d2", created_ns=2), decision("d3", incident="i2", job="other", created_ns=3)
    decisions.save_decisions(db, [approved, second, other], lease)
    assert decisions.get_decision(db, "d1") == approved, "an approval replaces the decision"
    assert decisions.list_decisions(db, incident="i1") == [second, approved]
    assert decisions.list_decisions(db, job="other") == [other]
    with pytest.raises(NotPresent, match="decision 'd5' answers incident 'i9', which is not here"):
        decisions.save_decisions(db, [decision("d4"), decision("d5", incident="i9")], None)
    assert len(decisions.list_decisions(db)) == 3, "one about an unknown incident is refused with all others"


def test_orders_come_back_in_the_order_in_which_they_were_given(db: ControlDatabase, lease: Lease) -> None:
    given = [
        Order(decision="d1", kind="approve", who="ada", why="go", ts_ns=3),
        Order(decision="d2", kind="reject", who="ada", ts_ns=4),
        Order(decision="d1", kind="undo", who="bob", why="wrong node", ts_ns=5),
    ]
    for order in given:
        decisions.give_order(db, order)
    assert last_line(db) == ("bob", "undo_decision", "d1", "wrong node")
    with pytest.raises(NotPresent, match="there is no decision 'd9'"):
        decisions.give_order(db, Order(decision="d9", kind="approve", who="ada", ts_ns=1))
    assert decisions.list_orders(db) == given
    assert decisions.list_orders(db, "d1") == [given[0], given[2]]
    assert decisions.list_orders(db, since_ns=4) == given[1:]


def test_execution_is_found_by_its_decision_and_written_together_with_its_node_and_its_line(
    db: ControlDatabase, lease: Lease
) -> None:
    decisions.save_execution(db, execution("d1"), lease)
    decisions.save_execution(db, execution("d2", "done", began_ns=6), lease)
    assert decisions.find_execution(db, "d1") == execution("d1")
    assert decisions.find_execution(db, "d9") is None
    assert decisions.unfinished_executions(db) == [execution("d1")]
    assert [run.decision for run in decisions.list_executions(db)] == ["d2", "d1"]
    assert decisions.list_executions(db, job="other") == []
    decisions.save_execution(db, execution(), lease, [isolated()], why="isolate h3: drained")
    assert last_line(db) == ("planner", "execution_executing", "d1", "isolate h3: drained")
    assert list_audit(db, 1)[0].ts_ns == STEP.ended_ns
    assert decisions.list_isolated(db) == [isolated()]


def test_planner_that_lost_its_lease_writes_nothing(db: ControlDatabase, lease: Lease) -> None:
    take_lease(db, "planner", "another", ttl_ns=100, now_ns=200)
    with pytest.raises(LeaseLost):
        decisions.save_execution(db, execution(), lease, [isolated()], why="isolate h3")
    with pytest.raises(LeaseLost):
        decisions.save_isolated(db, isolated(), lease, why="tested")
    with pytest.raises(LeaseLost, match="another has it now, generation 2"):
        decisions.save_decisions(db, [decision("d3")], lease)
    assert (decisions.list_executions(db), decisions.list_isolated(db), list_audit(db, 10)) == ([], [], [])
    assert len(decisions.list_decisions(db)) == 2


def test_node_is_written_over_on_its_way_back_and_kept_per_decision(db: ControlDatabase, lease: Lease) -> None:
    decisions.save_isolated(db, isolated(), lease)
    decisions.save_isolated(db, isolated(state="returned", changed_ns=20), lease, why="its test passed")
    decisions.save_isolated(db, isolated(decision="d2", since_ns=30), lease)
    found = decisions.list_isolated(db)
    assert [(each.decision, each.state) for each in found] == [("d1", "returned"), ("d2", "isolated")]
    assert decisions.list_isolated(db, since_ns=30) == found[1:]
    assert last_line(db)[1] == "node_returned"


def test_last_word_on_an_incident_counts(db: ControlDatabase, lease: Lease) -> None:
    first = Outcome(incident="i1", was_right=True, who="ada", ts_ns=3)
    second = Outcome(incident="i1", was_right=False, part="gpu:h3/0", who="bob", why="the GPU was hot", ts_ns=4)
    for outcome in (first, second):
        decisions.save_outcome(db, outcome)
    assert decisions.list_outcomes(db) == {"i1": second}
    assert last_line(db)[3] == "wrong: the GPU was hot"
    with pytest.raises(NotPresent, match="there is no incident 'i9'"):
        decisions.save_outcome(db, first.model_copy(update={"incident": "i9"}))


def test_documents_of_the_version_before_are_read() -> None:
    step = {"act": "isolate", "subject": "h3", "said": "drained", "failures": [{"ts_ns": 1, "said": "no answer"}]}
    read = Step.model_validate(step)
    assert (read.message, read.failures[0].message) == ("drained", "no answer")
    stored = isolated().model_dump() | {"message": "healthy", "last_order": 4}
    before = {{"message": "said", "last_order": "heard"}.get(name, name): value for name, value in stored.items()}
    assert Isolated.model_validate(before) == Isolated.model_validate(stored)
    assert Cost.model_validate({"waf_after": 0.7}) == Cost(throughput_after=0.7)
    shared = AllJobs.model_validate({"waf_before": 8.0, "waf_after": 7.0, "reason": "one node less"})
    assert (shared.throughput_before, shared.throughput_after) == (8.0, 7.0)
