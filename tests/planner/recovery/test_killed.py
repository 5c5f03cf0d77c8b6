"""A planner killed at any point of an execution leaves nothing half done and does nothing twice after it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.control.database import ControlDatabase, open_control
from lockstep.control.decisions import list_decisions
from lockstep.control.executions import give_order, list_executions, list_isolated
from lockstep.execution import Order
from tests.planner.recovery.build import seconds
from tests.planner.recovery.fake_controller import FakeController
from tests.planner.recovery.world import start

pytestmark = pytest.mark.slow

FORWARD = [f"{moment} {act}" for act in ("isolate", "restart") for moment in ("begun", "asked", "answered")]
BACKWARD = [f"{moment} release" for moment in ("begun", "asked", "answered")]


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


def run_child(folder: Path, point: str, first_s: int) -> int:
    """Run a planner until it kills itself at the point, or through; its lease is taken over by the next."""
    words = [folder / "control.db", folder / "cluster.json", point, "planner", str(first_s)]
    command = [sys.executable, "-m", "tests.planner.recovery.killed_child", *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True).returncode


def finish(folder: Path, point: str) -> FakeController:
    """Run a planner that dies at the point and one that comes after it; return what the cluster looks like."""
    assert run_child(folder, point, 10) == -signal.SIGKILL
    assert run_child(folder, "never", 20) == 0
    return FakeController(folder / "cluster.json")


@pytest.mark.parametrize("point", FORWARD)
def test_after_a_kill_on_the_way_the_next_planner_ends_what_was_begun(
    tmp_path: Path, control: ControlDatabase, point: str
) -> None:
    start(tmp_path, control)
    controller = finish(tmp_path, point)
    assert controller.world.acts == ["isolate h3", "restart train on h0,h1,h2,h4,h5,h6,h7,h8"]
    assert [run.state for run in list_executions(control)] == ["done"]
    assert [(each.node, each.state) for each in list_isolated(control)] == [("h3", "isolated")]


@pytest.mark.parametrize("point", BACKWARD)
def test_after_a_kill_on_the_way_back_nothing_stays_isolated(
    tmp_path: Path, control: ControlDatabase, point: str
) -> None:
    start(tmp_path, control)
    assert run_child(tmp_path, "asked isolate", 10) == -signal.SIGKILL
    decision = list_decisions(control)[0].id
    give_order(control, Order(decision=decision, kind="undo", who="ada", ts_ns=seconds(15)))
    controller = finish(tmp_path, point)
    assert controller.world.acts == ["isolate h3", "release h3"]
    assert controller.world.nodes["h3"] is None
    assert [run.state for run in list_executions(control)] == ["undone"]
