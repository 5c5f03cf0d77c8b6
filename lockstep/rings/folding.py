"""Records of one process, read bit by bit, folded into rows: each row once, when what it tells of is over.

Parts of an operation come from several threads and in any order. A transfer or a step has its row as soon as it and
its operation are known; an operation when none of its parts is open and a bound on lateness has passed. What comes
later still is counted, and a transfer or a step has its row even then.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep import wire
from lockstep.clock import NS_PER_S
from lockstep.rings.clock import TickClock
from lockstep.rings.communicators import CommunicatorHistory, comm_rows
from lockstep.rings.draining import Records
from lockstep.rings.foreign import ForeignParts, claim
from lockstep.rings.grouping import pick, stack
from lockstep.rings.identity import Identity
from lockstep.rings.kernels import KernelTimes
from lockstep.rings.ledger import Ledger, no_rows
from lockstep.rings.live import Live
from lockstep.rings.operations import (
    KNOWN,
    OperationIndex,
    add_kernels,
    add_transfers,
    learn_operations,
    no_operations,
)
from lockstep.rings.origin import Origin
from lockstep.rings.parts import Matched, PartQueue
from lockstep.rings.progress import progress_of, progress_rows
from lockstep.rings.ringfile import RingFile
from lockstep.rings.sampling import WHOLE_SHARE, lot_of
from lockstep.rings.span import NEVER_NS, Span
from lockstep.rings.transfers import time_steps, time_transfers

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

LATENESS_NS = NS_PER_S  # threads write their rings at once; what takes longer was not scheduled at all
PATIENCE_NS = 60 * NS_PER_S  # with a kernel that does not begin; inside a host it is all there is to hear of
_REMEMBERED_NS = 5 * NS_PER_S  # how long an operation is kept for parts that come too late
_MOST_OPERATIONS = 1 << 17  # kept in memory: 20 MB; a process enqueues some thousands a second
_END_NS = 1 << 62  # later than any time
_STATISTICS = ("op_stats", "transfer_stats")


@dataclass(frozen=True)
class Reading:
    """What a ring file held at one time. `live` was read before `records`: what it shows as over has its record."""

    identity: Identity
    clock: TickClock
    communicators: Array
    live: Live
    records: Records
    level: int


@dataclass(frozen=True)
class Losses:
    """What has no row, or not all that it could have, and why; counted since the beginning."""

    overwritten: int = 0  # records that were overwritten before they were read
    homeless: int = 0  # operations of a communicator that is not in the table
    orphans: int = 0  # parts of an operation that nobody told of
    late: int = 0  # parts that came after the row of their operation
    stale_kernels: int = 0  # kernel times that cannot be true
    sizeless: int = 0  # transfers of which nobody can say what they moved
    unreached: int = 0  # steps that ended without reaching the network
    forgotten: int = 0  # operations dropped because too many were open

    def plus(self, **more: int) -> "Losses":
        return Losses(**{name: count + more.get(name, 0) for name, count in asdict(self).items()})


@dataclass(frozen=True)
class FolderMemory:
    """What another reader needs to go on where one ended, beside the records that the file still holds."""

    now_ns: int  # of the last reading
    share: int
    pending: Array  # handles of operations that look over and have no row
    written: Array  # handles of operations that look under way and have one


def take_reading(ring: RingFile) -> Reading:
    """Read everything in the order that `Reading` promises; RingNotReady leaves the records where they are."""
    live, clock, level = ring.live(), ring.clock(), int(ring.status()["level"])
    records = ring.read_records()
    return Reading(ring.identity, clock, ring.communicators(), live, records, level)


class Folder:
    """Folds what one process recorded. Call `fold` with every reading, and `finish` with the last one."""

    def __init__(self, origin: Origin, ledger: Ledger | None = None, keeps_rest: bool = False) -> None:
        """`ledger` makes the rows of several processes together; whoever gives it asks it for them.

        With `keeps_rest` complete rows are those of the operations that are not in the share.
        """
        self._origin, self._keeps_rest = origin, keeps_rest
        self._ledger, self._is_alone = ledger or Ledger(), ledger is None
        self._number = self._ledger.origins.enter(origin)
        self._history = CommunicatorHistory()
        self._known = no_operations()
        self._index = OperationIndex(self._known)
        self._transfers = PartQueue(wire.TRANSFER_CLOSED, LATENESS_NS)
        self._kernels = PartQueue(wire.KERNEL_CLOSED, LATENESS_NS)
        self._steps = PartQueue(wire.STEP_CLOSED, LATENESS_NS)
        self._kernel_times = KernelTimes()
        self._lost = {each.name: 0 for each in fields(Losses)}
        self.written = no_operations()  # operations whose row the last reading completed
        self.foreign: ForeignParts | None = None  # what the last reading brought for other processes

    @property
    def losses(self) -> Losses:
        """What this process lost; transfers without a size are the ledger's to count, if it is not ours alone."""
        return Losses(**self._lost | {"sizeless": self._ledger.sizeless if self._is_alone else 0})

    @property
    def oldest_pending_ns(self) -> int | None:
        """Since when the oldest operation is under way that has no row yet; None: there is none."""
        pending = self._known["enqueue_ns"][self._known["written_ns"] == NEVER_NS]
        return int(pending.min()) if len(pending) else None

    def fold(self, reading: Reading, now_ns: int, share: int = WHOLE_SHARE) -> dict[str, pa.Table]:
        """Return the rows that this reading completes; `now_ns` is the process's own time, UNIX.

        Of 65,536 operations that are new, `share` have complete rows; statistics are of all in any case.
        """
        comms = self._take_in(reading, now_ns, share)
        is_open = self._is_open(reading.live)
        may_begin = self._may_begin(reading) & (self._known["enqueue_ns"] + PATIENCE_NS > now_ns)
        is_quiet = self._known["active_ns"] + LATENESS_NS <= now_ns
        self._write(~is_open & ~may_begin & is_quiet, is_open, now_ns)
        return self._complete(comms, now_ns - LATENESS_NS - NS_PER_S)

    def finish(self, reading: Reading, now_ns: int, died: bool, share: int = WHOLE_SHARE) -> dict[str, pa.Table]:
        """Return all rows that are left; what is still open gets one only if its process died."""
        comms = self._take_in(reading, now_ns, share)
        is_open = self._is_open(reading.live)
        self._write(~is_open | died, is_open, now_ns)
        self._lose(orphans=sum(queue.give_up() for queue in (self._transfers, self._kernels, self._steps)))
        if not self._is_alone:
            self._ledger.seconds.leave(self._number)
        return self._complete(comms, _END_NS)

    def memory(self, now_ns: int, share: int) -> FolderMemory:
        """Return what `relearn` needs after the reading at this time."""
        is_written = self._known["written_ns"] != NEVER_NS
        is_quiet = self._known["active_ns"] + LATENESS_NS <= now_ns
        handles = self._known["handle"]
        return FolderMemory(now_ns, share, handles[~is_written & is_quiet], handles[is_written & ~is_quiet])

    def relearn(self, reading: Reading, memory: FolderMemory) -> None:
        """Know again what another reader knew of the same file; what it gave rows and counted is not given again."""
        ledger, self._ledger = self._ledger, Ledger(origins=self._ledger.origins)
        self._take_in(reading, memory.now_ns, memory.share)
        is_quiet = self._known["active_ns"] + LATENESS_NS <= memory.now_ns
        is_written = is_quiet & ~self._index.among(memory.pending) | self._index.among(memory.written)
        self._write(is_written, np.zeros(len(is_written), bool), memory.now_ns)
        self._ledger.rows()
        self._ledger, before = ledger, self._ledger
        self._ledger.seconds.adopt(before.seconds, self._number)
        for queue in (self._transfers, self._kernels, self._steps):
            queue.excuse()
        self._lost = dict.fromkeys(self._lost, 0)
        self.written, self.foreign = no_operations(), None

    def look(self, reading: Reading, now_ns: int) -> Array:
        """Return how far the process has come, as PROGRESS; after `fold` or `finish` with the same reading."""
        hears_kernels = reading.identity.kernel_channels
        return progress_of(reading.live, reading.clock, self._history, hears_kernels, (now_ns, self._number))

    def progress(self, reading: Reading, now_ns: int) -> pa.Table:
        """Return the same as rows."""
        return progress_rows(self.look(reading, now_ns), self._ledger.origins)

    def take_foreign(self, parts: ForeignParts, identity: Identity) -> ForeignParts:
        """Take what another process did for this one, and return what it did for others still.

        Rows take this rank: it is its data that moved.
        """
        claimed, rest = claim(parts, identity.pid, identity.tag, self._index)
        self._take_transfers(claimed.transfers, claimed.transfer_places, parts.clock)
        self._take_steps(claimed.steps, claimed.step_places, parts.clock)
        return rest

    def _take_in(self, reading: Reading, now_ns: int, share: int) -> pa.Table:
        """Learn everything that the reading holds; return the rows of communicators."""
        self._lose(overwritten=reading.records.lost)
        changed = reading.communicators[self._history.update(reading.communicators)]
        detail = "steps" if reading.level >= wire.STEPS else "ops"
        comms = no_rows("comms")
        if len(changed):
            comms = comm_rows(changed, reading.identity, reading.clock, detail, self._origin)
        self._learn(reading, share, now_ns)
        self._take_kernels(reading, now_ns)
        moved = self._matched(self._transfers, reading.records.transfers, reading, now_ns)
        stepped = self._matched(self._steps, reading.records.steps, reading, now_ns)
        self.foreign = ForeignParts(reading.clock, moved.foreign, stepped.foreign)
        self._take_transfers(moved.parts, moved.places, reading.clock)
        self._take_steps(stepped.parts, stepped.places, reading.clock)
        return comms

    def _learn(self, reading: Reading, share: int, now_ns: int) -> None:
        if len(reading.records.enqueued):
            new = learn_operations(reading.records.enqueued, reading.clock, self._history)
            new["kept"] = (lot_of(new) < share) != self._keeps_rest
            self._lose(homeless=len(reading.records.enqueued) - len(new))
            self._known = stack(KNOWN, [self._known, new]) if len(self._known) else new
            self._kernel_times.distrust(new, reading.communicators, reading.identity.nccl_version)
        self._forget(now_ns)
        self._index = OperationIndex(self._known)

    def _take_kernels(self, reading: Reading, now_ns: int) -> None:
        matched = self._matched(self._kernels, reading.records.kernels, reading, now_ns)
        if len(matched.parts) == 0:
            return
        judged = self._kernel_times.judge(matched.parts, pick(self._known, matched.places), reading.clock)
        add_kernels(self._known, matched.places, judged)
        self._lose(stale_kernels=_count(~judged.is_good))

    def _take_transfers(self, parts: Array, places: Array, clock: TickClock) -> None:
        if len(parts):
            moved = time_transfers(parts, pick(self._known, places), clock, self._number)
            add_transfers(self._known, places, Span(moved["first_ns"], moved["end_ns"]))
            self._ledger.add_transfers(moved)

    def _take_steps(self, parts: Array, places: Array, clock: TickClock) -> None:
        if len(parts):
            stepped, reached = time_steps(parts, pick(self._known, places), clock, self._number)
            self._lose(unreached=_count(~reached))
            self._ledger.add_steps(stepped)

    def _matched(self, queue: PartQueue, new: Array, reading: Reading, now_ns: int) -> Matched:
        matched = queue.match(new, self._known, self._index, reading.identity.tag, now_ns)
        self._lose(orphans=matched.orphans, late=matched.late)
        return matched

    def _is_open(self, live: Live) -> Array:
        """Return which operations have a part under way."""
        return self._index.among(live.operations["handle"][live.operations["open"] > 0])

    def _may_begin(self, reading: Reading) -> Array:
        """Return whose kernel may still begin: no part of them is known, nor of any that was enqueued later."""
        if not reading.identity.kernel_channels:
            return np.zeros(len(self._known), bool)
        return self._index.among(reading.live.operations["handle"])

    def _write(self, is_complete: Array, is_open: Array, now_ns: int) -> None:
        chosen = np.flatnonzero(is_complete & (self._known["written_ns"] == NEVER_NS))
        self._known["written_ns"][chosen] = now_ns
        self.written = pick(self._known, chosen)
        self._ledger.add_operations(self.written, ~is_open[chosen], self._number)

    def _complete(self, comms: pa.Table, until_ns: int) -> dict[str, pa.Table]:
        """Add rows and statistics, if the ledger is ours alone."""
        if not self._is_alone:
            return {"comms": comms}
        empty = {name: no_rows(name) for name in _STATISTICS}
        return {"comms": comms} | self._ledger.rows() | empty | self._ledger.seconds.close(until_ns)

    def _forget(self, now_ns: int) -> None:
        """Let go of the oldest operations, up to the first that may still be of use."""
        written_ns = self._known["written_ns"]
        is_old = (written_ns != NEVER_NS) & (written_ns + _REMEMBERED_NS < now_ns)
        first = len(is_old) if is_old.all() else int(np.argmin(is_old))
        excess = max(len(is_old) - first - _MOST_OPERATIONS, 0)
        self._lose(forgotten=_count(written_ns[first : first + excess] == NEVER_NS))
        self._known = self._known[first + excess :]

    def _lose(self, **more: int) -> None:
        for name, count in more.items():
            self._lost[name] += count


def _count(mask: Array) -> int:
    return int(np.count_nonzero(mask))
