"""Packets come back in their order, none before its time, and all of them at the end."""

import array
import fcntl
import os
import socket
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.faults.delay_line import hold
from tests.waiting import eventually


@contextmanager
def held_for(delay_s: float) -> Iterator[socket.socket]:
    """A socket whose packets come back after a while; a pair of sockets stands for the tun."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ending, told = os.pipe()
    there.setblocking(False)
    here.settimeout(20)
    thread = threading.Thread(target=hold, args=(there.fileno(), ending, int(delay_s * 1e9)))
    thread.start()
    try:
        yield here
    finally:
        os.write(told, b".")
        thread.join(20)
        assert not thread.is_alive()
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
