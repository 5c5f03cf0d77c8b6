"""What fails is tried again after a while, and what cannot be given back does not block the job that it was for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.control.audit import list_audit
from lockstep.control.database import ControlDatabase, open_control
from lockstep.control.decisions import save_decisions
from lockstep.control.executions import find_execution, list_isolated, save_isolated
from lockstep.control.incidents import save_incidents
from lockstep.control.leases import Lease
from lockstep.errors import ControllerDown
from lockstep.execution import IsolationState, PartIdentity
from planner.controllers.protocol import Report
from tests.planner.recovery.build import crash, incident, seconds
from tests.planner.recovery.fake_controller import FakeController
from tests.planner.recovery.test_executing import newest, run_of, say
from tests.planner.recovery.world import lease_of, planner_of, start


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


@pytest.fixture
def lease(control: ControlDatabase) -> Lease:
    return lease_of(control)


def put_down(controller: FakeController, is_down: bool) -> None:
    world = controller.world
    world.is_down = is_down
    controller.save(world)


def test_controller_that_is_down_is_asked_again_after_a_while_and_then_given_up(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller)
    planner.run_once(lease, seconds(10))
    put_down(controller, True)
    for second in range(11, 16):
        planner.run_once(lease, seconds(second))
    assert (run_of(control).state, run_of(control).steps[1].tries) == ("executing", 1)  # not once a second
    heir = planner_of(control, controller)
    heir.run_once(lease, seconds(15))
    assert run_of(control).steps[1].tries == 1  # a planner that comes after waits as long
    for second in range(16, 176, 5):
        heir.run_once(lease, seconds(second))
    assert run_of(control).state == "undoing"
    said = "the fake controller does not answer"
    assert [each.said for each in run_of(control).steps[1].failures] == [said] * 6
    put_down(controller, False)
    for second in (180, 190):
        heir.run_once(lease, seconds(second))
    assert (controller.world.nodes["h3"], run_of(control).state) == (None, "failed")


def test_release_that_fails_for_ever_does_not_keep_its_job_from_being_looked_after(
    tmp_path: Path, control: ControlDatabase, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(node: str, mark: str) -> Report:
        raise ControllerDown("no route to slurmctld")

    controller = start(tmp_path, control)
    monkeypatch.setattr(controller, "release", fail)
    planner = planner_of(control, controller)
    planner.run_once(lease, seconds(10))
    say(control, "undo", at_s=11)
    for second in range(12, 172, 5):
        planner.run_once(lease, seconds(second))
    run = run_of(control)
    assert (run.state, run.outcome) == ("release_failed", "undone")
    assert run.steps[-1].said == "release failed 6 times, a person must look: no route to slurmctld"
    assert any("a person must look" in line.why for line in list_audit(control, 100))
    save_incidents(control, [incident(crash(last_seen_ns=seconds(700)))], None)
    planner.run_once(lease, seconds(700))
    assert newest(control).id != run.decision  # the job gets its next decision
    monkeypatch.undo()
    for second in range(700, 1400, 100):
        planner.run_once(lease, seconds(second))
    assert (controller.world.nodes["h3"], find_execution(control, run.decision).state) == (None, "undone")  # type: ignore[union-attr]


@pytest.mark.parametrize(("state", "expected"), [("rma", "rma"), ("repair", "returned")])
def test_node_whose_part_was_sent_back_may_vanish_from_the_controller(
    tmp_path: Path, control: ControlDatabase, lease: Lease, state: IsolationState, expected: IsolationState
) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller)
    for second in range(10, 14):
        planner.run_once(lease, seconds(second))
    (row,) = list_isolated(control)
    save_isolated(control, row.model_copy(update={"state": state}), lease)
    world = controller.world
    del world.nodes["h3"]
    controller.save(world)
    planner.run_once(lease, seconds(100))
    assert list_isolated(control)[0].state == expected


def test_isolated_node_rests_from_its_isolation_on_however_long_approval_took(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    planner = planner_of(control, start(tmp_path, control), mode="propose")
    planner.run_once(lease, seconds(10))
    proposed = newest(control)
    rest = proposed.isolate[0].model_copy(update={"until_ns": seconds(70)})  # a minute, when it was decided
    save_decisions(control, [proposed.model_copy(update={"isolate": (rest,)})], lease)
    say(control, "approve", at_s=310)
    planner.run_once(lease, seconds(311))
    assert list_isolated(control)[0].until_ns == seconds(371)


def test_undo_keeps_what_persons_have_said_of_the_node(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    planner = planner_of(control, start(tmp_path, control))
    for second in range(10, 14):
        planner.run_once(lease, seconds(second))
    (row,) = list_isolated(control)
    told = {"tests": 2, "heard": 7, "part": PartIdentity(serial="132"), "repaired_ns": seconds(15)}
    told |= {"state": "repair", "until_ns": seconds(600)}
    save_isolated(control, row.model_copy(update=told), lease)
    say(control, "undo", at_s=20)
    planner.run_once(lease, seconds(21))
    told |= {"state": "returned", "until_ns": None, "changed_ns": seconds(21), "said": "release h3"}
    assert list_isolated(control) == [row.model_copy(update=told)]
