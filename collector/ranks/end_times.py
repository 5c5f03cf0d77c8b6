"""When processes ended, to the millisecond, where the kernel reports no exits: by descriptors of processes (pidfd).

One of several ranks that end together takes the others with it, and only the order tells which. How a process ended
such a descriptor does not tell to anybody but its parent.
"""

import os
import select
import threading
import time
from contextlib import suppress

_MOST_AT_ONCE = 64


class EndTimes:
    """Waits for the ends of processes in a thread of its own; kernels before 5.3 tell none."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._stop, select.EPOLLIN)
        self._pid_of: dict[int, int] = {}  # by descriptor
        self._ended: dict[int, int] = {}
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="end-times", daemon=True)
        self._thread.start()

    def watch(self, pid: int) -> None:
        """Note when this process ends; one that is gone already, or not ours to watch, is never told."""
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            with self._guard:
                self._pid_of[descriptor] = pid
            self._epoll.register(descriptor, select.EPOLLIN)

    def take(self, pid: int) -> int | None:
        """Return when a process ended by the monotonic clock, once; None when that was not seen."""
        with self._guard:
            return self._ended.pop(pid, None)

    def close(self) -> None:
        """Watch nobody any more."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        for descriptor in (*self._pid_of, self._stop):
            os.close(descriptor)
        self._epoll.close()

    def _follow(self) -> None:
        while True:
            ready = [descriptor for descriptor, _ in self._epoll.poll(maxevents=_MOST_AT_ONCE)]
            now_ns = time.monotonic_ns()
            if self._stop in ready:
                return
            for descriptor in ready:
                self._note(descriptor, now_ns)

    def _note(self, descriptor: int, now_ns: int) -> None:
        self._epoll.unregister(descriptor)
        with self._guard:
            self._ended[self._pid_of.pop(descriptor)] = now_ns
        os.close(descriptor)
