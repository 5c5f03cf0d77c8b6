"""Packets come back in their order, none before its time, and all of them at the end."""

import array
import fcntl
import os
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import eventually

_HOLD = "import sys; from tests.testbed.faults.delay_line import hold; hold(0, 1, int(sys.argv[1]))"


@contextmanager
def held_for(delay_s: float) -> Iterator[socket.socket]:
    """A socket whose packets come back after a while; a pair of sockets stands for the tun.

    In a process of its own, as in the testbed: select() knows no descriptor above 1023, and a test run may have more.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there.setblocking(False)
    here.settimeout(20)
    ending, told = os.pipe()
    line = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(int(delay_s * 1e9))], stdin=there.fileno(), stdout=ending
    )
    try:
        yield here
    finally:
        os.write(told, b".")
        assert line.wait(20) == 0
        here.close()
        there.close()
        os.close(ending)
        os.close(told)


def test_packets_come_back_in_order_and_not_before_their_time() -> None:
    with held_for(0.05) as wire:
        began_s = time.monotonic()
        for number in range(100):
            wire.send(bytes([number]))
        assert [wire.recv(10) for _ in range(100)] == [bytes([number]) for number in range(100)]
        assert time.monotonic() - began_s >= 0.05


def test_what_is_held_is_let_go_at_the_end() -> None:
    with held_for(3600) as wire:
        wire.send(b"last")
        waiting = socket.socket(fileno=os.dup(wire.fileno()))
        _wait_until_taken(wire)
    with waiting:
        assert waiting.recv(10) == b"last"


def _wait_until_taken(wire: socket.socket) -> None:
    """Return when the other side has read what was sent."""
    left = array.array("i", [0])

    def is_taken() -> bool:
        fcntl.ioctl(wire, termios.TIOCOUTQ, left)
        return left[0] == 0

    eventually(is_taken)
