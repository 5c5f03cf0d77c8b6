"""A node that was taken out is tested and comes back when it is healthy; after three failures it waits for repair."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import BadInput, LeaseLost, NotPresent
from lockstep.execution import Execution, Isolated, IsolationState, NodeOrder, NodeOrderKind, PartIdentity, Step
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import give_node_order, list_isolated, save_decisions, save_execution, save_isolated
from lockstep.state.documents import list_audit
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease, take_lease
from planner.escalation import find_level
from planner.node_return import CommandTester, Finding, Returner, follow_order, forget_repaired
from tests.planner.build import decision, execution, incident, isolated, seconds
from tests.planner.fake_controller import FakeController, make_world
from tests.planner.test_steps import begun
from tests.planner.world import NODES
from tests.waiting import eventually


@dataclass
class FakeTester:
    findings: list[Finding | None] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def poll(self, node: str, now_ns: int) -> Finding | None:
        return self.findings.pop(0)

    def forget(self, node: str) -> None:
        self.forgotten.append(node)


@dataclass
class Out:
    """A cluster in which h3 has been isolated at second 0."""

    control: ControlDatabase
    controller: FakeController
    lease: Lease
    returner: Returner

    def answer(self, *findings: Finding | None) -> None:
        self.returner = Returner(self.control, self.controller, FakeTester(list(findings)), rest_s=60)

    def run(self, *at_s: float) -> None:
        for second in at_s:
            self.returner.run_once(self.lease, seconds(second))

    def row(self) -> Isolated:
        (only,) = list_isolated(self.control)
        return only

    def state(self) -> tuple[str, str | None]:
        """What h3 is for us, and who keeps it isolated at the controller."""
        return self.row().state, self.controller.world.nodes["h3"]

    def say(self, kind: NodeOrderKind, at_s: float = 1.0, **more: Any) -> None:  # Any: of an order
        given = {"decision": "d1", "node": "h3", "kind": kind, "who": "ada", "ts_ns": seconds(at_s)}
        give_node_order(self.control, NodeOrder(**(given | more)))


@pytest.fixture
def out(tmp_path: Path, control: ControlDatabase, lease: Lease) -> Out:
    fake = make_world(tmp_path / "cluster.json", NODES)
    save_incidents(control, [incident()], None)
    save_decisions(control, [decision()], None)
    fake.isolate("h3", "d1", "slow")
    save_isolated(control, isolated(component="nic:h3/eth1"), lease)
    return Out(control, fake, lease, Returner(control, fake, None))


@pytest.mark.parametrize("until_s", [None, 300])
def test_node_rests_then_is_tested_and_returns_to_service_when_healthy(out: Out, until_s: int | None) -> None:
    rests_s = until_s or 60  # as the decision said, or as usual
    until_ns = seconds(until_s) if until_s else None
    save_isolated(out.control, out.row().model_copy(update={"until_ns": until_ns}), out.lease)
    out.answer(None, Finding(True, "all well"))
    out.run(rests_s - 1)
    assert out.state() == ("isolated", "d1")
    out.run(rests_s)
    assert out.state() == ("testing", "d1")
    out.run(rests_s + 1)
    assert (out.state(), out.row().message) == (("returned", None), "all well; release h3")


def test_node_that_fails_its_tests_is_left_for_repair_until_a_person_returns_it(out: Out) -> None:
    out.answer(*[Finding(False, "ECC errors")] * 3)
    out.run(60, 61, 660, 1260, 5000)
    assert (out.state(), out.row().tests) == (("repair", "d1"), 3)
    out.say("return", at_s=5001, why="the test is wrong")
    out.run(5002)
    assert out.state() == ("returned", None)
    assert out.row().message == "h3 is good, says ada: the test is wrong; release h3"


def test_node_that_somebody_else_isolated_meanwhile_is_not_released(out: Out) -> None:
    out.controller.mark(h3="somebody")
    out.answer(Finding(True, "all well"))
    out.run(60)
    assert out.state() == ("repair", "somebody")


def test_return_is_tried_again_where_the_controller_is_down_and_said_once(out: Out) -> None:
    out.controller.change(is_down=True)
    out.say("return")
    out.answer()
    out.run(2, 3, 30)
    out.controller.change(is_down=False)
    out.run(61)
    assert out.row().state == "returning", "not once a second"
    assert "not released: the fake controller does not answer" in out.row().message
    assert [line.what for line in list_audit(out.control, 9)] == ["node_returning", "node_returning", "return_node"]
    out.answer()
    out.run(62)  # the planner that comes after knows it as well
    assert out.state() == ("returned", None)


def test_part_that_was_sent_back_is_recorded_and_no_test_returns_its_node(out: Out) -> None:
    out.answer(None)
    out.run(60)
    sent = PartIdentity(uuid="GPU-42", serial="132", ticket="RMA-7")
    out.say("rma", at_s=61, part=sent)
    out.run(62, 1000, 9_000)
    assert (out.state(), out.row().part) == (("rma", "d1"), sent)
    line = next(line for line in list_audit(out.control, 9) if line.what == "rma_node")
    assert (line.who, line.subject, line.why) == ("ada", "h3", "uuid GPU-42, serial 132, ticket RMA-7")
    with pytest.raises(BadInput, match="h3 was sent back, and no test returns it"):
        out.say("test", at_s=70)
    with pytest.raises(NotPresent, match="Lockstep keeps no node 'h5' out of service"):
        out.say("return", node="h5")


def test_repaired_node_is_tested_afresh_and_its_tests_count_from_nought(out: Out) -> None:
    out.say("rma", part=PartIdentity(serial="132"))
    out.answer(Finding(False, "not seated"), Finding(True, "all well"))
    out.run(2)
    out.say("repaired", at_s=8_000)
    out.run(8_001)
    row = out.row()
    assert (row.state, row.tests, row.part, row.repaired_ns) == ("isolated", 1, None, seconds(8_001))
    out.run(8_001 + 600)
    assert out.state() == ("returned", None)


def test_without_a_test_command_a_persons_word_is_the_test(out: Out) -> None:
    out.say("test")
    out.run(9_000)
    assert out.row().state == "isolated"
    assert out.row().message == "h3 is to be tested, says ada; planner.test_command is not set, so nothing is tested"
    out.say("repaired")
    out.run(9_001)
    assert out.state() == ("returned", None)


def test_result_of_a_test_from_before_a_persons_word_is_thrown_away(out: Out) -> None:
    tester = FakeTester([None, None])
    out.returner = Returner(out.control, out.controller, tester)
    out.run(60)
    out.say("test", at_s=61)
    out.run(62)
    assert (tester.forgotten, out.row().state) == (["h3"], "testing")


def test_planner_that_was_replaced_releases_nothing(out: Out) -> None:
    out.say("return")
    take_lease(out.control, "planner", "another", ttl_ns=10**9, now_ns=out.lease.expires_ns + 1)
    with pytest.raises(LeaseLost):
        out.run(2)
    assert out.controller.world.nodes["h3"] == "d1"


def test_node_is_tested_only_when_its_job_has_left_it(out: Out) -> None:
    isolate, *rest = begun().steps
    convert = Step(act="convert", subject="/ckpt/u", state="begun", began_ns=seconds(1), tries=1)
    steps = (isolate.model_copy(update={"state": "done"}), convert, *rest)
    run = begun().model_copy(update={"steps": steps})
    save_execution(out.control, run, out.lease)
    out.answer(Finding(True, "all well"))
    out.run(100)
    assert out.row().state == "isolated", "it runs on while its checkpoint is converted"
    save_execution(out.control, run.model_copy(update={"state": "done", "ended_ns": seconds(101)}), out.lease)
    out.run(102)
    assert out.row().state == "returned"


def test_node_that_cannot_be_tested_stops_no_other(out: Out) -> None:
    out.controller.isolate("h4", "d1", "slow")
    save_isolated(out.control, isolated("h4", since_ns=seconds(1)), out.lease)
    out.say("return", at_s=50, node="h4")
    out.returner = Returner(out.control, out.controller, CommandTester(["/no/such/test", "{node}"], timeout_s=10))
    with pytest.raises(BadInput, match="the command `/no/such/test` cannot be started"):
        out.run(100)
    assert [(each.node, each.state) for each in list_isolated(out.control)] == [("h3", "testing"), ("h4", "returned")]


@pytest.mark.parametrize(
    ("script", "is_healthy", "message"),
    [
        ("echo $0 is well", True, "the test passed: h3 is well"),
        ("echo GPU 3 fails; exit 5", False, "the test failed with 5: GPU 3 fails"),
        ("true", True, "the test passed: no output"),
    ],
)
def test_command_says_whether_a_node_is_healthy(script: str, is_healthy: bool, message: str) -> None:
    tester = CommandTester(["sh", "-c", script, "{node}"], timeout_s=60)
    found: list[Finding | None] = []

    def is_over() -> bool:
        found.append(tester.poll("h3", seconds(0)))
        return found[-1] is not None

    eventually(is_over)
    assert found[-1] == Finding(is_healthy, message)


def test_command_that_does_not_end_has_failed_and_is_gone_and_one_without_the_node_is_refused() -> None:
    tester = CommandTester(["sh", "-c", "sleep 1000", "{node}"], timeout_s=5)
    assert tester.poll("h3", seconds(0)) is None
    assert tester.poll("h3", seconds(4)) is None
    assert tester.poll("h3", seconds(6)) == Finding(False, "the test did not end within 5 s; no output")
    with pytest.raises(BadInput, match=r"does not say \{node\}"):
        CommandTester(["true"], timeout_s=1)


def gpu(state: IsolationState = "isolated", **changes: Any) -> Isolated:
    return isolated(component="gpu:h3/0", state=state, tests=2, until_ns=seconds(600), **changes)


def test_word_moves_a_node() -> None:
    moves: list[tuple[IsolationState, NodeOrderKind, IsolationState]] = [
        ("repair", "test", "testing"),
        ("rma", "test", "rma"),
        ("rma", "return", "returning"),
        ("testing", "rma", "rma"),
        ("rma", "repaired", "testing"),
    ]
    for state, kind, expected in moves:
        order = NodeOrder(number=7, decision="d1", node="h3", kind=kind, who="ada", why="so", ts_ns=seconds(1))
        after = follow_order(gpu(state), order, can_test=True, now_ns=seconds(9))
        assert (after.state, after.last_order, after.changed_ns) == (expected, 7, seconds(9))
        assert "says ada: so" in after.message


def run(ended_s: float, component: str = "gpu:h3/0") -> Execution:
    return execution(component=component, began_ns=seconds(ended_s - 1), ended_ns=seconds(ended_s))


def test_history_of_a_part_begins_with_its_repair_and_a_new_part_stands_on_the_first_rung() -> None:
    runs, repaired = [run(10), run(30), run(10, "gpu:h4/0")], gpu("returned", repaired_ns=seconds(20))
    assert forget_repaired(runs, [repaired, gpu()]) == runs[1:]
    assert forget_repaired(runs, [gpu()]) == runs
    tried = [run(10)]
    old = find_level(2, "crash", "gpu:h3/0", tried, seconds(60))
    after = forget_repaired(tried, [gpu("returned", repaired_ns=seconds(20))])
    new = find_level(2, "crash", "gpu:h3/0", after, seconds(60))
    assert (old.is_exhausted, new.is_exhausted, new.severity) == (True, False, 2)
