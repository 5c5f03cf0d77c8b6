"""A node that was taken out is tested and comes back when it is healthy; after three failures it waits for repair."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lockstep.control.database import ControlDatabase, open_control
from lockstep.control.executions import list_isolated, save_isolated
from lockstep.control.leases import Lease
from lockstep.errors import BadInput
from lockstep.execution import Isolated
from planner.recovery.returning import CommandTester, Finding, Returner, ReturnOptions
from tests.planner.recovery.build import seconds
from tests.planner.recovery.fake_controller import FakeController, make_world
from tests.planner.recovery.world import NODES, lease_of
from tests.waiting import eventually


@dataclass
class FakeTester:
    """Says what it was told to say, one finding a look."""

    findings: list[Finding | None] = field(default_factory=list)

    def look(self, node: str, now_ns: int) -> Finding | None:
        return self.findings.pop(0)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


@pytest.fixture
def lease(control: ControlDatabase) -> Lease:
    return lease_of(control)


@pytest.fixture
def controller(tmp_path: Path, control: ControlDatabase, lease: Lease) -> FakeController:
    """A cluster in which h3 has been isolated at second 0."""
    fake = make_world(tmp_path / "cluster.json", NODES)
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
    assert list_isolated(control)[0].said == "all well; release h3"


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
    back = returner(control, controller, Finding(True, "all well"), Finding(True, "all well"))
    back.run_once(lease, seconds(60))
    assert states(control) == ["testing"]
    world.is_down = False
    controller.save(world)
    back.run_once(lease, seconds(61))
    assert states(control) == ["returned"]


def look_until_over(tester: CommandTester, now_ns: int) -> Finding:
    found: list[Finding] = []

    def is_over() -> bool:
        finding = tester.look("h3", now_ns)
        found.extend([finding] if finding else [])
        return bool(found)

    eventually(is_over)
    return found[0]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print('h3 is well')", Finding(True, "the test passed: h3 is well")),
        ("print('GPU 3 fails'); raise SystemExit(5)", Finding(False, "the test failed with 5: GPU 3 fails")),
        ("pass", Finding(True, "the test passed: it said nothing")),
    ],
)
def test_command_says_whether_a_node_is_healthy(program: str, expected: Finding) -> None:
    tester = CommandTester([sys.executable, "-c", program, "{node}"], timeout_s=60)
    assert look_until_over(tester, seconds(0)) == expected


def test_command_that_does_not_end_has_failed_and_is_gone() -> None:
    tester = CommandTester(["sh", "-c", "sleep 1000", "{node}"], timeout_s=5)
    assert tester.look("h3", seconds(0)) is None
    assert tester.look("h3", seconds(4)) is None
    assert tester.look("h3", seconds(6)) == Finding(False, "the test did not end within 5 s; it said nothing")


def test_command_without_the_node_is_refused() -> None:
    with pytest.raises(BadInput, match=r"does not say \{node\}"):
        CommandTester(["true"], timeout_s=1)


def test_command_that_is_not_there_is_said() -> None:
    with pytest.raises(BadInput, match="cannot be started"):
        CommandTester(["/no/such/test", "{node}"], timeout_s=1).look("h3", 0)
