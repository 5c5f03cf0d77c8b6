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
from lockstep.rings.live import Live
from lockstep.rings.operations import names_of
from lockstep.rings.origin import Origin
from lockstep.tables import TABLE_BY_NAME

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

_SINCE_BITS = np.uint64(56)
_NONE = -1  # no such operation or transfer


def progress_rows(
    live: Live, clock: TickClock, history: CommunicatorHistory, now_ns: int, origin: Origin, hears_kernels: bool
) -> pa.Table:
    """Return a row per communicator, function and peer: what was enqueued, begun and done, and what holds it up.

    What holds an operation up is the transfer of its that has waited longest: the others wait because of it. Where
    nothing ever began and kernels are not heard of (all inside one host), nobody knows what is open.
    """
    places, funcs, others = wire.row_place(live.rows["key"])
    members, found = history.latest(places)
    rows, members, places, funcs = live.rows[found], members[found], places[found], funcs[found]
    peers = others[found].astype(np.uint32).view(np.int32)  # all ones: none, -1
    is_told = (rows["started"] > 0) | hears_kernels
    oldest = _oldest_open(live.operations, places, funcs, peers, is_told)
    columns: dict[str, object] = {name: rows[name] for name in ("enqueued", "started", "done")}
    columns |= {"comm": members["id"], "rank": members["rank"], "func": names_of(wire.FUNCS, funcs), "peer": peers}
    columns |= _open_columns(live.operations, oldest, clock) | _head_columns(live, oldest, is_told)
    return fill_rows(TABLE_BY_NAME["progress"], len(rows), columns | {"ts_ns": now_ns} | origin.columns())


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


def _open_columns(operations: Array, oldest: Array, clock: TickClock) -> dict[str, object]:
    chosen, idle = _chosen(operations, oldest)
    return {
        "open_bytes": pa.array(chosen["bytes"], pa.uint64(), mask=idle),
        "open_dtype": _masked(names_of(wire.DTYPES, chosen["dtype"]), idle),
        "open_algo": _masked(names_of(wire.ALGOS, chosen["algo"]), idle),
        "oldest_open_ns": pa.array(clock.to_unix_ns(chosen["enqueue_ticks"]), pa.int64(), mask=idle),
    }


def _head_columns(live: Live, oldest: Array, is_told: Array) -> dict[str, object]:
    waiting, head_of = _head_transfers(live)
    is_idle = oldest == _NONE
    head = np.full(len(oldest), _NONE)
    head[~is_idle] = head_of[oldest[~is_idle]]
    chosen, is_unknown = _chosen(waiting, head)
    states = np.array(wire.WAITS)[(chosen["wait"] >> _SINCE_BITS).astype(np.intp)]
    return {
        "head_state": pa.array(np.select([is_idle & is_told, is_unknown], ["idle", "unknown"], states), pa.string()),
        "head_peer": pa.array(chosen["peer"], pa.int32(), mask=is_unknown),
        "head_channel": pa.array(chosen["channel"].astype(np.uint16), pa.uint16(), mask=is_unknown),
    }


def _chosen(candidates: Array, numbers: Array) -> tuple[Array, Array]:
    """Return what each number points to (zeros where it points nowhere), and where it points nowhere."""
    nowhere = numbers == _NONE
    chosen = np.zeros(len(numbers), candidates.dtype)
    chosen[~nowhere] = candidates[numbers[~nowhere]]
    return chosen, nowhere


def _masked(values: pa.Array, mask: Array) -> pa.Array:
    return pc.if_else(pa.array(mask), None, values)
