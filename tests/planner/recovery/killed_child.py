"""A planner in a process of its own that kills itself with SIGKILL at one point of an execution.

`python -m tests.planner.recovery.killed_child CONTROL_DB CLUSTER_FILE POINT HOLDER FIRST_SECOND`
"""

import os
import signal
import sys
from pathlib import Path

from lockstep.control.database import open_control
from planner.recovery.executing import Executor
from tests.planner.recovery.build import seconds
from tests.planner.recovery.fake_controller import FakeController
from tests.planner.recovery.world import lease_of, planner_of

ROUNDS = 8  # enough for every act of an execution


def main(database: str, cluster: str, point: str, holder: str, first_s: str) -> None:
    def passing(passed: str) -> None:
        if passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    controller = FakeController(Path(cluster))
    with open_control(f"sqlite:///{database}") as control:
        planner = planner_of(control, controller, Executor(control, controller, passing=passing))
        lease = lease_of(control, holder, at_s=int(first_s))
        for second in range(ROUNDS):
            planner.run_once(lease, seconds(int(first_s) + second))


if __name__ == "__main__":
    main(*sys.argv[1:])
