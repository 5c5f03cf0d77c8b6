"""One ring file: who writes it, what is new in it, what is open, and what the collector asks for."""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from collector.kernel.foreign_file import ForeignFile
from collector.nccl.arrays import pick
from collector.nccl.budget import WHOLE_SHARE
from collector.nccl.clock import ClockReader
from collector.nccl.draining import Cursor, Records, bound, bound_transfers, drain, has_index, read_before
from collector.nccl.header import Layout, Section, check_layout, identify, read_header
from lockstep import wire
from lockstep.wire import Table

_COMMS_AT_ONCE = 64

Wanted = Callable[[Table], NDArray[np.bool_]]

INDEXED_COMM = np.dtype([*((name, wire.COMM[name]) for name in wire.COMM.names or ()), ("index", "<u4")])
INDEXED_ROW = np.dtype([*((name, wire.ROW[name]) for name in wire.ROW.names or ()), ("index", "<u4")])


@dataclass(frozen=True)
class Live:
    """Rows in use, with their `index`; operations and transfers that have begun and not ended."""

    rows: Table = field(default_factory=lambda: np.empty(0, INDEXED_ROW))
    # their `row` is the place of a row; wire.BUSY: they have none
    operations: Table = field(default_factory=lambda: np.empty(0, wire.OPERATION))
    transfers: Table = field(default_factory=lambda: np.empty(0, wire.TRANSFER))


class CommunicatorReader:
    """Reads the communicators of one file; as long as nothing changes the table is the same one."""

    def __init__(self, file: ForeignFile, layout: Layout) -> None:
        self._file, self._layout = file, layout
        self._before = b""  # the places in use and some behind them, as they were before the table was read
        self._count = 0
        self._table: Table = np.empty(0, INDEXED_COMM)

    def read(self) -> Table:
        """Return the communicators, as INDEXED_COMM; those that change just now come the next time."""
        if self._count == 0 or self._snapshot() != self._before:
            used = _comms_in_use(self._file, self._layout)
            self._count = min(used + _COMMS_AT_ONCE, self._layout.comms.count)
            self._before = self._snapshot()
            section = replace(self._layout.comms, count=used)
            comms, indices = _read_whole(self._file, section, "incarnation", lambda comms: comms["incarnation"] != 0)
            self._table = _with_index(comms, indices, INDEXED_COMM)
        return self._table

    def _snapshot(self) -> bytes:
        return self._layout.comms.read(self._file, 0, self._count).tobytes()


def _comms_in_use(file: ForeignFile, layout: Layout) -> int:
    """Return how many places to look at: they are taken from the first one on, so after many free ones all are."""
    for first in range(0, layout.comms.count, _COMMS_AT_ONCE):
        count = min(_COMMS_AT_ONCE, layout.comms.count - first)
        if not layout.comms.read(file, first, count)["incarnation"].any():
            return first
    return layout.comms.count


def read_live(file: ForeignFile, layout: Layout) -> Live:
    """Return what is open now. Cost: up to three copies of what belongs to rings that a thread ever had."""
    share = _rings_in_use(file, layout) / layout.rings.count
    rows = layout.rows.read(file)
    indices = np.flatnonzero(rows["key"])  # of thousands a few are in use: only those are looked at
    indices = indices[has_index(pick(rows, indices), layout)]
    used = [replace(section, count=round(section.count * share)) for section in (layout.operations, layout.transfers)]
    operations, _ = _read_whole(file, used[0], "handle", lambda operations: _is_open(operations, rows))
    transfers = np.zeros(0, layout.transfers.element)
    if (operations["open"] > 0).any():  # the open ones of others are of no use here, and they are most of the file
        transfers, _ = _read_whole(file, used[1], "handle", lambda transfers: transfers["last_ticks"] == 0)
    limits = layout.comms.count, layout.rows.count
    return Live(
        rows=bound(_with_index(pick(rows, indices), indices, INDEXED_ROW), *limits),
        operations=bound(operations, *limits),
        transfers=bound_transfers(transfers, layout),
    )


def _rings_in_use(file: ForeignFile, layout: Layout) -> int:
    """Return how many rings to look at: threads take the first that is free, so those at the end may be untouched."""
    rings = layout.rings.read(file)
    used = np.flatnonzero((rings["taken_ticks"] | rings["head"]) != 0)
    return int(used[-1]) + 1 if len(used) else 1


def _read_whole(
    file: ForeignFile, section: Section, number: str, is_wanted: Wanted
) -> tuple[Table, NDArray[np.intp]]:
    """Return wanted elements that kept their number (which is 0 while they change) all the time, and their places.

    The numbers are read before and after: within one copy nobody promises the order.
    """
    all_before = section.read(file)
    indices = np.flatnonzero((all_before[number] != 0) & is_wanted(all_before))
    if len(indices) == 0:
        return np.zeros(0, section.element), indices
    first, count = int(indices[0]), int(indices[-1] - indices[0]) + 1
    table = pick(section.read(file, first, count), indices - first)
    after = section.read(file, first, count)[number][indices - first]
    is_whole = (table[number] == all_before[number][indices]) & (table[number] == after) & is_wanted(table)
    return pick(table, is_whole), indices[is_whole]


