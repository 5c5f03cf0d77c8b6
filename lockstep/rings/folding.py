"""Records of one process, read bit by bit, folded into rows: each row once, when what it tells of is over.

Parts of an operation come from several threads and in any order. A transfer or a step has its row as soon as it and
its operation are known; an operation when none of its parts is open and a bound on lateness has passed. What comes
later still is counted, and a transfer or a step has its row even then.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep import wire
from lockstep.clock import NS_PER_S
from lockstep.rings.clock import TickClock
from lockstep.rings.communicators import CommunicatorHistory, comm_rows
from lockstep.rings.draining import Records
from lockstep.rings.foreign import ForeignParts, Owner
from lockstep.rings.identity import Identity
from lockstep.rings.kernels import KernelTimes
from lockstep.rings.live import Live
from lockstep.rings.operations import (
    add_kernels,
    add_transfers,
    collective_rows,
    is_sampled,
    learn_operations,
    no_operations,
)
from lockstep.rings.origin import Origin
from lockstep.rings.parts import Matched, PartQueue
from lockstep.rings.progress import progress_rows
from lockstep.rings.ringfile import RingFile
from lockstep.rings.seconds import Seconds
from lockstep.rings.span import NEVER_NS
from lockstep.rings.transfers import span_of, step_rows, transfer_rows

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

LATENESS_NS = 2 * NS_PER_S  # threads write their rings at once; what takes longer was not scheduled at all
PATIENCE_NS = 60 * NS_PER_S  # with a kernel that does not begin; inside a host it is all there is to hear of
_REMEMBERED_NS = 10 * NS_PER_S  # how long an operation is kept for parts that come too late
_MOST_OPERATIONS = 1 << 17  # kept in memory: 20 MB; a process enqueues some thousands a second
_END_NS = 1 << 62  # later than any time


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


class _Rows(NamedTuple):
    rows: pa.Table
    sampled: Array  # which of them are complete rows to keep


def take_reading(ring: RingFile) -> Reading:
    """Read everything in the order that `Reading` promises; RingNotReady leaves the records where they are."""
    live, clock, level = ring.live(), ring.clock(), int(ring.status()["level"])
    records = ring.read_records()
    return Reading(ring.identity, clock, ring.communicators(), live, records, level)


class Folder:
    """Folds what one process recorded. Call `fold` with every reading, and `finish` with the last one."""

    def __init__(self, origin: Origin, sampled_only: bool = False) -> None:
        """`sampled_only` gives complete rows to sampled operations only; statistics are of all in any case."""
        self._origin, self._sampled_only = origin, sampled_only
        self._history = CommunicatorHistory()
        self._known = no_operations()
        self._transfers = PartQueue(wire.TRANSFER_CLOSED, LATENESS_NS)
        self._kernels = PartQueue(wire.KERNEL_CLOSED, LATENESS_NS)
        self._steps = PartQueue(wire.STEP_CLOSED, LATENESS_NS)
        self._kernel_times = KernelTimes()
        self._seconds = Seconds()
        self.losses = Losses()
        self.foreign: ForeignParts | None = None  # what the last reading brought for other processes

    def fold(self, reading: Reading, now_ns: int) -> dict[str, pa.Table]:
        """Return the rows that this reading completes; `now_ns` is the process's own time, UNIX."""
        tables = self._take_in(reading, now_ns)
        is_open = _is_open(self._known, reading.live)
        may_begin = self._may_begin(reading) & (self._known["enqueue_ns"] + PATIENCE_NS > now_ns)
        is_quiet = self._known["active_ns"] + LATENESS_NS <= now_ns
        tables["collectives"] = self._write(~is_open & ~may_begin & is_quiet, is_open, now_ns)
        return self._complete(tables, now_ns - LATENESS_NS - NS_PER_S, now_ns)

    def finish(self, reading: Reading, now_ns: int, died: bool) -> dict[str, pa.Table]:
        """Return all rows that are left; what is still open gets one only if its process died."""
        tables = self._take_in(reading, now_ns)
        is_open = _is_open(self._known, reading.live)
        tables["collectives"] = self._write(~is_open | died, is_open, now_ns)
        self._lose(orphans=sum(queue.give_up() for queue in (self._transfers, self._kernels, self._steps)))
        return self._complete(tables, _END_NS, now_ns)

    def progress(self, reading: Reading, now_ns: int) -> pa.Table:
        """Return how far the process has come; call it after `fold` or `finish` with the same reading."""
        hears_kernels = reading.identity.kernel_channels
        return progress_rows(reading.live, reading.clock, self._history, now_ns, self._origin, hears_kernels)

    def owner(self, identity: Identity) -> Owner:
        """Return what other processes of the host need to place the transfers that they made for this one."""
        return Owner(identity.pid, identity.tag, self._origin, self._known)

    def _take_in(self, reading: Reading, now_ns: int) -> dict[str, _Rows]:
        """Learn everything that the reading holds; return the rows of communicators, transfers and steps."""
        self._lose(overwritten=reading.records.lost)
        changed = reading.communicators[self._history.update(reading.communicators)]
        detail = "steps" if reading.level >= wire.STEPS else "ops"
        comms = comm_rows(changed, reading.identity, reading.clock, detail, self._origin)
        self._learn(reading)
        self._take_kernels(reading, now_ns)
        tables = {"comms": _Rows(comms, np.ones(comms.num_rows, bool))}
        return tables | self._take_transfers_and_steps(reading, now_ns)

    def _learn(self, reading: Reading) -> None:
        new = learn_operations(reading.records.enqueued, reading.clock, self._history)
        self._lose(homeless=len(reading.records.enqueued) - len(new))
        self._known = np.concatenate([self._known, new])
        self._kernel_times.distrust(new, reading.communicators, reading.identity.nccl_version)

    def _take_kernels(self, reading: Reading, now_ns: int) -> None:
        matched = self._matched(self._kernels, reading.records.kernels, reading, now_ns)
        judged = self._kernel_times.judge(matched.parts, self._known[matched.places], reading.clock)
        add_kernels(self._known, matched.places, judged)
        self._lose(stale_kernels=_count(~judged.is_good))

    def _take_transfers_and_steps(self, reading: Reading, now_ns: int) -> dict[str, _Rows]:
        moved = self._matched(self._transfers, reading.records.transfers, reading, now_ns)
        stepped = self._matched(self._steps, reading.records.steps, reading, now_ns)
        self.foreign = ForeignParts(reading.clock, moved.foreign, stepped.foreign)
        add_transfers(self._known, moved.places, span_of(moved.parts, reading.clock))
        transfers, sized = transfer_rows(moved.parts, self._known[moved.places], reading.clock, self._origin)
        steps, reached = step_rows(stepped.parts, self._known[stepped.places], reading.clock, self._origin)
        self._lose(sizeless=_count(~sized), unreached=_count(~reached))
        operations = self._known[moved.places[sized]]
        sizes = collective_rows(operations, np.zeros(len(operations), bool), self._origin)
        self._seconds.add_transfers(transfers, sizes)
        sampled = is_sampled(self._known[stepped.places[reached]])
        return {"transfers": _Rows(transfers, is_sampled(operations)), "step_samples": _Rows(steps, sampled)}

    def _matched(self, queue: PartQueue, new: Array, reading: Reading, now_ns: int) -> Matched:
        matched = queue.match(new, self._known, reading.identity.tag, now_ns)
        self._lose(orphans=matched.orphans, late=matched.late)
        return matched

    def _may_begin(self, reading: Reading) -> Array:
        """Return whose kernel may still begin: no part of them is known, nor of any that was enqueued later."""
        if not reading.identity.kernel_channels:
            return np.zeros(len(self._known), bool)
        return np.isin(self._known["handle"], reading.live.operations["handle"])

    def _write(self, is_complete: Array, is_open: Array, now_ns: int) -> _Rows:
        chosen = np.flatnonzero(is_complete & (self._known["written_ns"] == NEVER_NS))
        self._known["written_ns"][chosen] = now_ns
        rows = collective_rows(self._known[chosen], ~is_open[chosen], self._origin)
        self._seconds.add_operations(rows)
        return _Rows(rows, is_sampled(self._known[chosen]))

    def _complete(self, tables: dict[str, _Rows], until_ns: int, now_ns: int) -> dict[str, pa.Table]:
        """Add the statistics of seconds that are over, leave out what is not to be sent, forget what is old."""
        self._forget(now_ns)
        kept = {
            name: made.rows.filter(pa.array(made.sampled)) if self._sampled_only else made.rows
            for name, made in tables.items()
        }
        return kept | self._seconds.close(until_ns)

    def _forget(self, now_ns: int) -> None:
        written = self._known["written_ns"] != NEVER_NS
        self._known = self._known[~(written & (self._known["written_ns"] + _REMEMBERED_NS < now_ns))]
        excess = max(len(self._known) - _MOST_OPERATIONS, 0)
        self._lose(forgotten=_count(self._known["written_ns"][:excess] == NEVER_NS))
        self._known = self._known[excess:]

    def _lose(self, **more: int) -> None:
        self.losses = self.losses.plus(**more)


def _is_open(known: Array, live: Live) -> Array:
    """Return which operations have a part under way."""
    is_open: Array = np.isin(known["handle"], live.operations["handle"][live.operations["open"] > 0])
    return is_open


def _count(mask: Array) -> int:
    return int(np.count_nonzero(mask))
