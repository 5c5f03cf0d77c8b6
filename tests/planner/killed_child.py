"""Planners in processes of their own, each of which kills or stops itself at one point of an execution.

A planner takes its lease anew each round, as a duty does, and ends with 3 when another planner has it. Besides the
points that the executor tells there are `decided`, a decision in writing that nobody has begun, and `approved`, an
execution in writing of which no step is begun.

Run as a program, it forks a planner for every line of JSON that it reads and says what became of it, so that what
planners import is imported once.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection

from lockstep.clock import NS_PER_S
from lockstep.errors import LeaseLost
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.decisions import list_decisions, list_executions
from lockstep.state.leases import take_lease
from planner.execute import Executor
from tests.planner.build import seconds
from tests.planner.fake_controller import FakeController
from tests.planner.world import planner_of

ROUNDS = 8  # enough for every act of an execution
LEASE_S = 15
REPLACED = 3  # exit code of one that has found another planner in its place


def plan(database: str, cluster: str, name: str, point: str, holder: str, first_s: int) -> None:
    """Do the rounds of a planner; at the point it gets the signal of that name."""
    waiting = [point]

    def passing(passed: str) -> None:
        if passed in waiting:
            waiting.clear()
            os.kill(os.getpid(), signal.Signals[name])

    controller = FakeController(Path(cluster))
    with open_control(f"sqlite:///{database}") as control:
        look_after_every_commit(control, passing)
        planner = planner_of(control, controller, Executor(control, controller, passing=passing))
        for second in range(ROUNDS):
            now_ns = seconds(first_s + second)
            lease = take_lease(control, "planner", holder, LEASE_S * NS_PER_S, now_ns)
            if lease is None:
                sys.exit(REPLACED)
            try:
                planner.run_once(lease, now_ns)
            except LeaseLost:
                sys.exit(REPLACED)


def look_after_every_commit(control: ControlDatabase, passing: Callable[[str], None]) -> None:
    """Tell of what is in writing after each transaction that may have written it."""
    begin = control.begin

    @contextmanager
    def watched() -> Iterator[Connection]:
        with begin() as connection:
            yield connection
        runs = list_executions(control)
        if list_decisions(control) and not runs:
            passing("decided")
        if runs and all(step.state == "waiting" for step in runs[0].steps):
            passing("approved")

    control.begin = watched  # type: ignore[method-assign]  # to be there at every commit


def fork(words: list[str | int]) -> int:
    if pid := os.fork():
        return pid
    os.dup2(2, 1)  # our answers go to standard output, and nothing else
    code = 0
    try:
        plan(*words)  # type: ignore[arg-type]  # as the test has written them
    except SystemExit as ended:
        code = int(str(ended.code))
    except BaseException:  # noqa: BLE001  # a fork must not go on as its parent
        traceback.print_exc()
        code = 1
    os._exit(code)


def serve() -> None:
    """Answer each line: a planner to start, or the number of a stopped one that is to go on."""
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            os.kill(asked, signal.SIGCONT)
        pid = asked if isinstance(asked, int) else fork(asked)
        _, status = os.waitpid(pid, os.WUNTRACED)
        code = None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        print(json.dumps([pid, code]), flush=True)


if __name__ == "__main__":
    serve()
