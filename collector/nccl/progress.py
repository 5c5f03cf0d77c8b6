"""How far a process has come, from the tables that it keeps while things are open: what a hang looks like."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.nccl.arrays import Array, Groups, pick, stack
from collector.nccl.clock import HostClocks
from collector.nccl.communicators import HostCommunicators, Origins
from collector.nccl.operations import keys_of, names_of
from collector.nccl.ringfile import INDEXED_ROW, Live
from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME

_SINCE_BITS = np.uint64(56)
_NONE = -1  # no such operation or transfer


PROGRESS = np.dtype(
    [
        *(("comm", "u8"), ("enqueued", "u8"), ("started", "u8"), ("done", "u8"), ("ts_ns", "i8")),
        *(("open_bytes", "u8"), ("oldest_open_ns", "i8"), ("rank", "u4"), ("peer", "i4"), ("head_peer", "i4")),
        *(("origin", "u2"), ("head_channel", "u2"), ("func", "u1"), ("open_dtype", "u1"), ("open_algo", "u1")),
        *(("head_state", "u1"), ("is_idle", "?"), ("has_head", "?"), ("untimed", "?")),
    ],
    align=True,
)
_STATES = (*wire.WAITS, "idle", "kernel_wait", "kernel_begun")
_IDLE, _KERNEL_WAIT, _KERNEL_BEGUN = range(len(wire.WAITS), len(_STATES))


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
        (INDEXED_ROW, [live.rows for live in lives]),
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
    indices, funcs, others = wire.split_key(shown.rows["key"])
    members, found = comms.latest(shown.row_of, indices)
    rows, members, whose = pick(shown.rows, found), pick(members, found), shown.row_of[found]
    origins, reports_kernels = np.array(processes, np.int64).reshape(-1, 2).T
    progress = np.zeros(len(rows), PROGRESS)
    for name in ("enqueued", "started", "done"):
        progress[name] = rows[name]
    progress["comm"], progress["rank"], progress["func"] = members["id"], members["rank"], funcs[found]
    progress["peer"] = others[found].astype(np.uint32).view(np.int32)  # all ones: none, -1
    progress["ts_ns"], progress["origin"] = now_ns, origins[whose]
    is_known = (rows["started"] > 0) | (reports_kernels[whose] > 0)
    keys = _row_keys(whose, indices[found], progress["func"], progress["peer"])
    progress["untimed"] = np.isin(keys, _operation_keys(shown)[_is_untimed(shown.operations)])
    oldest = _oldest_open(shown, keys, is_known)
    _add_open(progress, shown, oldest, clocks)
    _add_head(progress, shown, oldest, is_known)
    return progress


def progress_rows(progress: Array, origins: Origins) -> pa.Table:
    """Return rows of what `progress_of` gave, of one process or of several."""
    idle, headless = progress["is_idle"], ~progress["has_head"]
    columns = origins.columns(progress["origin"]) | {"func": names_of(wire.FUNCS, progress["func"])}
    columns |= {
        name: progress[name] for name in ("comm", "rank", "peer", "ts_ns", "enqueued", "started", "done", "untimed")
    }
    columns |= {
        "open_bytes": pa.array(progress["open_bytes"], pa.uint64(), mask=idle),
        "open_dtype": _masked(names_of(wire.DTYPES, progress["open_dtype"]), idle),
        "open_algo": _masked(names_of(wire.ALGOS, progress["open_algo"]), idle),
        "oldest_open_ns": pa.array(progress["oldest_open_ns"], pa.int64(), mask=idle),
        "head_state": names_of(_STATES, progress["head_state"]),
        "head_peer": pa.array(progress["head_peer"], pa.int32(), mask=headless),
        "head_channel": pa.array(progress["head_channel"], pa.uint16(), mask=headless),
    }
    return fill_rows(TABLE_BY_NAME["progress"], len(progress), columns)


def _row_keys(whose: Array, indices: Array, funcs: Array, peers: Array) -> Array:
    """Return process, communicator, function and peer as one number."""
    process, index = whose.astype(np.uint64) << np.uint64(52), indices.astype(np.uint64) << np.uint64(36)
    keys: Array = process | index | funcs.astype(np.uint64) << np.uint64(32) | peers.astype(np.uint32)
    return keys


def _operation_keys(shown: Shown) -> Array:
    operations = shown.operations
    return _row_keys(shown.operation_of, operations["comm"], operations["func"], operations["peer"])


def _is_untimed(operations: Array) -> Array:
    """Return which of those that their row is not past may have begun and ended without anybody seeing it."""
    untimed: Array = ((operations["flags"] & wire.FLAG_UNTIMED) != 0) & (operations["open"] == 0)
    return untimed


def _oldest_open(shown: Shown, keys: Array, is_known: Array) -> Array:
    """Return for each row which of the open operations is its oldest, or _NONE."""
    operations = shown.operations
    if len(operations) == 0 or len(keys) == 0:
        return np.full(len(keys), _NONE)
    lines, line_of = np.unique(keys, return_inverse=True)
    theirs = _operation_keys(shown)
    line = np.minimum(np.searchsorted(lines, theirs), len(lines) - 1)
    is_known_line = np.zeros(len(lines), bool)
    is_known_line[line_of[is_known]] = True
    counts = (lines[line] == theirs) & (is_known_line[line] | (operations["open"] > 0)) & ~_is_untimed(operations)
    return _least(line, operations["enqueue_ticks"], counts, len(lines))[line_of]


def _head_transfers(shown: Shown) -> Array:
    """Return for each operation which of the open transfers known to wait for something has waited longest."""
    transfers, operations = shown.transfers, shown.operations
    waits = (transfers["flags"] & wire.FLAG_KERNEL) == 0
    waits &= (transfers["wait"] >> _SINCE_BITS) != wire.WAIT_UNKNOWN
    keys = keys_of(operations["handle"], shown.operation_of)
    order = np.argsort(keys, kind="stable")
    theirs = keys_of(transfers["operation"], shown.transfer_of)
    index = order[np.minimum(np.searchsorted(keys[order], theirs), len(order) - 1)]
    waits &= operations["handle"][index] == transfers["operation"]
    waits &= shown.operation_of[index] == shown.transfer_of
    return _least(index, transfers["wait"] & np.uint64((1 << 56) - 1), waits, len(operations))


def _least(line: Array, values: Array, counts: Array, lines: int) -> Array:
    """Return for each line where its least value stands among those that count, or _NONE; of equals the first."""
    indices = np.flatnonzero(counts)
    order = indices[np.lexsort((values[indices], line[indices]))[::-1]]
    least = np.full(lines, _NONE)
    least[line[order]] = order  # the last one stays, which is the least
    return least


def _add_open(progress: Array, shown: Shown, oldest: Array, clocks: HostClocks) -> None:
    chosen, progress["is_idle"] = _chosen(shown.operations, oldest)
    for name in ("bytes", "dtype", "algo"):
        progress[f"open_{name}"] = chosen[name]
    if len(shown.operations):
        counts = np.bincount(shown.operation_of, minlength=clocks.count).tolist()
        since = clocks.to_unix_ns(shown.operations["enqueue_ticks"], counts)
        progress["oldest_open_ns"] = since[np.maximum(oldest, 0)]


def _add_head(progress: Array, shown: Shown, oldest: Array, is_known: Array) -> None:
    is_idle = oldest == _NONE
    flags = _chosen(shown.operations, oldest)[0]["flags"]
    awaits, has_begun = (flags & wire.FLAG_AWAITS_KERNEL) != 0, (flags & wire.FLAG_KERNEL) != 0
    progress["head_state"] = np.select(
        [is_idle & is_known, awaits, has_begun], [_IDLE, _KERNEL_WAIT, _KERNEL_BEGUN], wire.WAIT_UNKNOWN
    )
    if is_idle.all() or len(shown.transfers) == 0:
        return
    head = np.where(is_idle, _NONE, _head_transfers(shown)[np.maximum(oldest, 0)])
    chosen, is_unknown = _chosen(shown.transfers, head)
    progress["has_head"] = ~is_unknown
    progress["head_peer"], progress["head_channel"] = chosen["peer"], chosen["channel"]
    waits = chosen["wait"] >> _SINCE_BITS
    # Of a GPU that has not begun the kernel that is said; one that has may wait inside it for other ranks.
    is_told_by_kernel = is_unknown | (awaits & (waits == wire.WAIT_GPU))
    progress["head_state"] = np.where(is_told_by_kernel, progress["head_state"], waits)


def _chosen(candidates: Array, numbers: Array) -> tuple[Array, Array]:
    """Return what each number points to (zeros where it points nowhere), and where it points nowhere."""
    nowhere = numbers == _NONE
    chosen = np.zeros(len(numbers), candidates.dtype)
    if not nowhere.all():
        chosen[~nowhere] = pick(candidates, numbers[~nowhere])
    return chosen, nowhere


def _masked(values: pa.Array, mask: Array) -> pa.Array:
    return pc.if_else(pa.array(mask), None, values)


PATIENCE = 8  # times the usual: the slowest of thousands of healthy operations are some times slower than most
FLOOR_NS = NS_PER_S
URGENT_NS = 10 * NS_PER_S  # what has hung for longer shows nothing new ten times a second
_WEIGHT = 0.2  # of a second's operations in what is usual: some ten seconds are remembered
_MOST_ROWS = 8_192  # as many as a ring file has

Row = tuple[int, int, int]  # place of the communicator, function, peer


@dataclass(frozen=True)
class Overdue:
    """What is overdue now, and whether that is news."""

    rows: frozenset[Row] = frozenset()
    is_urgent: bool = False


def is_overdue(open_ns: int, usual_ns: float | None) -> bool:
    """Return whether an operation that has been open for so long is late; unknown is judged by the floor alone.

    >>> is_overdue(2 * NS_PER_S, 1_000.0), is_overdue(2 * NS_PER_S, 0.5 * NS_PER_S)
    (True, False)
    """
    return open_ns > max(FLOOR_NS, PATIENCE * (usual_ns or 0.0))


def mean_times(written: Array) -> dict[int, list[tuple[Row, float]]]:
    """Return how long operations that are over lasted, by the number of their process's origin."""
    progress: dict[int, list[tuple[Row, float]]] = {}
    written = pick(written, (written["flags"] & wire.FLAG_UNTIMED) == 0)
    if len(written):
        groups = Groups(written["index"], written["func"], written["peer"], written["origin"])
        lasted = np.maximum(written["active_ns"] - written["enqueue_ns"], 0)
        means = (groups.sum(lasted) / groups.count()).tolist()
        one = pick(written, groups.firsts)
        columns = (one[name].tolist() for name in ("origin", "index", "func", "peer"))
        for origin, index, func, peer, mean_ns in zip(*columns, means, strict=True):
            progress.setdefault(origin, []).append(((index, func, peer), mean_ns))
    return progress