def _is_open(operations: Table, rows: Table) -> NDArray[np.bool_]:
    """Return which operations have parts under way, or none yet while their row is not that far.

    A row counts only what is numbered as other ranks number it, within one epoch; replays of CUDA graphs are not.
    """
    is_counted = (operations["row"] < len(rows)) & (operations["flags"] & wire.FLAG_SEQ_VALID != 0)
    row = np.where(is_counted, operations["row"], 0)
    is_ahead = is_counted & (rows["epoch"][row] == operations["epoch"]) & (rows["done"][row] <= operations["seq"])
    is_open: NDArray[np.bool_] = (operations["open"] > 0) | is_ahead
    return is_open


def _with_index(table: Table, indices: NDArray[np.intp], element: np.dtype[np.void]) -> Table:
    indexed = np.zeros(len(table), element)
    for name in table.dtype.names or ():
        indexed[name] = table[name]
    indexed["index"] = indices
    return indexed


def open_ring(path: Path, shown: Path | None = None) -> "RingFile":
    """Open a ring file that may have been made by anybody; what cannot be a ring is a BadRing.

    `shown` is how messages name it, where `path` leads through a descriptor of ours.
    """
    file = ForeignFile(path, shown=shown)
    try:
        return RingFile(file)
    except BaseException:
        file.close()
        raise


class RingFile:
    """An open ring file. No method raises anything but BadRing for what stands in the file.

    `read_records` gives each record once; everything else is as the file is now.
    """

    def __init__(self, file: ForeignFile) -> None:
        header = read_header(file)
        self._file, self._layout = file, check_layout(file, header)
        self.name, self.inode = file.name, file.inode
        self.position = [Cursor()] * self._layout.rings.count  # how far each of its rings has been read
        self.identity = identify(file, header)
        self.uid = file.uid
        self.clock = ClockReader(file, self._layout, self.identity.clock_kind).read
        self.communicators = CommunicatorReader(file, self._layout).read  # by their `index` records name them
        self.fullness = 0.0  # which part of its fullest ring the last reading brought
        self._rings: Table | None = None  # as they were when records were read last

    def owner(self) -> int | None:
        """Return the process that writes, by its number here; 0: it lives but cannot be seen, None: it is gone."""
        return self._file.lock_owner()

    def read_records(self, most: int = 1 << 32) -> Records:
        """Return what is new since the last time; about so many at most, the oldest."""
        self._rings = self._layout.rings.read(self._file)
        before, count = self.position, self._layout.ring_records
        pairs = zip(self._rings["head"].tolist(), before, strict=True)
        unread = sum(min(max(head - cursor.following, 0), count) for head, cursor in pairs)
        share = min(most / max(unread, 1), 1.0)
        records, self.position = drain(self._file, self._layout, self._rings, before, share)
        pairs = zip(self.position, before, strict=True)
        self.fullness = max(new.following - old.following for new, old in pairs) / self._layout.ring_records
        return records

    def go_on(self, position: list[Cursor]) -> Records:
        """Continue where another reader of this file was; return what it read and the file still holds."""
        if len(position) != len(self.position):
            raise self._file.bad(f"has {len(self.position)} rings, and another reader knew {len(position)}")
        self.position = position
        return read_before(self._file, self._layout, position)

    def callback_ticks(self) -> int:
        """Return the time that the plugin had spent in callbacks when records were read, all threads together.

        One in 64 was timed.
        """
        rings = self._layout.rings.read(self._file) if self._rings is None else self._rings
        timed = rings[rings["sampled_callbacks"] > 0]
        spent = timed["sampled_ticks"].astype(np.float64) / timed["sampled_callbacks"] * timed["callbacks"]
        return int(min(spent.sum(), 2.0**62))

    def live(self) -> Live:
        """Return what has begun and not ended."""
        return read_live(self._file, self._layout)

    def status(self) -> np.void:
        """Return what is in force and what it costs, as one wire.STATUS."""
        status: np.void = self._layout.status.read(self._file)[0]
        if status["level"] > wire.TRACE or status["lowered"] > wire.LOWERED_BY_JOB:
            raise self._file.bad(f"has level {status['level']}, lowered for reason {status['lowered']}")
        return status

    def request(self, level: int, share: int, budget_ppm: int) -> None:
        """Ask the process for a level, a share (of 65,536) and a budget; 0 leaves the budget as it is."""
        if not (wire.OFF <= level <= wire.TRACE and 0 <= share <= WHOLE_SHARE and 0 <= budget_ppm <= 1_000_000):
            raise ValueError(f"no level, share or budget: {level}, {share}, {budget_ppm}")
        offset = self._layout.requests.offset
        before = int(self._layout.requests.read(self._file)[0]["stamp"])
        writable = ForeignFile(self._file.path, os.O_RDWR)
        try:
            if writable.inode != self._file.inode:
                raise self._file.bad("was replaced by another file")
            writable.write_at(offset + 4, struct.pack("<III", level, share, budget_ppm))
            writable.write_at(offset, struct.pack("<I", before % 0xFFFFFFFF + 1))  # never 0
        finally:
            writable.close()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "RingFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
