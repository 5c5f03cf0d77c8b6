"""A gloo group of one generation, which can be given up at any moment: its waits end and no thread of it is left.

gloo raises when a connection closes, but waits for a peer that is stopped until its own timeout, and its `abort`
does not end that wait. So a group remembers the connections it has opened; shutting them down ends every collective
here, and, as the peers see them closed, there.
"""

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

from torch import Tensor, distributed

from lockstep.errors import GroupBroken

_POLL_S = 0.05  # between two readings at what else has happened, while a collective is waited for
_MEET_S = 10.0  # all members were heard of a moment ago, and only have to connect
_NEVER = timedelta(days=7)  # who is lost is not for gloo to say


class Group:
    """The members of a generation; `poll` is called while a collective is waited for, and ends it by raising."""

    def __init__(self, file: Path, rank: int, ranks: int, poll: Callable[[], None]) -> None:
        self._poll = poll
        before = _find_sockets()
        try:
            store = distributed.FileStore(str(file), ranks)
            store.set_timeout(timedelta(seconds=_MEET_S))
            self._group = distributed.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=_MEET_S))
        except RuntimeError as error:
            raise GroupBroken(f"the members could not connect: {error}") from None
        self._connections = {name: number for name, number in _find_sockets().items() if name not in before}
        self._receiver: _Receiver | None = None

    def sum(self, values: Tensor) -> None:
        """Sum over all members, in place."""
        self.begin_sum(values)()

    def begin_sum(self, values: Tensor) -> Callable[[], None]:
        """Begin to sum over all members, in place; return what waits until all have added theirs."""
        with _breaking():
            work = self._group.allreduce(values, distributed.ReduceOp.SUM, _NEVER)
        return lambda: self._wait(work)

    def send(self, values: Tensor, rank: int, tag: int) -> object:
        """Hand over values without waiting; both they and what is returned must live until they are taken."""
        with _breaking():
            return self._group.send([values], rank, tag)

    def receive(self, values: Tensor, rank: int, tag: int) -> None:
        """Wait for what a member sends."""
        self._receiver = self._receiver or _Receiver()
        with _breaking():
            work = self._group.recv([values], rank, tag)
        try:
            failure = self._receiver.wait(work, values, self._poll)
        except GroupBroken:
            self.give_up()
            raise
        if failure:
            raise GroupBroken(failure)

    def broadcast(self, values: Tensor, giver: int) -> None:
        """Take over the values of one member, in place."""
        self._wait(self._group.broadcast(values, giver, _NEVER))

    def give_up(self) -> None:
        """End whatever is under way."""
        now = _find_sockets()
        for name, number in self._connections.items():
            if now.get(name) == number:  # the number may be another file's by now
                _shut_down(number)
        self._connections = {}
        if self._receiver:
            self._receiver.end()
        self._receiver = None

    def _wait(self, work: distributed.Work) -> None:
        try:
            while not work.is_completed():
                with suppress(RuntimeError):  # "timed out", or what is raised again below
                    work.wait(timedelta(seconds=_POLL_S))
                if not work.is_completed():
                    self._poll()
            work.wait()
        except RuntimeError as error:
            raise GroupBroken(str(error)) from None
        except GroupBroken:
            self.give_up()
            raise


class _Receiver:
    """A thread that waits for messages: gloo cannot say whether one has come, and a wait cut short breaks all."""

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[tuple[distributed.Work, Tensor] | None] = queue.SimpleQueue()
        self._came = threading.Semaphore(0)
        self._failure: str | None = None
        threading.Thread(target=self._run, name="lockstep-receive", daemon=True).start()

    def wait(self, work: distributed.Work, values: Tensor, poll: Callable[[], None]) -> str | None:
        """Wait for one message; return why it will not come, if it will not."""
        self._works.put((work, values))  # which gloo writes to for as long as it waits, whoever else has given up
        while not self._came.acquire(timeout=_POLL_S):
            poll()
        return self._failure

    def end(self) -> None:
        self._works.put(None)

    def _run(self) -> None:
        while (awaited := self._works.get()) is not None:
            try:
                awaited[0].wait(_NEVER)
            except RuntimeError as error:
                self._failure = str(error)
            del awaited  # it holds the group
            self._came.release()


@contextmanager
def _breaking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise GroupBroken(str(error)) from None


def _find_sockets() -> dict[str, int]:
    """Return this process's sockets: their names in the kernel, and file numbers."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{number}")
            if name.startswith("socket:"):
                found[name] = int(number)
    return found


def _shut_down(number: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
        connection.getpeername()  # one that listens has no peer, and gloo ends the process if it is shut down
        connection.shutdown(socket.SHUT_RDWR)