class UsualTimes:
    """How long the operations of one process usually are open, by row of its live table."""

    def __init__(self) -> None:
        self._usual_ns: dict[Row, float] = {}
        self._since_ns: dict[Row, int] = {}  # of rows that are overdue

    def learn(self, means: Iterable[tuple[Row, float]]) -> None:
        """Take in how long operations that are over lasted."""
        for row, mean_ns in means:
            before = self._usual_ns.get(row)
            if before is not None or len(self._usual_ns) < _MOST_ROWS:
                self._usual_ns[row] = mean_ns if before is None else before + _WEIGHT * (mean_ns - before)

    def judge(self, operations: Array, enqueue_ns: Array, now_ns: int) -> Overdue:
        """Return what is overdue among the operations that are open, with the times at which they were enqueued."""
        oldest: dict[Row, int] = {}
        is_begun = operations["open"] > 0
        columns = (operations["comm"], operations["func"], operations["peer"], enqueue_ns)
        for index, func, peer, since in zip(*(column[is_begun].tolist() for column in columns), strict=True):
            if index != wire.NO_COMM:
                oldest[index, func, peer] = min(since, oldest.get((index, func, peer), since))
        late = frozenset(row for row, since in oldest.items() if is_overdue(now_ns - since, self._usual_ns.get(row)))
        self._since_ns = {row: self._since_ns.get(row, now_ns) for row in late}
        return Overdue(late, any(now_ns - since < URGENT_NS for since in self._since_ns.values()))
