"""A node that was taken out is tested and comes back when it is healthy; after three failures it waits for repair."""

import sys
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
from planner.escalation import EscalationOptions, find_level
from planner.node_return import CommandTester, Finding, Returner, ReturnOptions, follow_order, forget_repaired
from tests.planner.build import incident, seconds
from tests.planner.fake_controller import FakeController, make_world
from tests.planner.test_steps import begun, decision
from tests.planner.world import NODES
from tests.waiting import eventually


@dataclass
class FakeTester:
    """Says what it was told to say, one finding a look."""

    findings: list[Finding | None] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def poll(self, node: str, now_ns: int) -> Finding | None:
        return self.findings.pop(0)

    def forget(self, node: str) -> None:
        self.forgotten.append(node)


@pytest.fixture
def controller(tmp_path: Path, control: ControlDatabase, lease: Lease) -> FakeController:
    """A cluster in which h3 has been isolated at second 0."""
    fake = make_world(tmp_path / "cluster.json", NODES)
    save_incidents(control, [incident()], None)
    save_decisions(control, [decision()], None)
    fake.isolate("h3", "d1", "slow")
    isolated = Isolated(
        node="h3",
        component="nic:h3/eth1",
        decision="d1",
        job="train",
        reason="slow",
        state="isolated",
        since_ns=seconds(0),
        changed_ns=seconds(0),
    )
    save_isolated(control, isolated, lease)
    return fake


def states(control: ControlDatabase) -> list[str]:
    return [each.state for each in list_isolated(control)]


def returner(control: ControlDatabase, controller: FakeController, *findings: Finding | None) -> Returner:
    return Returner(control, controller, FakeTester(list(findings)), ReturnOptions(rest_s=60, tests=3, again_s=600))


def test_node_rests_before_its_test(control: ControlDatabase, controller: FakeController, lease: Lease) -> None:
    returner(control, controller).run_once(lease, seconds(59))
    assert states(control) == ["isolated"]


def test_healthy_node_returns_to_service(control: ControlDatabase, controller: FakeController, lease: Lease) -> None:
    back = returner(control, controller, None, Finding(True, "all well"))
    back.run_once(lease, seconds(60))
    assert (states(control), controller.world.nodes["h3"]) == (["testing"], "d1")
    back.run_once(lease, seconds(61))
    assert (states(control), controller.world.nodes["h3"]) == (["returned"], None)
    assert list_isolated(control)[0].message == "all well; release h3"


