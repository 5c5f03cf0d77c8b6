"""What stands in a ring file that is not over: the tables that show a hang from outside, also of a dead process."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lockstep import wire
from lockstep.rings.bounds import bound, bound_transfers, has_place
from lockstep.rings.grouping import pick
from lockstep.rings.layout import Layout, Section
from lockstep.rings.opening import ForeignFile
from lockstep.wire import Table

_COMMS_AT_ONCE = 64

Wanted = Callable[[Table], NDArray[np.bool_]]

PLACED_COMM = np.dtype([*((name, wire.COMM[name]) for name in wire.COMM.names or ()), ("place", "<u4")])
PLACED_ROW = np.dtype([*((name, wire.ROW[name]) for name in wire.ROW.names or ()), ("place", "<u4")])


@dataclass(frozen=True)
class Live:
    """Rows in use, with their `place`; operations and transfers that have begun and not ended."""

    rows: Table  # PLACED_ROW
    operations: Table  # their `row` is the place of a row; wire.BUSY: they have none
    transfers: Table


class CommunicatorReader:
    """Reads the communicators of one file; as long as nothing changes the table is the same one."""

    def __init__(self, file: ForeignFile, layout: Layout) -> None:
        self._file, self._layout = file, layout
        self._looked = b""  # the places in use and some behind them, as they were before the table was read
        self._count = 0
        self._table: Table = np.empty(0, PLACED_COMM)

    def read(self) -> Table:
        """Return the communicators, as PLACED_COMM; those that change just now come the next time."""
        if self._count == 0 or self._look() != self._looked:
            used = _comms_in_use(self._file, self._layout)
            self._count = min(used + _COMMS_AT_ONCE, self._layout.comms.count)
            self._looked = self._look()
            section = replace(self._layout.comms, count=used)
            comms, places = _read_whole(self._file, section, "incarnation", lambda comms: comms["incarnation"] != 0)
            self._table = _with_place(comms, places, PLACED_COMM)
        return self._table

    def _look(self) -> bytes:
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
    places = np.flatnonzero(rows["key"])  # of thousands a few are in use: only those are looked at
    places = places[has_place(pick(rows, places), layout)]
    used = [replace(section, count=round(section.count * share)) for section in (layout.operations, layout.transfers)]
    operations, _ = _read_whole(file, used[0], "handle", lambda operations: _is_open(operations, rows))
    transfers = np.zeros(0, layout.transfers.element)
    if (operations["open"] > 0).any():  # the open ones of others are of no use here, and they are most of the file
        transfers, _ = _read_whole(file, used[1], "handle", lambda transfers: transfers["last_ticks"] == 0)
    limits = layout.comms.count, layout.rows.count
    return Live(
        rows=bound(_with_place(pick(rows, places), places, PLACED_ROW), *limits),
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
    places = np.flatnonzero((all_before[number] != 0) & is_wanted(all_before))
    if len(places) == 0:
        return np.zeros(0, section.element), places
    first, count = int(places[0]), int(places[-1] - places[0]) + 1
    table = pick(section.read(file, first, count), places - first)
    after = section.read(file, first, count)[number][places - first]
    is_whole = (table[number] == all_before[number][places]) & (table[number] == after) & is_wanted(table)
    return pick(table, is_whole), places[is_whole]


def _is_open(operations: Table, rows: Table) -> NDArray[np.bool_]:
    """Return which operations have parts under way, or none yet while their row is not that far.

    A row counts only what is numbered as other ranks number it, within one epoch; replays of CUDA graphs are not.
    """
    is_counted = (operations["row"] < len(rows)) & (operations["flags"] & wire.FLAG_SEQ_VALID != 0)
    row = np.where(is_counted, operations["row"], 0)
    is_ahead = is_counted & (rows["epoch"][row] == operations["epoch"]) & (rows["done"][row] <= operations["seq"])
    is_open: NDArray[np.bool_] = (operations["open"] > 0) | is_ahead
    return is_open


def _with_place(table: Table, places: NDArray[np.intp], element: np.dtype[np.void]) -> Table:
    placed = np.zeros(len(table), element)
    for name in table.dtype.names or ():
        placed[name] = table[name]
    placed["place"] = places
    return placed
