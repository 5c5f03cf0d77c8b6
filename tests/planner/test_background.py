"""A command beside the planner's rounds never holds them up, also where it cannot be ended."""

import subprocess
import tempfile

from planner.background import Background, Ended


def test_process_that_the_kernel_does_not_let_go_of_is_said_and_not_waited_for() -> None:
    # One without a group of its own is not reached by the kill, as one that waits for a dead file server is not.
    with tempfile.TemporaryFile() as output, subprocess.Popen(["sleep", "1000"]) as process:
        ended = Background(process, output, 0, timeout_s=60, kill_s=0.01).finish()
        process.kill()
    message = f"no output; process {process.pid} is still there 0.01 s after SIGKILL"
    assert ended == Ended(None, message)
