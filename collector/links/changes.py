"""Hears of changes to interfaces at the moment they happen, between two readings, and notes when that was.

A thread of its own, because the kernel's notifications carry no time: read a second later, the loss of a carrier
would seem to come after the operations that it stopped.
"""

import os
import select
import threading
from collections import deque

from collector.links.messages import LINK_GROUP, NEW_LINK, decode_link
from collector.links.readings import Change
from collector.netlink import NETLINK_ROUTE, NetlinkSocket
from lockstep.clock import Clock

_MOST_CHANGES = 4_096  # kept until they are taken, the newest; the counts of carriers see what is lost


class LinkChanges:
    """An open subscription to changes in this thread's network namespace; OSError where the kernel refuses it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: deque[Change] = deque(maxlen=_MOST_CHANGES)
        self._failure: OSError | None = None
        self._socket = NetlinkSocket(NETLINK_ROUTE, (LINK_GROUP,))
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name="link changes", daemon=True)
        self._thread.start()

    @property
    def overruns(self) -> int:
        """How often changes were lost because there were too many at once."""
        return self._socket.overruns

    @property
    def waiting(self) -> int:
        """How many changes wait to be taken."""
        return len(self._told)

    def take(self) -> list[Change]:
        """Return what was told since the last time, in order; raise OSError when nothing more can be heard."""
        if self._failure:
            raise self._failure
        return [self._told.popleft() for _ in range(len(self._told))]

    def close(self) -> None:
        """End the subscription and its thread; a second time does no harm."""
        if self._stop >= 0:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
            self._socket.close()
            os.close(self._stop)
            self._stop = -1

    def _listen(self) -> None:
        waiting = select.poll()
        for file in (self._socket.fileno(), self._stop):
            waiting.register(file, select.POLLIN)
        try:
            while self._stop not in {file for file, _ in waiting.poll()}:
                self._note_changes()
        except OSError as failure:
            self._failure = failure

    def _note_changes(self) -> None:
        for datagram in self._socket.notices():
            now_ns = self._clock.now_ns()
            links = (decode_link(payload) for kind, payload in datagram.payloads() if kind == NEW_LINK)
            self._told.extend(Change(now_ns, link) for link in links if link)
