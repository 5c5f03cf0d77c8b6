"""Brings every number of a forged or newer file inside of what readers may use it for.

A code that we do not know becomes 0 (unknown), a communicator or a row that the file has no place for becomes none,
and what is counted in 64 bits fits into a signed number afterwards.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep import wire
from lockstep.rings.layout import Layout
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


def has_place(rows: Table, layout: Layout) -> NDArray[np.bool_]:
    """Return which rows are in use and speak of a communicator and a function that can exist."""
    comm, func, _ = wire.row_place(rows["key"])
    found: NDArray[np.bool_] = (rows["key"] != 0) & (comm < layout.comms.count) & (func < len(wire.FUNCS))
    return found
