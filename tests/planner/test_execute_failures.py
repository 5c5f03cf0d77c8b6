"""What fails is tried again after a while, and what cannot be given back does not block the job that it was for."""

import shlex
from pathlib import Path

import pytest

from lockstep.errors import ControllerDown
from lockstep.execution import IsolationState, PartIdentity
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import find_execution, list_isolated, save_decisions, save_execution, save_isolated
from lockstep.state.documents import list_audit
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from planner.checkpoints.convert import Converter
from planner.controllers.protocol import Report, Restart
from planner.execute import Executor
from planner.steps import begin
from tests.planner.build import crash, incident, seconds
from tests.planner.checkpoints.build import copy_real
from tests.planner.checkpoints.test_convert import COPY, wanted
from tests.planner.fake_controller import FakeController, make_world
from tests.planner.test_execute import newest, run_of, say
from tests.planner.test_steps import decision
from tests.planner.world import NODES, planner_of, start
from tests.waiting import eventually


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
    message = "the fake controller does not answer"
    assert [each.message for each in run_of(control).steps[1].failures] == [message] * 6
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
    assert run.steps[-1].message == "release failed 6 times, a person must look: no route to slurmctld"
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
    told = {"tests": 2, "last_order": 7, "part": PartIdentity(serial="132"), "repaired_ns": seconds(15)}
    told |= {"state": "repair", "until_ns": seconds(600)}
    save_isolated(control, row.model_copy(update=told), lease)
    say(control, "undo", at_s=20)
    planner.run_once(lease, seconds(21))
    told |= {"state": "returned", "until_ns": None, "changed_ns": seconds(21), "message": "release h3"}
    assert list_isolated(control) == [row.model_copy(update=told)]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    copy_real("zero_1/global_step3", tmp_path / "job" / "global_step3")
    return tmp_path / "job"


def prepare(folder: Path, control: ControlDatabase, lease: Lease, job: Path, script: str = COPY) -> FakeController:
    """Return a cluster with an approved decision that begins by converting."""
    conversion = wanted(job, script)
    resume = {"checkpoint": conversion.destination, "convert": shlex.join(conversion.command)}
    made = decision().model_copy(update={"resume": resume})
    save_incidents(control, [incident()], None)
    save_decisions(control, [made], lease)
    save_execution(control, begin(made, "host:h3", "policy", 1, seconds(10)), lease)
    return make_world(folder / "cluster.json", NODES)


def state_of(control: ControlDatabase, act: str) -> str:
    return next(step.state for step in run_of(control).steps if step.act == act)


def test_job_restarts_from_what_was_converted(
    tmp_path: Path, control: ControlDatabase, lease: Lease, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = prepare(tmp_path, control, lease, job)
    orders, restart = list[Restart](), controller.restart

    def note(order: Restart) -> Report:
        orders.append(order)
        return restart(order)

    monkeypatch.setattr(controller, "restart", note)
    executor = Executor(control, controller)
    executor.run_once(lease, seconds(11))
    executor.run_once(lease, seconds(12))
    assert (controller.world.acts, run_of(control).steps[1].message) == (
        ["isolate h3"],
        f"{job}/global_step3 is being converted",
    )

    def is_converted() -> bool:
        executor.run_once(lease, seconds(13))
        return state_of(control, "convert") == "done"

    eventually(is_converted)
    executor.run_once(lease, seconds(14))
    (order,) = orders
    assert order.checkpoint == f"{job}/global_step3_universal"
    assert Path(order.checkpoint).is_dir()
    assert order.environment["LOCKSTEP_RESUME_FORMAT"] == "universal"


def test_planner_that_comes_after_converts_again_and_counts_a_try(
    tmp_path: Path, control: ControlDatabase, lease: Lease, job: Path
) -> None:
    controller = prepare(tmp_path, control, lease, job, "sleep 1000")
    converters = [Converter(), Converter()]
    for number, converter in enumerate(converters):
        planner = Executor(control, controller, converter=converter)
        planner.run_once(lease, seconds(11 + 2 * number))
        planner.run_once(lease, seconds(12 + 2 * number))
    assert (run_of(control).steps[1].tries, len(list(job.glob("*.partial")))) == (2, 1)
    for converter in converters:
        converter.forget(wanted(job))


def test_conversion_that_fails_is_tried_again_later_and_keeps_the_job_from_nothing_worse(
    tmp_path: Path, control: ControlDatabase, lease: Lease, job: Path
) -> None:
    controller = prepare(tmp_path, control, lease, job, "echo disk full; exit 1")
    executor = Executor(control, controller)
    executor.run_once(lease, seconds(11))
    for at_s in (12, 20, 40, 80, 150, 250):
        executor.run_once(lease, seconds(at_s))  # begins it
        if state_of(control, "convert") == "begun":
            eventually(lambda: _ended(executor, control, lease, seconds(at_s + 1)))  # noqa: B023  # called at once
    run = run_of(control)
    assert run.reason == "the converter failed with 1: disk full"
    assert [each.message for each in run.steps[1].failures] == ["the converter failed with 1: disk full"] * 6
    executor.run_once(lease, seconds(260))
    assert (controller.world.nodes["h3"], run_of(control).state) == (None, "failed")
    assert controller.world.acts == ["isolate h3", "release h3"]  # the job was never stopped


def _ended(executor: Executor, control: ControlDatabase, lease: Lease, now_ns: int) -> bool:
    tries = len(run_of(control).steps[1].failures)
    executor.run_once(lease, now_ns)
    return len(run_of(control).steps[1].failures) > tries


def test_planner_that_cannot_see_the_checkpoint_stops_nothing(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = prepare(tmp_path, control, lease, tmp_path / "nowhere")
    executor = Executor(control, controller)
    for at_s in (11, 12, 13):
        executor.run_once(lease, seconds(at_s))
    assert run_of(control).reason.startswith(f"the planner cannot see {tmp_path}/nowhere/global_step3")
    assert controller.world.acts == ["isolate h3", "release h3"]


def test_undo_ends_a_conversion_under_way(tmp_path: Path, control: ControlDatabase, lease: Lease, job: Path) -> None:
    controller = prepare(tmp_path, control, lease, job, "sleep 1000")
    executor = Executor(control, controller)
    executor.run_once(lease, seconds(11))
    executor.run_once(lease, seconds(12))
    executor.undo(run_of(control), "ada: not now", lease, seconds(13))
    executor.run_once(lease, seconds(14))
    assert (list(job.glob("*.partial")), controller.world.nodes["h3"]) == ([], None)
    assert run_of(control).state == "undone"