def test_node_that_fails_its_tests_is_left_for_repair(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    back = returner(control, controller, *[Finding(False, "ECC errors")] * 3)
    for at_s in (60, 61, 660, 1260, 5000):
        back.run_once(lease, seconds(at_s))
    assert (states(control), controller.world.nodes["h3"]) == (["repair"], "d1")
    assert list_isolated(control)[0].tests == 3


def test_node_that_somebody_else_isolated_meanwhile_is_not_released(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    world = controller.world
    world.nodes["h3"] = "somebody"
    controller.save(world)
    returner(control, controller, Finding(True, "all well")).run_once(lease, seconds(60))
    assert (states(control), controller.world.nodes["h3"]) == (["repair"], "somebody")


def test_release_is_asked_for_again_where_the_controller_is_down(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    world = controller.world
    world.is_down = True
    controller.save(world)
    back = returner(control, controller, Finding(True, "all well"))  # one test is enough
    back.run_once(lease, seconds(60))
    (row,) = list_isolated(control)
    assert (row.state, row.message) == ("returning", "not released: the fake controller does not answer")
    world.is_down = False
    controller.save(world)
    back.run_once(lease, seconds(61))
    assert states(control) == ["returning"]  # not once a second
    back.run_once(lease, seconds(120))
    assert (states(control), controller.world.nodes["h3"]) == (["returned"], None)


def test_node_is_tested_when_the_decision_said(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    (row,) = list_isolated(control)
    save_isolated(control, row.model_copy(update={"until_ns": seconds(300)}), lease)
    back = returner(control, controller, None)
    back.run_once(lease, seconds(299))
    assert states(control) == ["isolated"]
    back.run_once(lease, seconds(300))
    assert states(control) == ["testing"]


def say(control: ControlDatabase, kind: NodeOrderKind, at_s: float = 1.0, **more: Any) -> None:  # Any: of an order
    """Let ada say something of h3."""
    given = {"decision": "d1", "node": "h3", "kind": kind, "who": "ada", "ts_ns": seconds(at_s)}
    give_node_order(control, NodeOrder(**(given | more)))


def test_person_has_a_node_tested_at_once(control: ControlDatabase, controller: FakeController, lease: Lease) -> None:
    say(control, "test", why="cable reseated")
    returner(control, controller, Finding(True, "all well")).run_once(lease, seconds(2))
    assert (states(control), controller.world.nodes["h3"]) == (["returned"], None)
    message = [line.why for line in list_audit(control, 3)]
    assert message == ["all well; release h3", "h3 is to be tested, says ada: cable reseated", "cable reseated"]


def test_person_returns_a_node_that_waits_for_repair_without_a_test(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    back = returner(control, controller, *[Finding(False, "ECC errors")] * 3)
    for at_s in (60, 660, 1260):
        back.run_once(lease, seconds(at_s))
    assert states(control) == ["repair"]
    say(control, "return", at_s=1300, why="the test is wrong")
    back.run_once(lease, seconds(1301))
    assert (states(control), controller.world.nodes["h3"]) == (["returned"], None)
    assert list_isolated(control)[0].message == "h3 is good, says ada: the test is wrong; release h3"


def test_return_is_tried_again_where_the_controller_is_down_and_said_once(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    world = controller.world
    world.is_down = True
    controller.save(world)
    say(control, "return")
    back = returner(control, controller)
    for at_s in (2, 3, 30, 61):
        back.run_once(lease, seconds(at_s))
    assert [line.what for line in list_audit(control, 9)] == ["node_returning", "node_returning", "return_node"]
    world.is_down = False
    controller.save(world)
    returner(control, controller).run_once(lease, seconds(62))  # the planner that comes after knows it as well
    assert (states(control), controller.world.nodes["h3"]) == (["returned"], None)


def test_part_that_was_sent_back_is_recorded_and_no_test_returns_its_node(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    back = returner(control, controller, None)
    back.run_once(lease, seconds(60))
    sent = PartIdentity(uuid="GPU-42", serial="132", ticket="RMA-7")
    say(control, "rma", at_s=61, part=sent)
    for at_s in (62, 1000, 9_000):
        back.run_once(lease, seconds(at_s))
    (row,) = list_isolated(control)
    assert (row.state, row.part, controller.world.nodes["h3"]) == ("rma", sent, "d1")
    line = next(line for line in list_audit(control, 9) if line.what == "rma_node")
    assert (line.who, line.subject, line.why) == ("ada", "h3", "uuid GPU-42, serial 132, ticket RMA-7")
    with pytest.raises(BadInput, match="h3 was sent back, and no test returns it"):
        say(control, "test", at_s=70)


def test_repaired_node_is_tested_afresh_and_its_tests_count_from_nought(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    say(control, "rma", part=PartIdentity(serial="132"))
    back = returner(control, controller, Finding(False, "not seated"), Finding(True, "all well"))
    back.run_once(lease, seconds(2))
    say(control, "repaired", at_s=8_000)
    back.run_once(lease, seconds(8_001))
    (row,) = list_isolated(control)
    assert (row.state, row.tests, row.part, row.repaired_ns) == ("isolated", 1, None, seconds(8_001))
    back.run_once(lease, seconds(8_001 + 600))
    assert (states(control), controller.world.nodes["h3"]) == (["returned"], None)


def test_without_a_test_command_a_persons_word_is_the_test(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    back = Returner(control, controller, None)
    say(control, "test")
    back.run_once(lease, seconds(9_000))
    (row,) = list_isolated(control)
    assert row.state == "isolated"
    assert row.message == "h3 is to be tested, says ada; planner.test_command is not set, so nothing is tested"
    say(control, "repaired")
    back.run_once(lease, seconds(9_001))
    assert (states(control), controller.world.nodes["h3"]) == (["returned"], None)


def test_result_of_a_test_from_before_a_persons_word_is_thrown_away(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    tester = FakeTester([None, None])
    back = Returner(control, controller, tester)
    back.run_once(lease, seconds(60))
    say(control, "test", at_s=61)
    back.run_once(lease, seconds(62))
    assert (tester.forgotten, states(control)) == (["h3"], ["testing"])


def test_order_on_a_node_that_is_in_service_is_refused(control: ControlDatabase, controller: FakeController) -> None:
    with pytest.raises(NotPresent, match="Lockstep keeps no node 'h5' out of service"):
        say(control, "return", node="h5")


def test_planner_that_was_replaced_releases_nothing(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    say(control, "return")
    take_lease(control, "planner", "another", ttl_ns=10**9, now_ns=lease.expires_ns + 1)
    with pytest.raises(LeaseLost):
        returner(control, controller).run_once(lease, seconds(2))
    assert controller.world.nodes["h3"] == "d1"


def test_node_is_tested_only_when_its_job_has_left_it(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    isolate, *rest = begun().steps
    convert = Step(act="convert", subject="/ckpt/u", state="begun", began_ns=seconds(1), tries=1)
    steps = (isolate.model_copy(update={"state": "done"}), convert, *rest)
    run = begun().model_copy(update={"steps": steps})
    save_execution(control, run, lease)
    back = returner(control, controller, Finding(True, "all well"))
    back.run_once(lease, seconds(100))
    assert states(control) == ["isolated"], "it runs on while its checkpoint is converted"
    save_execution(control, run.model_copy(update={"state": "done", "ended_ns": seconds(101)}), lease)
    back.run_once(lease, seconds(102))
    assert states(control) == ["returned"]


def test_node_that_cannot_be_tested_stops_no_other(
    control: ControlDatabase, controller: FakeController, lease: Lease
) -> None:
    (row,) = list_isolated(control)
    controller.isolate("h4", "d1", "slow")
    later = {"node": "h4", "component": "nic:h4/eth1", "since_ns": seconds(1)}
    save_isolated(control, row.model_copy(update=later), lease)
    say(control, "return", at_s=50, node="h4")
    back = Returner(control, controller, CommandTester(["/no/such/test", "{node}"], timeout_s=10))
    with pytest.raises(BadInput, match="the command `/no/such/test` cannot be started"):
        back.run_once(lease, seconds(100))
    assert [(each.node, each.state) for each in list_isolated(control)] == [("h3", "testing"), ("h4", "returned")]


def poll_until_over(tester: CommandTester, now_ns: int) -> Finding:
    found: list[Finding] = []

    def is_over() -> bool:
        finding = tester.poll("h3", now_ns)
        found.extend([finding] if finding else [])
        return bool(found)

    eventually(is_over)
    return found[0]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print('h3 is well')", Finding(True, "the test passed: h3 is well")),
        ("print('GPU 3 fails'); raise SystemExit(5)", Finding(False, "the test failed with 5: GPU 3 fails")),
        ("pass", Finding(True, "the test passed: no output")),
    ],
)
def test_command_says_whether_a_node_is_healthy(program: str, expected: Finding) -> None:
    tester = CommandTester([sys.executable, "-c", program, "{node}"], timeout_s=60)
    assert poll_until_over(tester, seconds(0)) == expected


def test_command_that_does_not_end_has_failed_and_is_gone() -> None:
    tester = CommandTester(["sh", "-c", "sleep 1000", "{node}"], timeout_s=5)
    assert tester.poll("h3", seconds(0)) is None
    assert tester.poll("h3", seconds(4)) is None
    assert tester.poll("h3", seconds(6)) == Finding(False, "the test did not end within 5 s; no output")


def test_command_without_the_node_is_refused() -> None:
    with pytest.raises(BadInput, match=r"does not say \{node\}"):
        CommandTester(["true"], timeout_s=1)


def test_command_that_is_not_there_is_said() -> None:
    with pytest.raises(BadInput, match="cannot be started"):
        CommandTester(["/no/such/test", "{node}"], timeout_s=1).poll("h3", 0)


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
    assert (after.state, after.last_order, after.changed_ns) == (expected, 7, seconds(9))
    assert "says ada: so" in after.message


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
    old = find_level(2, "crash", "gpu:h3/0", tried, seconds(60), EscalationOptions())
    after = forget_repaired(tried, [isolated("returned", repaired_ns=seconds(20))])
    new = find_level(2, "crash", "gpu:h3/0", after, seconds(60), EscalationOptions())
    assert (old.is_exhausted, new.is_exhausted, new.severity) == (True, False, 2)
