"""How far a process has come, from the tables that it keeps while things are open: what a hang looks like."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.rings.clock import TickClock
from lockstep.rings.communicators import CommunicatorHistory
from lockstep.rings.grouping import pick
from lockstep.rings.live import Live
from lockstep.rings.operations import names_of
from lockstep.rings.origin import Origins
from lockstep.tables import TABLE_BY_NAME

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

_SINCE_BITS = np.uint64(56)
_NONE = -1  # no such operation or transfer


PROGRESS = np.dtype(
    [
        *(("comm", "u8"), ("enqueued", "u8"), ("started", "u8"), ("done", "u8"), ("ts_ns", "i8")),
        *(("open_bytes", "u8"), ("oldest_open_ns", "i8"), ("rank", "u4"), ("peer", "i4"), ("head_peer", "i4")),
        *(("origin", "u2"), ("head_channel", "u2"), ("func", "u1"), ("open_dtype", "u1"), ("open_algo", "u1")),
        *(("head_state", "u1"), ("is_idle", "?"), ("has_head", "?")),
    ],
    align=True,
)
_STATES = (*wire.WAITS, "idle")
_IDLE = len(wire.WAITS)


def progress_of(
    live: Live, clock: TickClock, history: CommunicatorHistory, hears_kernels: bool, stamp: tuple[int, int]
) -> Array:
    """Return, per communicator, function and peer, what was enqueued, begun and done, and what holds it up.

    What holds an operation up is the transfer of its that has waited longest: the others wait because of it. Where
    nothing ever began and kernels are not heard of (all inside one host), nobody knows what is open. `stamp` is the
    time, and the number of the process's origin.
    """
    places, funcs, others = wire.row_place(live.rows["key"])
    members, found = history.latest(places)
    rows, members, places, funcs = pick(live.rows, found), pick(members, found), places[found], funcs[found]
    told = np.zeros(len(rows), PROGRESS)
    for name in ("enqueued", "started", "done"):
        told[name] = rows[name]
    told["comm"], told["rank"], told["func"] = members["id"], members["rank"], funcs
    told["peer"] = others[found].astype(np.uint32).view(np.int32)  # all ones: none, -1
    told["ts_ns"], told["origin"] = stamp
    is_told = (rows["started"] > 0) | hears_kernels
    oldest = _oldest_open(live.operations, places, funcs, told["peer"], is_told)
    _add_open(told, live.operations, oldest, clock)
    _add_head(told, live, oldest, is_told)
    return told


def progress_rows(told: Array, origins: Origins) -> pa.Table:
    """Return rows of what `progress_of` gave, of one process or of several."""
    idle, headless = told["is_idle"], ~told["has_head"]
    columns = origins.columns(told["origin"]) | {"func": names_of(wire.FUNCS, told["func"])}
    columns |= {name: told[name] for name in ("comm", "rank", "peer", "ts_ns", "enqueued", "started", "done")}
    columns |= {
        "open_bytes": pa.array(told["open_bytes"], pa.uint64(), mask=idle),
        "open_dtype": _masked(names_of(wire.DTYPES, told["open_dtype"]), idle),
        "open_algo": _masked(names_of(wire.ALGOS, told["open_algo"]), idle),
        "oldest_open_ns": pa.array(told["oldest_open_ns"], pa.int64(), mask=idle),
        "head_state": names_of(_STATES, told["head_state"]),
        "head_peer": pa.array(told["head_peer"], pa.int32(), mask=headless),
        "head_channel": pa.array(told["head_channel"], pa.uint16(), mask=headless),
    }
    return fill_rows(TABLE_BY_NAME["progress"], len(told), columns)


def _oldest_open(operations: Array, places: Array, funcs: Array, peers: Array, is_told: Array) -> Array:
    """Return for each row which of the open operations is its oldest, or _NONE.

    Cost: rows times open operations, both a few dozen where anything hangs.
    """
    same = (operations["comm"][None, :] == places[:, None]) & (operations["func"][None, :] == funcs[:, None])
    same &= operations["peer"][None, :] == peers[:, None]
    same &= is_told[:, None] | (operations["open"] > 0)[None, :]
    return _argmin(np.where(same, operations["enqueue_ticks"][None, :], np.iinfo(np.uint64).max), same)


def _head_transfers(live: Live) -> tuple[Array, Array]:
    """Return the open transfers that are known to wait for something, and for each operation its longest wait."""
    waiting = live.transfers[(live.transfers["flags"] & wire.FLAG_KERNEL) == 0]
    waiting = waiting[(waiting["wait"] >> _SINCE_BITS) != wire.WAIT_UNKNOWN]
    same = waiting["operation"][None, :] == live.operations["handle"][:, None]
    since = np.where(same, waiting["wait"][None, :] & np.uint64((1 << 56) - 1), np.iinfo(np.uint64).max)
    return waiting, _argmin(since, same)


def _argmin(values: Array, allowed: Array) -> Array:
    if values.shape[1] == 0:
        return np.full(len(values), _NONE)
    return np.where(allowed.any(axis=1), values.argmin(axis=1), _NONE)


def _add_open(told: Array, operations: Array, oldest: Array, clock: TickClock) -> None:
    chosen, told["is_idle"] = _chosen(operations, oldest)
    told["open_bytes"], told["open_dtype"], told["open_algo"] = chosen["bytes"], chosen["dtype"], chosen["algo"]
    told["oldest_open_ns"] = clock.to_unix_ns(chosen["enqueue_ticks"])


def _add_head(told: Array, live: Live, oldest: Array, is_told: Array) -> None:
    is_idle = oldest == _NONE
    told["head_state"] = np.where(is_idle & is_told, _IDLE, wire.WAIT_UNKNOWN)
    if is_idle.all():
        return
    waiting, head_of = _head_transfers(live)
    head = np.full(len(oldest), _NONE)
    head[~is_idle] = head_of[oldest[~is_idle]]
    chosen, is_unknown = _chosen(waiting, head)
    told["has_head"], told["head_peer"], told["head_channel"] = ~is_unknown, chosen["peer"], chosen["channel"]
    told["head_state"] = np.where(is_unknown, told["head_state"], chosen["wait"] >> _SINCE_BITS)


def _chosen(candidates: Array, numbers: Array) -> tuple[Array, Array]:
    """Return what each number points to (zeros where it points nowhere), and where it points nowhere."""
    nowhere = numbers == _NONE
    chosen = np.zeros(len(numbers), candidates.dtype)
    chosen[~nowhere] = candidates[numbers[~nowhere]]
    return chosen, nowhere


def _masked(values: pa.Array, mask: Array) -> pa.Array:
    return pc.if_else(pa.array(mask), None, values)
