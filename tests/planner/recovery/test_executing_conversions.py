"""A restart on another layout converts its checkpoint first, over many rounds, and resumes from what was verified."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.control.database import ControlDatabase, open_control
from lockstep.control.decisions import save_decisions
from lockstep.control.executions import list_executions, save_execution
from lockstep.control.incidents import save_incidents
from lockstep.control.leases import Lease
from lockstep.execution import Execution
from planner.controllers.protocol import Report, Restart
from planner.recovery.checkpoints.converting import Converter
from planner.recovery.executing import Executor
from planner.recovery.steps import begin
from tests.planner.recovery.build import incident, seconds
from tests.planner.recovery.checkpoints.build import copy_real
from tests.planner.recovery.checkpoints.test_converting import COPY, wanted
from tests.planner.recovery.fake_controller import FakeController, make_world
from tests.planner.recovery.test_steps import decision
from tests.planner.recovery.world import NODES, lease_of
from tests.waiting import eventually


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


@pytest.fixture
def lease(control: ControlDatabase) -> Lease:
    return lease_of(control)


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


def run_of(control: ControlDatabase) -> Execution:
    (run,) = list_executions(control)
    return run


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
    assert (controller.world.acts, run_of(control).steps[1].said) == (
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
    assert [each.said for each in run.steps[1].failures] == ["the converter failed with 1: disk full"] * 6
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
