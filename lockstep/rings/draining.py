"""Which records are new since the last time, without a torn one among them and with a count of those that are gone.

Record i of a ring stands in slot i % count with stamp i // count + 1, and `head` counts the records that were begun
(shared ring) or written (all others). We copy slots, look at `head` once more, and drop what the writer may have
reached meanwhile. Cost: the bytes of the new records, and a handful of array operations per ring.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lockstep import wire
from lockstep.rings.bounds import bound
from lockstep.rings.layout import Layout
from lockstep.rings.opening import ForeignFile
from lockstep.wire import Table

SLACK = 64  # a weakly ordered processor may show a store before the `head` that announces it; far fewer than this
_HEAD_BYTES = 8

Slots = NDArray[np.uint8]  # one row of 64 bytes per record


@dataclass(frozen=True)
class Records:
    """Records by kind, in the order of each ring; `lost` counts those that nobody will see."""

    enqueued: Table
    transfers: Table
    kernels: Table
    steps: Table
    callbacks: Table
    lost: int
    slots: Slots = field(default_factory=lambda: np.empty((0, wire.RECORD.itemsize), np.uint8))  # all, as they stood


@dataclass(frozen=True)
class Cursor:
    """How far a ring has been read."""

    following: int = 0  # number of the first record that was neither handed out nor counted as lost
    waited: int = 0  # records before this one were begun when we looked last


@dataclass(frozen=True)
class _Drained:
    slots: Slots
    cursor: Cursor
    lost: int


def drain(file: ForeignFile, layout: Layout, cursors: list[Cursor]) -> tuple[Records, list[Cursor]]:
    """Return what is new in all rings, and where to go on."""
    heads = layout.rings.read(file)["head"].tolist()
    following, pieces, lost = list(cursors), [np.empty((0, wire.RECORD.itemsize), np.uint8)], 0
    for number, head in enumerate(heads):
        if head != cursors[number].following:
            drained = _drain_ring(_Ring(file, layout, number), head, cursors[number])
            following[number] = drained.cursor
            pieces.append(drained.slots)
            lost += drained.lost
    return sort_records(np.concatenate(pieces), layout, lost), following


def look_back(file: ForeignFile, layout: Layout, cursors: list[Cursor]) -> Records:
    """Return what stands before the cursors and has not been overwritten; nothing of it counts as lost."""
    count, pieces = layout.ring_records, [np.empty((0, wire.RECORD.itemsize), np.uint8)]
    for number, cursor in enumerate(cursors):
        ring = _Ring(file, layout, number)
        first = max(_first_untouched(ring, 0), 0)
        if first < cursor.following <= first + count:
            slots = ring.copy(first, cursor.following)
            safe = min(max(first, _first_untouched(ring, 0)), cursor.following)
            pieces.append(_select(slots[safe - first :], safe, count, cursor.following)[0])
    return sort_records(np.concatenate(pieces), layout, lost=0)


@dataclass(frozen=True)
class _Ring:
    file: ForeignFile
    layout: Layout
    number: int

    def head_again(self) -> int:
        rings = self.layout.rings
        raw = self.file.read_at(rings.offset + self.number * rings.stride, _HEAD_BYTES)
        return int(raw.view("<u8")[0])

    def copy(self, first: int, end: int) -> Slots:
        """Return the slots of these records, in at most two pieces."""
        count = self.layout.ring_records
        slot, length = first % count, end - first
        before_the_edge = min(length, count - slot)
        pieces = [(slot, before_the_edge), (0, length - before_the_edge)]
        start = self.number * count
        return np.concatenate([self._raw(start + place, some) for place, some in pieces])

    def _raw(self, first: int, count: int) -> Slots:
        records = self.layout.records
        return records.read(self.file, first, count).view(np.uint8).reshape(count, records.element.itemsize)


def _drain_ring(ring: _Ring, head: int, cursor: Cursor) -> _Drained:
    count = ring.layout.ring_records
    _check_head(ring, head)
    if head <= cursor.following:  # nothing new, or a head that went back, which only a forged one does
        return _Drained(ring.copy(0, 0), cursor, lost=int(head < cursor.following))
    first = max(cursor.following, head - count)
    slots = ring.copy(first, head)
    safe = min(max(first, _first_untouched(ring, head)), head)
    kept, passed = _select(slots[safe - first :], safe, count, cursor.waited)
    lost = safe - cursor.following + passed - len(kept)
    return _Drained(kept, Cursor(safe + passed, waited=head), lost)


def _check_head(ring: _Ring, head: int) -> None:
    """Refuse what would not fit into a stamp: no writer lives that long, and our sums stay small."""
    if head // ring.layout.ring_records + 1 >= wire.BUSY:
        raise ring.file.bad(f"says that ring {ring.number} has seen {head} records")


def _first_untouched(ring: _Ring, head: int) -> int:
    """Return the first record that the writer had not reached when the copy was complete."""
    return max(ring.head_again(), head) - ring.layout.ring_records + SLACK + 1


def _select(slots: Slots, first: int, count: int, waited: int) -> tuple[Slots, int]:
    """Return the whole records, and how many we are done with, whole or not.

    A record that was begun but is not there yet (another thread holds its slot in the shared ring) stops us once, so
    that it keeps its place in the order; if it is not there at the next look either, it counts as lost.
    """
    numbers = np.arange(first, first + len(slots))
    stamps = slots.view(wire.RECORD)["stamp"].reshape(-1).astype(np.int64)
    is_whole = stamps == numbers // count + 1
    is_late = ((stamps == wire.BUSY) | (stamps <= numbers // count)) & (numbers >= waited)
    passed = int(np.argmax(is_late)) if is_late.any() else len(slots)
    return slots[:passed][is_whole[:passed]], passed


def sort_records(slots: Slots, layout: Layout, lost: int) -> Records:
    """Return whole records by their kinds, with every number inside of what readers may use it for."""
    kinds = slots.view(wire.RECORD)["kind"].reshape(-1)
    whole = slots.reshape(-1).view(np.dtype((np.void, wire.RECORD.itemsize)))  # moved as they are, not byte by byte
    there = set(np.flatnonzero(np.bincount(kinds)).tolist())

    def of(kind: int, element: np.dtype[np.void]) -> Table:
        if kind not in there:
            return np.empty(0, element)
        return bound(whole[kinds == kind].view(element), layout)

    tables = {
        "enqueued": of(wire.KIND_ENQUEUED, wire.ENQUEUED),
        "transfers": of(wire.KIND_TRANSFER_CLOSED, wire.TRANSFER_CLOSED),
        "kernels": of(wire.KIND_KERNEL_CLOSED, wire.KERNEL_CLOSED),
        "steps": of(wire.KIND_STEP_CLOSED, wire.STEP_CLOSED),
        "callbacks": of(wire.KIND_CALLBACK, wire.CALLBACK),
    }
    unknown = len(slots) - sum(map(len, tables.values()))
    return Records(**tables, lost=lost + unknown, slots=slots)
