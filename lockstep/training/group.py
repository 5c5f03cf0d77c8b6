"""A gloo group of one generation, which can be given up at any moment: no wait here outlasts it.

gloo raises when a connection closes, but waits for a peer that is stopped until its own timeout, and its `abort`
does not end that wait. So a group remembers the connections it has opened; shutting them down ends every receive
here, and, as the peers see them closed, there.

That does not end every send. Of a connection that breaks gloo tells those who wait for the peer to be ready, not
those whose message is under way (`Pair::signalException` passes over `tx_`). A process that was stopped finds such
messages when it goes on: its peers asked for them and have left. gloo's own collectives wait for them for ever, and
its destructor waits for its collectives. So nothing here waits for a send, and sums are made of messages.
"""

import os
import queue
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from lockstep.errors import GroupBroken

_POLL_S = 0.05  # between two readings at what else has happened, while a message is waited for
_MEET_S = 10.0  # all members were heard of a moment ago, and only have to connect
_NEVER = timedelta(days=7)  # who is lost is not for gloo to say
_COLLECTIVE = 2**31 - 1  # the tag of sums and broadcasts, which all members begin in the same order
_Message = tuple[distributed.Work, Tensor]


class Group:
    """The members of a generation; `poll` is called while a message is waited for, and ends it by raising.

    It is told whether a connection of the group has closed.
    """

    def __init__(self, file: Path, rank: int, ranks: int, poll: Callable[[bool], None]) -> None:
        self._poll, self._rank = poll, rank
        self._others = [(rank - shift) % ranks for shift in range(1, ranks)]  # each asks another one first
        before = _find_sockets()
        try:
            store = distributed.FileStore(str(file), ranks)
            store.set_timeout(timedelta(seconds=_MEET_S))
            self._group = distributed.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=_MEET_S))
        except RuntimeError as error:
            raise GroupBroken(f"the members could not connect: {error}") from None
        self._connections = {inode: number for inode, number in _find_sockets().items() if inode not in before}
        self._sent: list[_Message] = []  # since the last sum began; gloo reads them when they are asked for
        self._receiver: _Receiver | None = None

    def send(self, values: Tensor, rank: int, tag: int) -> None:
        """Hand over values without waiting; they must stay what they are until the members have made a sum."""
        self._sent.append(self._begin_send(values, rank, tag))

    def receive(self, values: Tensor, rank: int, tag: int) -> None:
        """Wait for what a member sends."""
        self._wait([self._begin_receive(values, rank, tag)])

    def sum(self, values: Tensor) -> None:
        """Sum a vector over all members, in place: each adds up a part of it, and gives that to the others."""
        taken, self._sent = self._sent, []
        parts = values.tensor_split(len(self._others) + 1)
        mine, other = parts[self._rank], torch.empty_like(parts[self._rank])
        addends = [self._begin_send(parts[rank], rank, _COLLECTIVE) for rank in self._others]
        for rank in self._others:
            self.receive(other, rank, _COLLECTIVE)
            mine += other
        self._give(mine.clone())
        for rank in self._others:
            self.receive(parts[rank], rank, _COLLECTIVE)  # its sum: it has taken the addend that lay here
        del addends, taken  # all have begun this sum, and so have what was sent before

    def begin_sum(self, values: Tensor) -> Callable[[], None]:
        """Begin to sum a few values over all members, in place; return what waits until all have begun it.

        One at a time: it is over before the next sum begins.
        """
        taken, self._sent = self._sent, []
        own = values.clone()
        found = {rank: torch.empty_like(own) for rank in self._others}
        # Asked for before it is given: whoever has got it has answered, and may leave.
        received = [self._begin_receive(found[rank], rank, _COLLECTIVE) for rank in self._others]
        self._give(own)

        def wait() -> None:
            self._wait(received)
            taken.clear()
            in_order = {**found, self._rank: own}  # the same at all members
            values.copy_(torch.stack([in_order[rank] for rank in sorted(in_order)]).sum(0))

        return wait

    def broadcast(self, values: Tensor, giver: int) -> None:
        """Take over the values of one member, in place; ends when all have them."""
        if giver == self._rank:
            self._give(values)
        else:
            self.receive(values, giver, _COLLECTIVE)
        self.begin_sum(torch.zeros(1))()

    def give_up(self) -> None:
        """End whatever is under way."""
        for inode, number in self._connections.items():
            if _find_socket(number) == inode:  # the number may be another file's by now
                _shut_down(number)
        self._connections = {}
        if self._receiver:
            self._receiver.end()
        self._receiver = None

    def _give(self, values: Tensor) -> None:
        for rank in self._others:
            self.send(values, rank, _COLLECTIVE)

    def _begin_send(self, values: Tensor, rank: int, tag: int) -> _Message:
        with _breaking():
            return self._group.send([values], rank, tag), values

    def _begin_receive(self, values: Tensor, rank: int, tag: int) -> _Message:
        with _breaking():
            return self._group.recv([values], rank, tag), values

    def _wait(self, messages: Sequence[_Message]) -> None:
        self._receiver = self._receiver or _Receiver()
        try:
            failure = self._receiver.wait(messages, lambda: self._poll(self._is_torn()))
        except GroupBroken:
            self.give_up()
            raise
        if failure:
            raise GroupBroken(failure)

    def _is_torn(self) -> bool:
        """Return whether gloo has closed a connection: it does so when one breaks."""
        return any(_find_socket(number) != inode for inode, number in self._connections.items())


class _Receiver:
    """A thread that waits for messages: gloo cannot say whether one has come, and a wait cut short breaks all.

    One that is cut off in the middle never ends either (`rx_` is passed over, too), and keeps the thread.
    """

    def __init__(self) -> None:
        self._awaited: queue.SimpleQueue[Sequence[_Message] | None] = queue.SimpleQueue()
        self._came = threading.Semaphore(0)
        self._failure: str | None = None
        threading.Thread(target=self._run, name="lockstep-receive", daemon=True).start()

    def wait(self, messages: Sequence[_Message], poll: Callable[[], None]) -> str | None:
        """Wait for messages; return why they will not come, if they will not."""
        self._awaited.put(messages)  # to whose values gloo writes for as long as it waits, whoever else has given up
        while not self._came.acquire(timeout=_POLL_S):
            poll()
        return self._failure

    def end(self) -> None:
        self._awaited.put(None)

    def _run(self) -> None:
        while (awaited := self._awaited.get()) is not None:
            try:
                for work, _ in awaited:
                    work.wait(_NEVER)
            except RuntimeError as error:
                self._failure = str(error)
            awaited = None  # it holds the group
            self._came.release()


@contextmanager
def _breaking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise GroupBroken(str(error)) from None


def _find_sockets() -> dict[int, int]:
    """Return this process's sockets: their inodes, and file numbers."""
    numbers = map(int, os.listdir("/proc/self/fd"))
    return {inode: number for number in numbers if (inode := _find_socket(number)) is not None}


def _find_socket(number: int) -> int | None:
    with suppress(OSError):
        found = os.fstat(number)
        return found.st_ino if stat.S_ISSOCK(found.st_mode) else None
    return None


def _shut_down(number: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
        connection.getpeername()  # one that listens has no peer, and gloo ends the process if it is shut down
        connection.shutdown(socket.SHUT_RDWR)
