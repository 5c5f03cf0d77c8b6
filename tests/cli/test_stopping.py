"""A signal that comes before anybody waits for it is not missed."""

import signal
import subprocess
import sys

import pytest

from tests.conftest import REPO


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_that_came_before_the_wait_ends_it(number: signal.Signals) -> None:
    code = f"""
import os
from cli.collect import StopSignals
signals = StopSignals()
os.kill(os.getpid(), {int(number)})
signals.wait()
print("well")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
