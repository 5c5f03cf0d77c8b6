"""A planner killed or replaced at any point of an execution leaves nothing half done, and nothing is done twice."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.execution import Order
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import give_order, list_decisions, list_executions, list_isolated
from tests.planner.build import seconds
from tests.planner.fake_controller import FakeController
from tests.planner.killed_child import REPLACED
from tests.planner.world import start
from tests.tiers import long_except

pytestmark = pytest.mark.slow

TIMESTAMPS = ("begun", "checked", "asked", "answered")
WATCH = ["begun watch", "asked watch", "answered watch"]
FORWARD = [
    "decided",
    "approved",
    *(f"{timing} {act}" for act in ("isolate", "restart") for timing in TIMESTAMPS),
    *WATCH,
]
BACKWARD = [f"{timing} release" for timing in TIMESTAMPS]
ALL_ACTS = ["isolate h3", "restart train on h0,h1,h2,h4,h5,h6,h7,h8"]
HEIR_S = 40  # by then the lease of who began at 10 s has expired


class Nursery:
    """Starts planners that die or stop at a point, each in a process of its own."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "tests.planner.killed_child"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: object) -> tuple[int, int | None]:
        """Return the number of a planner, and its exit code unless it was stopped."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{json.dumps(what)}\n")
        self.process.stdin.flush()
        pid, code = json.loads(self.process.stdout.readline())
        return pid, code

    def run(
        self, folder: Path, point: str, holder: str, first_s: int, name: str = "SIGKILL"
    ) -> tuple[int, int | None]:
        return self.ask([str(folder / "control.db"), str(folder / "cluster.json"), name, point, holder, first_s])

    def run_through(self, folder: Path, holder: str, first_s: int) -> None:
        assert self.run(folder, "never", holder, first_s)[1] == 0

    def kill_at(self, folder: Path, point: str, holder: str, first_s: int) -> None:
        assert self.run(folder, point, holder, first_s)[1] == -signal.SIGKILL

    @contextmanager
    def stopped(self, folder: Path, point: str) -> Iterator[None]:
        """Hold a planner at the point, as in a paused machine; afterwards it goes on, to find itself replaced."""
        pid, code = self.run(folder, point, "first", 10, "SIGSTOP")
        assert code is None, f"{point} was never passed"
        try:
            yield
        finally:
            _, code = self.ask(pid)
        assert code == REPLACED


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    started = Nursery()
    yield started
    started.process.communicate()  # it ends when nobody asks any more


def check_done_once(control: ControlDatabase, controller: FakeController) -> None:
    assert controller.world.acts == ALL_ACTS
    assert [run.state for run in list_executions(control)] == ["done"]
    assert [(each.node, each.state) for each in list_isolated(control)] == [("h3", "isolated")]


@pytest.mark.parametrize("point", long_except(("approved", "asked isolate", "answered restart"), FORWARD))
def test_after_a_kill_on_the_way_the_next_planner_ends_what_was_begun(
    tmp_path: Path, control: ControlDatabase, nursery: Nursery, point: str
) -> None:
    controller = start(tmp_path, control)
    nursery.kill_at(tmp_path, point, "first", 10)
    nursery.run_through(tmp_path, "second", HEIR_S)
    check_done_once(control, controller)


@pytest.mark.parametrize("point", long_except(("asked release",), BACKWARD))
def test_after_a_kill_on_the_way_back_nothing_stays(
    tmp_path: Path, control: ControlDatabase, nursery: Nursery, point: str
) -> None:
    controller = start(tmp_path, control)
    nursery.kill_at(tmp_path, "asked isolate", "first", 10)
    undo(control)
    nursery.kill_at(tmp_path, point, "second", HEIR_S)
    nursery.run_through(tmp_path, "third", HEIR_S + 30)
    assert controller.world.acts == ["isolate h3", "release h3"]
    assert controller.world.nodes["h3"] is None
    assert [run.state for run in list_executions(control)] == ["undone"]


@pytest.mark.parametrize(
    "point",
    long_except(
        ("begun isolate", "checked restart"),
        ["decided", "approved", "begun isolate", "begun restart", "checked restart", *WATCH],
    ),
)
def test_planner_that_slept_past_its_lease_does_nothing_after_another_has_taken_over(
    tmp_path: Path, control: ControlDatabase, nursery: Nursery, point: str
) -> None:
    controller = start(tmp_path, control)
    with nursery.stopped(tmp_path, point):
        nursery.run_through(tmp_path, "second", HEIR_S)
        check_done_once(control, controller)
        before = list_executions(control)
    check_done_once(control, controller)
    assert list_executions(control) == before  # what it wrote was refused, whatever it thought to know


def test_isolation_by_a_planner_that_slept_through_an_undo_is_given_back(
    tmp_path: Path, control: ControlDatabase, nursery: Nursery
) -> None:
    controller = start(tmp_path, control)
    with nursery.stopped(tmp_path, "checked isolate"):  # all that fences it off is behind it
        undo(control)
        nursery.run_through(tmp_path, "second", HEIR_S)
        assert [run.state for run in list_executions(control)] == ["undone"]
    assert controller.world.acts == ["isolate h3"]
    nursery.run_through(tmp_path, "third", HEIR_S + 60)
    assert (controller.world.nodes["h3"], controller.world.acts) == (None, ["isolate h3", "release h3"])


def undo(control: ControlDatabase) -> None:
    decision = list_decisions(control)[0].id
    give_order(control, Order(decision=decision, kind="undo", who="ada", ts_ns=seconds(15)))
