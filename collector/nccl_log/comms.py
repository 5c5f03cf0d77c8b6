"""Which communicator a line on a channel belongs to: the line itself does not say.

What helps: while a communicator is made all its lines come from one thread; it has a proxy thread of its own, which
says a word for every new connection right before the line on its channel; and rank and peer must fit into it.

The id is the one that the profiler plugin sees, and so `comm` of the other tables, from NCCL 2.26 on: then commId in
the log is the hash that the plugin gets. Earlier releases print another hash of the same secret, which cannot be
turned into it, so that the id stays unknown. A split communicator prints no id: its own is a hash of its parent's, of
its number among the parent's children, and of its color (compared with the ids that RAS of 2.28.9 reports).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collector.nccl_log.facts import ChannelLine, CommBegins

_FIRST_RELEASE = (2, 26)  # in which the log has the id that the profiler gets
MOST_COMMS = 4_096  # of one process at a time
_MOST_THREADS = 4_096
_WORD = (1 << 64) - 1

SURE, LIKELY, UNKNOWN = 0.95, 0.9, 0.7  # how well a line's communicator, and with it the row, is known


@dataclass(slots=True)
class LoggedComm:
    """A communicator of the process that writes the log."""

    pointer: int
    rank: int
    nranks: int
    gpu: int | None
    id: int | None
    maker_tid: int | None  # the thread that is making it; None once it is made
    proxy_tid: int | None

    def fits(self, line: ChannelLine) -> bool:
        return self.rank == line.rank and line.peer < self.nranks


class CommBook:
    """The communicators of one process, as its log tells of them line by line."""

    def __init__(self) -> None:
        self.release: tuple[int, int] | None = None
        self._comms: dict[int, LoggedComm] = {}  # by address
        self._asked_tid: int | None = None  # the proxy thread that was asked last
        self._answers: dict[int, int] = {}  # thread -> the proxy thread that has just answered it

    def __len__(self) -> int:
        return len(self._comms)

    @property
    def comms(self) -> Sequence[LoggedComm]:
        return list(self._comms.values())

    def begin(self, tid: int, fact: CommBegins) -> None:
        """Take a communicator that is being made; one of the same address was freed before."""
        if len(self._comms) >= MOST_COMMS and fact.pointer not in self._comms:
            del self._comms[next(iter(self._comms))]
        parent = self._comms.get(fact.parent) if fact.parent is not None else None
        # A child that shares its parent's resources has no proxy thread of its own and says nothing of one.
        proxy_tid = parent.proxy_tid if parent else None
        self._comms[fact.pointer] = LoggedComm(
            fact.pointer, fact.rank, fact.nranks, fact.gpu, self._id_of(fact, parent), tid, proxy_tid
        )

    def finish(self, pointer: int) -> None:
        if pointer in self._comms:
            self._comms[pointer].maker_tid = None

    def end(self, pointer: int) -> None:
        self._comms.pop(pointer, None)

    def hear_proxy(self, tid: int) -> None:
        """A proxy thread has begun: it belongs to the communicator that is being made, if there is only one."""
        being_made = [comm for comm in self._comms.values() if comm.maker_tid is not None]
        if len(being_made) == 1:
            being_made[0].proxy_tid = tid

    def ask_proxy(self, tid: int) -> None:
        self._asked_tid = tid

    def answer_proxy(self, tid: int) -> None:
        if self._asked_tid is not None and len(self._answers) < _MOST_THREADS:
            self._answers[tid] = self._asked_tid

    def find(self, tid: int, line: ChannelLine) -> tuple[LoggedComm | None, float]:
        """Return whose channel this is, None where several could be, and how sure the row is."""
        proxy_tid = self._answers.pop(tid, None)
        fitting = [comm for comm in self._comms.values() if comm.fits(line)]
        for sure in (
            [comm for comm in fitting if comm.maker_tid == tid],
            [comm for comm in fitting if proxy_tid is not None and comm.proxy_tid == proxy_tid],
        ):
            if len(sure) == 1:
                return sure[0], SURE
        return (fitting[0], LIKELY) if len(fitting) == 1 else (None, UNKNOWN)

    def _id_of(self, fact: CommBegins, parent: LoggedComm | None) -> int | None:
        if self.release is None or self.release < _FIRST_RELEASE:
            return None
        if fact.parent is None:
            return fact.comm_id
        if parent is None or parent.id is None or fact.child_number is None or fact.color is None:
            return None
        return child_id(parent.id, fact.child_number, fact.color)


def child_id(parent_id: int, child_number: int, color: int) -> int:
    """Return the id of a communicator that was split off another.

    >>> hex(child_id(0x53025406BC896DD3, 1, 2130503744))
    '0xe9bf466c3e5eea0d'
    """
    low, high = 1, 1
    for value, size in ((parent_id, 8), (child_number, 4), (color, 4)):
        low = (low ^ size) + high & _WORD
        high ^= low
        low = (low ^ low >> 31) * 0x9DE62BBC8CEF3CE3 & _WORD
        high = (high ^ high >> 32) * 0x485CD6311B599E79 & _WORD
        low = low + value & _WORD
    mixed = (low ^ low >> 31) * 0xBAC3BD562846DE6B + high & _WORD
    return (mixed ^ mixed >> 32) * 0x995A187A14E7B445 & _WORD
