"""Which records are new since the last time, without a torn one among them and with a count of those that are gone.

Record i of a ring stands in slot i % count with stamp i // count + 1, and `head` counts the records that were begun
(shared ring) or written (all others). We copy slots, look at `head` once more, and drop what the writer may have
reached meanwhile. Cost: the bytes of the new records, and a handful of array operations per ring.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray

from collector.kernel.foreign_file import ForeignFile
from collector.nccl.header import Layout
from lockstep import wire
from lockstep.wire import Table

_CODES = {"func": len(wire.FUNCS), "dtype": len(wire.DTYPES), "algo": len(wire.ALGOS), "proto": len(wire.PROTOS)}
_AMOUNTS = ("seq", "bytes", "gpu_start_ns", "gpu_stop_ns", "enqueued", "started", "done")
_MOST = np.uint64((1 << 63) - 1)
_WAIT_SHIFT = np.uint64(56)


def bound(table: Table, most_comms: int | NDArray[np.int64], most_rows: int = 0) -> Table:
    """Return the same array, changed in place; a file has so many communicators (or each element's has) and rows."""
    names = set(table.dtype.names or ())
    for name in names & _CODES.keys():
        table[name][table[name] >= _CODES[name]] = 0
    for name in names.intersection(_AMOUNTS):
        np.minimum(table[name], _MOST, out=table[name])
    if "comm" in names:
        table["comm"][table["comm"] >= most_comms] = wire.NO_COMM
    if "row" in names:
        table["row"][table["row"] >= most_rows] = wire.BUSY
    return table


def bound_transfers(transfers: Table, layout: Layout) -> Table:
    """Do the same for open transfers, which also say what they wait for."""
    packed, steps = transfers["wait"], transfers["ahead"]
    unknown = (packed >> _WAIT_SHIFT) >= len(wire.WAITS)
    packed[unknown] &= (np.uint64(1) << _WAIT_SHIFT) - np.uint64(1)
    steps["wait"][steps["wait"] >= len(wire.WAITS)] = wire.WAIT_UNKNOWN
    steps["state"][steps["state"] > 2] = 0
    return bound(transfers, layout.comms.count, layout.rows.count)


def has_index(rows: Table, layout: Layout) -> NDArray[np.bool_]:
    """Return which rows are in use and speak of a communicator and a function that can exist."""
    comm, func, _ = wire.split_key(rows["key"])
    found: NDArray[np.bool_] = (rows["key"] != 0) & (comm < layout.comms.count) & (func < len(wire.FUNCS))
    return found


SLACK = 64  # a weakly ordered processor may show a store before the `head` that announces it; far fewer than this

Slots = NDArray[np.uint8]  # one row of 64 bytes per record
_NO_SLOTS: Slots = np.empty((0, wire.RECORD.itemsize), np.uint8)


@dataclass(frozen=True)
class Sorted:
    """Records by kind, in the order of each ring, with every number inside of what readers may use it for."""

    enqueued: Table
    transfers: Table
    kernels: Table
    steps: Table
    callbacks: Table
    counts: dict[str, list[int]]  # of each kind, by file

    @property
    def total(self) -> int:
        return sum(map(sum, self.counts.values()))


@dataclass(frozen=True)
class Records:
    """Whole records as they stood in the file; sorted when somebody asks."""

    slots: Slots
    missed: int = 0  # those that nobody will see
    most_comms: int = wire.NO_COMM  # as many communicators the file has room for
    until_ticks: int | None = None  # what was written later is left for the next time; None: all was read

    @property
    def lost(self) -> int:
        """How many nobody will see, or nobody understands."""
        return self.missed + len(self.slots) - self.sorted.total

    @property
    def callbacks(self) -> Table:
        return self.sorted.callbacks

    @cached_property
    def sorted(self) -> Sorted:
        return sort_records([self])


@dataclass(frozen=True)
class Cursor:
    """How far a ring has been read."""

    following: int = 0  # number of the first record that was neither handed out nor counted as lost
    waited: int = 0  # records before this one were begun when we looked last


def drain(
    file: ForeignFile, layout: Layout, rings: Table, cursors: list[Cursor], share: float = 1.0
) -> tuple[Records, list[Cursor]]:
    """Return what is new in all rings, of which the table was just read, and where to go on.

    Of each ring the oldest records are read, `share` of all that are new; then all rings end at the same time.
    """
    copies = [
        _copy_new(_Ring(file, layout, number), head, cursors[number], share)
        for number, head in enumerate(rings["head"].tolist())
        if head != cursors[number].following
    ]
    until_ticks = min((int(_written_ticks(copy.slots).max()) for copy in copies if copy.is_cut), default=None)
    following, pieces, lost = list(cursors), [_NO_SLOTS], 0
    for copy in copies:
        slots, following[copy.number], missed = _settle(copy, layout.ring_records, until_ticks)
        pieces.append(slots)
        lost += missed
    slots = pieces[1] if len(pieces) == 2 else np.concatenate(pieces)
    return Records(slots, lost, layout.comms.count, until_ticks), following


RELEARNT = 1 << 18  # records before the cursors of a file, 16 MiB: seconds of busy threads


def read_before(file: ForeignFile, layout: Layout, cursors: list[Cursor]) -> Records:
    """Return what stands shortly before the cursors and has not been overwritten; nothing of it counts as lost."""
    count, pieces = layout.ring_records, [_NO_SLOTS]
    most = RELEARNT // max(sum(cursor.following > 0 for cursor in cursors), 1)
    for number, cursor in enumerate(cursors):
        ring = _Ring(file, layout, number)
        first = max(_first_untouched(ring, 0), cursor.following - most, 0)
        if first < cursor.following <= first + count:
            slots = ring.copy(first, cursor.following)
            safe = min(max(first, _first_untouched(ring, 0)), cursor.following)
            pieces.append(_select(slots[safe - first :], safe, count, cursor.following)[0])
    return Records(np.concatenate(pieces), 0, layout.comms.count)


@dataclass(frozen=True)
class _Ring:
    file: ForeignFile
    layout: Layout
    number: int

    def head_again(self) -> int:
        rings = self.layout.rings
        return int(self.file.read_at(rings.offset + self.number * rings.stride, 8).view("<u8")[0])

    def copy(self, first: int, end: int) -> Slots:
        """Return the slots of these records, in at most two pieces."""
        count = self.layout.ring_records
        slot, length = first % count, end - first
        before_the_edge = min(length, count - slot)
        start = self.number * count
        first_piece = self._raw(start + slot, before_the_edge)
        if length == before_the_edge:
            return first_piece
        return np.concatenate([first_piece, self._raw(start, length - before_the_edge)])

    def _raw(self, first: int, count: int) -> Slots:
        records = self.layout.records
        return records.read(self.file, first, count).view(np.uint8).reshape(count, records.element.itemsize)


@dataclass(frozen=True)
class _Copy:
    """What was copied of one ring, from record `first` on; what the writer had reached is left out."""

    number: int
    cursor: Cursor
    first: int
    slots: Slots
    head: int  # records before this one are there
    is_cut: bool = False  # whether more than was copied is there


def _copy_new(ring: _Ring, head: int, cursor: Cursor, share: float) -> _Copy:
    count = ring.layout.ring_records
    if head // count + 1 >= wire.BUSY:  # no stamp is so large: no writer lives that long, and our sums stay small
        raise ring.file.bad(f"says that ring {ring.number} has seen {head} records")
    if head < cursor.following:  # it went back, which only a forged one does
        return _Copy(ring.number, cursor, cursor.following, _NO_SLOTS, head)
    first = max(cursor.following, head - count)
    end = first + ceil((head - first) * share)
    slots = ring.copy(first, end)
    safe = min(max(first, _first_untouched(ring, head)), end)
    return _Copy(ring.number, cursor, safe, slots[safe - first :], head, is_cut=safe < end < head)


def _settle(copy: _Copy, count: int, until_ticks: int | None) -> tuple[Slots, Cursor, int]:
    """Return what is new, where to go on, and how many records are gone."""
    if copy.head < copy.cursor.following:
        return _NO_SLOTS, copy.cursor, 1
    slots, end = copy.slots, copy.head
    if until_ticks is not None:
        is_later = _written_ticks(slots) > until_ticks
        slots = slots[: np.argmax(is_later)] if is_later.any() else slots
        end = copy.first + len(slots)
    kept, passed = _select(slots, copy.first, count, copy.cursor.waited)
    gone = copy.first - copy.cursor.following + passed - len(kept)
    return kept, Cursor(copy.first + passed, waited=end), gone


def _written_ticks(slots: Slots) -> NDArray[np.uint64]:
    """Return when each record was written; of a kind that nobody knows, 0."""
    whole = np.ascontiguousarray(slots).reshape(-1)
    kinds, seen = whole.view(wire.RECORD)["kind"], {name: whole.view(each) for name, (_, each) in KINDS.items()}
    moved, steps = seen["transfers"], seen["steps"]
    ticks = {
        "enqueued": seen["enqueued"]["ticks"],
        "transfers": moved["first_ticks"] + wire.unpack_duration(moved["duration"]),
        "kernels": seen["kernels"]["stop_ticks"],
        "steps": steps["posted_ticks"] + wire.unpack_duration(steps["marks"][:, 2]),
        "callbacks": seen["callbacks"]["ticks"],
    }
    written: NDArray[np.uint64] = np.select([kinds == kind for kind, _ in KINDS.values()], [*ticks.values()])
    return written


def _first_untouched(ring: _Ring, head: int) -> int:
    """Return the first record that the writer had not reached when the copy was complete."""
    return max(ring.head_again(), head) - ring.layout.ring_records + SLACK + 1


def _select(slots: Slots, first: int, count: int, waited: int) -> tuple[Slots, int]:
    """Return the whole records, and how many we are done with, whole or not.

    A record that was begun but is not there yet (another thread holds its slot in the shared ring) stops us once, so
    that it keeps its place in the order; if it is not there at the next look either, it counts as lost.
    """
    stamps = slots.view(wire.RECORD)["stamp"].reshape(-1).astype(np.int64)
    edge = count - first % count  # from there on a new round
    if (stamps[:edge] == first // count + 1).all() and (stamps[edge:] == first // count + 2).all():
        return slots, len(slots)
    numbers = np.arange(first, first + len(slots))
    is_whole = stamps == numbers // count + 1
    is_late = ((stamps == wire.BUSY) | (stamps <= numbers // count)) & (numbers >= waited)
    passed = int(np.argmax(is_late)) if is_late.any() else len(slots)
    return slots[:passed][is_whole[:passed]], passed


def sort_records(files: Sequence[Records]) -> Sorted:
    """Return the records of several files together, one file after the other."""
    slots = np.concatenate([records.slots for records in files])
    sizes, limits = [len(records.slots) for records in files], [records.most_comms for records in files]
    kinds = np.ascontiguousarray(slots.view(wire.RECORD)["kind"].reshape(-1))
    whole = slots.reshape(-1).view(np.dtype((np.void, wire.RECORD.itemsize)))  # moved as they are, not byte by byte
    tables, counts = {}, {}
    for name, (kind, element) in KINDS.items():
        indices = np.flatnonzero(kinds == kind)
        ends = np.searchsorted(indices, np.cumsum(sizes))
        counts[name] = np.diff(ends, prepend=0).tolist()
        most = limits[0] if len(set(limits)) == 1 else np.repeat(np.array(limits), counts[name])
        tables[name] = bound(whole[indices].view(element), most)
    return Sorted(**tables, counts=counts)


KINDS = {
    "enqueued": (wire.KIND_ENQUEUED, wire.ENQUEUED),
    "transfers": (wire.KIND_TRANSFER_CLOSED, wire.TRANSFER_CLOSED),
    "kernels": (wire.KIND_KERNEL_CLOSED, wire.KERNEL_CLOSED),
    "steps": (wire.KIND_STEP_CLOSED, wire.STEP_CLOSED),
    "callbacks": (wire.KIND_CALLBACK, wire.CALLBACK),
}
