"""How far a process has come, from the tables that it keeps while things are open: what a hang looks like."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.rings.clock import HostClocks
from lockstep.rings.communicators import HostCommunicators
from lockstep.rings.grouping import pick, stack
from lockstep.rings.live import PLACED_ROW, Live
from lockstep.rings.operations import keys_of, names_of
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


class Shown(NamedTuple):
    """What the tables of several processes show, one process after the other, and whose each element is."""

    rows: Array
    row_of: Array  # number of the process in the list
    operations: Array
    operation_of: Array
    transfers: Array
    transfer_of: Array


def show(lives: Sequence[Live]) -> Shown:
    """Return the tables of several processes as one."""
    numbers = np.arange(len(lives))
    columns: list[Array] = []
    for kind, pieces in (
        (PLACED_ROW, [live.rows for live in lives]),
        (wire.OPERATION, [live.operations for live in lives]),
        (wire.TRANSFER, [live.transfers for live in lives]),
    ):
        columns += [stack(kind, pieces), np.repeat(numbers, [len(piece) for piece in pieces])]
    return Shown(*columns)


def progress_of(
    shown: Shown, clocks: HostClocks, comms: HostCommunicators, processes: Sequence[tuple[int, bool]], now_ns: int
) -> Array:
    """Return, per communicator, function and peer, what was enqueued, begun and done, and what holds it up.

    What holds an operation up is the transfer of its that has waited longest: the others wait because of it. Where
    nothing ever began and kernels are not heard of (all inside one host), nobody knows what is open. `processes` has
    the number of each one's origin, and whether it hears of kernels.
    """
    places, funcs, others = wire.row_place(shown.rows["key"])
    members, found = comms.latest(shown.row_of, places)
    rows, members, whose = pick(shown.rows, found), pick(members, found), shown.row_of[found]
    origins, hears_kernels = np.array(processes, np.int64).reshape(-1, 2).T
    told = np.zeros(len(rows), PROGRESS)
    for name in ("enqueued", "started", "done"):
        told[name] = rows[name]
    told["comm"], told["rank"], told["func"] = members["id"], members["rank"], funcs[found]
    told["peer"] = others[found].astype(np.uint32).view(np.int32)  # all ones: none, -1
    told["ts_ns"], told["origin"] = now_ns, origins[whose]
    is_told = (rows["started"] > 0) | (hears_kernels[whose] > 0)
    keys = _row_keys(whose, places[found], told["func"], told["peer"])
    oldest = _oldest_open(shown, keys, is_told)
    _add_open(told, shown, oldest, clocks)
    _add_head(told, shown, oldest, is_told)
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


def _row_keys(whose: Array, places: Array, funcs: Array, peers: Array) -> Array:
    """Return process, communicator, function and peer as one number."""
    process, place = whose.astype(np.uint64) << np.uint64(52), places.astype(np.uint64) << np.uint64(36)
    keys: Array = process | place | funcs.astype(np.uint64) << np.uint64(32) | peers.astype(np.uint32)
    return keys


def _oldest_open(shown: Shown, keys: Array, is_told: Array) -> Array:
    """Return for each row which of the open operations is its oldest, or _NONE."""
    operations = shown.operations
    if len(operations) == 0 or len(keys) == 0:
        return np.full(len(keys), _NONE)
    lines, line_of = np.unique(keys, return_inverse=True)
    theirs = _row_keys(shown.operation_of, operations["comm"], operations["func"], operations["peer"])
    line = np.minimum(np.searchsorted(lines, theirs), len(lines) - 1)
    is_told_line = np.zeros(len(lines), bool)
    is_told_line[line_of[is_told]] = True
    counts = (lines[line] == theirs) & (is_told_line[line] | (operations["open"] > 0))
    return _least(line, operations["enqueue_ticks"], counts, len(lines))[line_of]


def _head_transfers(shown: Shown) -> Array:
    """Return for each operation which of the open transfers known to wait for something has waited longest."""
    transfers, operations = shown.transfers, shown.operations
    waits = (transfers["flags"] & wire.FLAG_KERNEL) == 0
    waits &= (transfers["wait"] >> _SINCE_BITS) != wire.WAIT_UNKNOWN
    keys = keys_of(operations["handle"], shown.operation_of)
    order = np.argsort(keys, kind="stable")
    theirs = keys_of(transfers["operation"], shown.transfer_of)
    place = order[np.minimum(np.searchsorted(keys[order], theirs), len(order) - 1)]
    waits &= (operations["handle"][place] == transfers["operation"]) & (
        shown.operation_of[place] == shown.transfer_of
    )
    return _least(place, transfers["wait"] & np.uint64((1 << 56) - 1), waits, len(operations))


def _least(line: Array, values: Array, counts: Array, lines: int) -> Array:
    """Return for each line where its least value stands among those that count, or _NONE; of equals the first."""
    places = np.flatnonzero(counts)
    order = places[np.lexsort((values[places], line[places]))[::-1]]
    least = np.full(lines, _NONE)
    least[line[order]] = order  # the last one stays, which is the least
    return least


def _add_open(told: Array, shown: Shown, oldest: Array, clocks: HostClocks) -> None:
    chosen, told["is_idle"] = _chosen(shown.operations, oldest)
    told["open_bytes"], told["open_dtype"], told["open_algo"] = chosen["bytes"], chosen["dtype"], chosen["algo"]
    if len(shown.operations):
        counts = np.bincount(shown.operation_of, minlength=clocks.count).tolist()
        since = clocks.to_unix_ns(shown.operations["enqueue_ticks"], counts)
        told["oldest_open_ns"] = since[np.maximum(oldest, 0)]


def _add_head(told: Array, shown: Shown, oldest: Array, is_told: Array) -> None:
    is_idle = oldest == _NONE
    told["head_state"] = np.where(is_idle & is_told, _IDLE, wire.WAIT_UNKNOWN)
    if is_idle.all() or len(shown.transfers) == 0:
        return
    head = np.where(is_idle, _NONE, _head_transfers(shown)[np.maximum(oldest, 0)])
    chosen, is_unknown = _chosen(shown.transfers, head)
    told["has_head"], told["head_peer"], told["head_channel"] = ~is_unknown, chosen["peer"], chosen["channel"]
    told["head_state"] = np.where(is_unknown, told["head_state"], chosen["wait"] >> _SINCE_BITS)


def _chosen(candidates: Array, numbers: Array) -> tuple[Array, Array]:
    """Return what each number points to (zeros where it points nowhere), and where it points nowhere."""
    nowhere = numbers == _NONE
    chosen = np.zeros(len(numbers), candidates.dtype)
    if not nowhere.all():
        chosen[~nowhere] = pick(candidates, numbers[~nowhere])
    return chosen, nowhere


def _masked(values: pa.Array, mask: Array) -> pa.Array:
    return pc.if_else(pa.array(mask), None, values)
