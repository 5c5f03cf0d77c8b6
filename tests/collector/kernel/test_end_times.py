"""Ends of processes are timed when they happen, whoever their parents are, and told once."""

import os
import subprocess
import time
from contextlib import closing

from collector.kernel.exits import EndTimes
from tests.descriptors import open_descriptors
from tests.waiting import eventually


def end(process: "subprocess.Popen[bytes]", ends: EndTimes) -> int:
    """Kill a process and return when that was noticed."""
    process.kill()
    process.wait()
    noticed: list[int] = []

    def is_noticed() -> bool:
        noticed.extend(ended_ns for ended_ns in [ends.take(process.pid)] if ended_ns)
        return bool(noticed)

    eventually(is_noticed)
    return noticed[0]


def test_process_that_ends_is_timed_when_it_does_and_reported_once() -> None:
    with closing(EndTimes()) as ends, subprocess.Popen(["sleep", "1000"]) as process:
        ends.watch(process.pid)
        assert ends.take(process.pid) is None
        before_ns = time.monotonic_ns()
        assert before_ns <= end(process, ends) <= time.monotonic_ns()
        assert ends.take(process.pid) is None


def test_of_two_that_end_the_first_is_reported_as_the_first() -> None:
    with closing(EndTimes()) as ends:
        first, second = (subprocess.Popen(["sleep", "1000"]) for _ in range(2))
        for process in (second, first):
            ends.watch(process.pid)
        assert end(first, ends) < end(second, ends)


def test_process_that_is_gone_already_is_never_reported_and_nothing_stays_open() -> None:
    before = len(open_descriptors())
    with closing(EndTimes()) as ends, subprocess.Popen(["true"]) as process:
        process.wait()
        ends.watch(process.pid)
        ends.watch(os.getpid())
        assert ends.take(process.pid) is None
    assert len(open_descriptors()) == before
