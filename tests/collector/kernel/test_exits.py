"""The kernel tells every exit of a process once, nobody else can, and where it does not tell the reason is said."""

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collector.kernel import netlink
from collector.kernel.exits import EndTimes, Exit, ProcConnector, decode_exit
from tests.descriptors import open_descriptors
from tests.waiting import eventually

REPO = Path(__file__).resolve().parents[3]
MESSAGE = struct.Struct("=IHHII IIIIHH IIQ iiIIii")  # netlink, connector, event, exit with its parent


def exit_message(*, what: int = 0x8000_0000, thread: int = 42, process: int = 42, status: int = 9) -> bytes:
    """Return what the kernel sends when a process ends."""
    return MESSAGE.pack(76, 3, 0, 0, 0, 1, 1, 0, 0, 40, 0, what, 0, 77, thread, process, status, 17, 1, 1)


@pytest.fixture
def connector() -> Iterator[ProcConnector]:
    with closing(ProcConnector()) as opened:
        yield opened


def test_exit_is_decoded_with_its_time_and_everything_else_is_none() -> None:
    assert decode_exit(exit_message()) == Exit(pid=42, monotonic_ns=77, status=9)
    others = [exit_message(thread=43), exit_message(what=1), exit_message(what=0)]
    assert [decode_exit(message) for message in (*others, exit_message()[:51], b"", b"\xff" * 40)] == [None] * 6


def test_status_says_code_or_signal() -> None:
    statuses = {0: (0, None, False), 0x300: (3, None, False), 9: (None, 9, False), 0x80 | 11: (None, 11, True)}
    ends = [Exit(42, 0, status) for status in statuses]
    assert {end.status: (end.exit_code, end.signal, end.dumped_core) for end in ends} == statuses


@pytest.mark.needs_root
def test_real_exits_are_reported_once_and_threads_are_not(connector: ProcConnector) -> None:
    threads = "import threading; [threading.Thread(target=int).start() for _ in range(20)]; raise SystemExit(5)"
    killed = subprocess.Popen(["sleep", "1000"])
    killed.kill()
    killed.wait()
    threaded = subprocess.Popen([sys.executable, "-c", threads])
    threaded.wait()
    reported = [(end.pid, end.status) for end in connector.read() if end.pid in (killed.pid, threaded.pid)]
    assert reported == [(killed.pid, 9), (threaded.pid, 5 << 8)]
    assert not [end for end in connector.read() if end.pid in (killed.pid, threaded.pid)]
    connector.close()  # and the fixture again


@pytest.mark.needs_root
def test_too_many_exits_between_two_reads_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "_NOTICE_BYTES", 1)  # the kernel makes the smallest of it
    with closing(ProcConnector()) as connector:
        subprocess.run(["sh", "-c", "i=0; while [ $i -lt 100 ]; do (exit 1); i=$((i+1)); done"], check=True)
        assert 0 < len(connector.read()) < 100
        assert connector.overruns > 0
        assert subprocess.run(["true"]).returncode == 0
        assert connector.read()  # and it goes on


@pytest.mark.needs_root
def test_exit_that_another_process_sends_is_not_believed(connector: ProcConnector) -> None:
    port = connector._netlink._socket.getsockname()[0]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11) as forger:
        forger.bind((0, 0))
        forger.sendto(exit_message(process=os.getpid(), thread=os.getpid()), (port, 0))
    assert os.getpid() not in [end.pid for end in connector.read()]


@pytest.mark.needs_root
@pytest.mark.parametrize("namespace", [["--net"], ["--pid", "--fork"]], ids=["network", "processes"])
def test_container_with_its_own_namespace_gets_a_reason(namespace: list[str]) -> None:
    ask = "from collector.kernel.exits import ProcConnector; ProcConnector()"
    done = subprocess.run(
        ["unshare", *namespace, sys.executable, "-c", ask], cwd=REPO, capture_output=True, text=True, timeout=60
    )
    assert "NotPresent: the kernel does not report exits to us" in done.stderr


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


def test_ends_are_timed_when_they_happen_and_reported_once() -> None:
    with closing(EndTimes()) as ends:
        first, second = (subprocess.Popen(["sleep", "1000"]) for _ in range(2))
        for process in (second, first):
            ends.watch(process.pid)
        assert ends.take(first.pid) is None
        before_ns = time.monotonic_ns()
        assert before_ns <= end(first, ends) < end(second, ends) <= time.monotonic_ns()
        assert ends.take(first.pid) is None


def test_process_that_is_gone_already_is_never_reported_and_nothing_stays_open() -> None:
    before = len(open_descriptors())
    with closing(EndTimes()) as ends, subprocess.Popen(["true"]) as process:
        process.wait()
        ends.watch(process.pid)
        ends.watch(os.getpid())
        assert ends.take(process.pid) is None
    assert len(open_descriptors()) == before
