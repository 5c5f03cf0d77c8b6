"""How much longer each rank took for itself than ranks that do the same work, operation by operation.

Before an operation a rank computes, loads data or does nothing: the gap since its operation before. It is measured
on one clock and holds no waiting for others, so a rank that is late only because another was has a usual gap. What
it is held against is the (lower) median gap before the same operation on ranks of the same role.

A straggler is waited for: it spends the least time in the operation. Its waits are how much less than the (upper)
median of those in the same operation; between sender and receiver, less than the other one.

Both are summed in stretches of time, so that what lasts can be told from what happened once.

What is summed is rounded to whole nanoseconds first, so that the sums do not depend on the order of rows, nor on what
computes them.

Cost: O(rows log rows).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analyzer.straggler.kernels import Kernels, NumpyKernels, mix
from analyzer.straggler.roles import Roles, find_roles

if TYPE_CHECKING:  # only their shape matters here: no store is needed to measure
    from analyzer.straggler.operations import Operations

_MOST_STRETCHES = 8
FEWEST_STRETCHES = 3  # of fewer, leaving one out leaves no second one to agree with the first
_APART_US = 10**6  # no clock that is looked after is wrong by as much: such operations do not belong together
_MOST_APART_US = 10**9  # a clock that is years off says no more than one that is off by a quarter of an hour
_PARTS = 2.0**20  # of the time looked at, in which excesses are counted that get squared: whole numbers stay exact


@dataclass(frozen=True)
class Excess:
    """What each process took beyond its peers, as shares of the time looked at; negative where it took less."""

    processes: np.ndarray  # numbers of those that could be compared
    peers: np.ndarray  # with how many others each of them was compared, mostly: at edges of a window some are missing
    own: np.ndarray  # rows: processes, columns: stretches; own time beyond that of its peers
    gpu: np.ndarray  # the part of it in which the operation was enqueued already
    knows_gpu: np.ndarray  # of each process, whether that part is known
    waits: np.ndarray  # the part of it for which others waited in the same stretch
    spread_over: np.ndarray  # over how many operations the excess of each is spread
    operations: np.ndarray  # of each process that were compared
    worst_ns: np.ndarray  # the largest excess before one operation, of each process
    worst_gpu_ns: np.ndarray  # the part of it in which that operation was enqueued already
    worst_at_ns: np.ndarray  # when that was
    begin_ns: np.ndarray  # of each stretch
    span_ns: float  # the time looked at
    newest: np.ndarray  # the own share of each process in operations that the evaluation before had not seen
    newest_part: np.ndarray  # of its operations that were compared, those

    @property
    def kept_up(self) -> np.ndarray:
        """Return in which share of the stretches each process was late since it was first: 1 is always."""
        share: np.ndarray = self._is_late.mean(axis=1) / self.since_share
        return share

    @property
    def since_share(self) -> np.ndarray:
        """Return the share of the stretches from the first one on in which each process was late."""
        share: np.ndarray = 1 - self._is_late.argmax(axis=1) / self.own.shape[1]
        return share

    @property
    def _is_late(self) -> np.ndarray:
        late: np.ndarray = self.own >= np.maximum(self.lasting, 1e-9)[:, None] / 2 / self.own.shape[1]
        return late

    @property
    def lasting(self) -> np.ndarray:
        """Return the own share of each process over all stretches but its worst one: a pause is no fault."""
        return without_worst(self.own)

    @property
    def is_late_still(self) -> np.ndarray:
        """Say of each process whether what is new shows it late as well, by half as much as all of it at least."""
        late: np.ndarray = (self.newest_part > 0) & (self.newest >= self.newest_part * self.lasting / 2)
        return late


def without_worst(shares: np.ndarray) -> np.ndarray:
    """Return sums over stretches, each without its largest, scaled to all of them.

    >>> without_worst(np.array([[0.1, 0.1, 0.1], [0.0, 0.9, 0.0]])).round(3).tolist()
    [0.3, 0.0]
    """
    count = shares.shape[1]
    if count < FEWEST_STRETCHES:
        return np.zeros(len(shares))
    rest: np.ndarray = (shares.sum(axis=1) - shares.max(axis=1)) * count / (count - 1)
    return rest


def measure_excess(
    rows: "Operations",
    are_sums: bool,
    processes: int,
    period_ns: int | None,
    kernels: Kernels | None = None,
    fresh_ns: int = 0,
) -> Excess | None:
    """Return how much longer each process took, or None where nobody can be compared; what ended later is new."""
    kernels = kernels or NumpyKernels()
    fine = (rows.process >= 0) & np.isfinite(rows.gap_ns) & np.isfinite(rows.dur_ns)
    rows = rows if fine.all() else rows.take(fine)
    if len(rows) == 0:
        return None
    roles = find_roles(rows.process, rows.comm, rows.rank, rows.peer, rows.sends, processes)
    waits = None if are_sums else _waits(rows, kernels)
    rest_ns = rows.gap_ns if are_sums else 0.0  # of a second, in sums
    later_ns = (rows.start_ns - fresh_ns) + rows.dur_ns + rest_ns
    among_peers = _is_among_peers(rows, roles, kernels)
    cells = _compare(rows, waits, _same_operation(rows, roles, kernels), among_peers, later_ns > 0, kernels)
    if len(cells.process) == 0:
        return None
    # In sums own time is what was not waited: both are the same. Where nobody knows, what it was late stands for it.
    is_known = np.isfinite(cells.waits) & (not are_sums)
    waited = np.where(is_known, cells.waits, np.maximum(cells.own, 0.0))
    if roles.is_chain.any():  # a stage is late for the next one, and hands on what the stage before was late for
        waited = np.where(cells.is_among_peers, waited, np.minimum(waited, np.maximum(cells.own, 0.0)))
    return _collect(cells, waited, _span(rows, processes, kernels), period_ns, kernels)


@dataclass(frozen=True)
class _Cells:
    """One entry per process and operation that others of its role did too."""

    process: np.ndarray
    others: np.ndarray
    own: np.ndarray
    gpu: np.ndarray
    waits: np.ndarray
    is_among_peers: np.ndarray  # whether only ranks of its role wait for it there
    is_new: np.ndarray
    operation: np.ndarray  # number of the operation
    timestamps_ns: np.ndarray  # of each operation, when the first of those began it who are in a cell


def _waits(rows: "Operations", kernels: Kernels) -> np.ndarray:
    """Return by how much each row's rank was in its operation for less time than others; NaN without others."""
    pairwise, sends = rows.peer >= 0, rows.sends
    source = np.where(pairwise, np.where(sends, rows.rank, rows.peer), -1)
    target = np.where(pairwise, np.where(sends, rows.peer, rows.rank), -1)
    kind = np.where(pairwise, np.uint64(0), rows.func)
    group, groups = kernels.number(rows.comm, kind, source, target, rows.seq, rows.replay)
    usual = kernels.median_by(rows.dur_ns, group, groups, upper=True)
    usual = np.where(np.bincount(group, minlength=groups) > 1, usual, np.nan)
    less: np.ndarray = np.maximum(usual[group] - rows.dur_ns, 0.0)  # NaN stays
    return less


def _is_among_peers(rows: "Operations", roles: Roles, kernels: Kernels) -> np.ndarray:
    """Say of each row whether it is a collective of ranks that all do the same work."""
    (index, comms), role = kernels.number(rows.comm), roles.role_of[rows.process]
    one = np.zeros(comms, role.dtype)
    one[index] = role
    others = np.bincount(index[role != one[index]], minlength=comms)
    among: np.ndarray = (rows.peer < 0) & (others == 0)[index]
    return among


def _same_operation(rows: "Operations", roles: Roles, kernels: Kernels) -> tuple[np.ndarray, int]:
    """Return a number per row, the same for operations of one kind and number on ranks of one role, and how many."""
    pairwise = rows.peer >= 0
    # In a pipeline it matters to whom; in a ring or an exchange all that a rank does at once is one thing to do.
    direction = np.where(roles.is_chain, mix(rows.func, rows.peer - rows.rank), np.uint64(0))
    kind = np.where(pairwise, direction, mix(rows.func + np.uint64(1), rows.size))
    group, groups = kernels.number(roles.family_of, roles.role_of[rows.process], kind, rows.seq, rows.replay)
    apart = _counts_apart(rows, group, groups, kernels)
    return kernels.number(group, np.where(apart, rows.comm, np.uint64(0))) if apart.any() else (group, groups)


def _counts_apart(rows: "Operations", group: np.ndarray, groups: int, kernels: Kernels) -> np.ndarray:
    """Say of each row whether its communicator counts differently: its operations of one number are elsewhere."""
    timestamps = kernels.median_by(rows.start_ns, group, groups)
    index, indexes = kernels.number(rows.comm)
    off_us = np.minimum(np.abs(rows.start_ns - timestamps[group]) // 1_000, _MOST_APART_US)
    apart = kernels.sum_by(off_us, index, indexes) > _APART_US * np.bincount(index, minlength=indexes)
    of_row: np.ndarray = apart[index]
    return of_row


def _compare(
    rows: "Operations",
    waits: np.ndarray | None,
    operations: tuple[np.ndarray, int],
    among_peers: np.ndarray,
    is_new: np.ndarray,
    kernels: Kernels,
) -> _Cells:
    """Return each process's gap before an operation against the lower median of all that did the same."""
    of, count = operations
    cell, cells = kernels.number(of, rows.process)
    chosen = _longest(rows.gap_ns, cell, cells, kernels)  # the longest gap stands for all begun at once
    group, process = of[chosen], rows.process[chosen]
    others = np.bincount(group, minlength=count)[group] - 1
    gap, gpu = rows.gap_ns[chosen], rows.gpu_ns[chosen]
    kept = others > 0
    return _Cells(
        process=process[kept],
        others=others[kept],
        own=(gap - kernels.median_by(gap, group, count)[group])[kept],
        gpu=(gpu - kernels.median_by(gpu, group, count)[group])[kept],
        waits=_longest_wait(waits, cell, cells, kernels)[cell[chosen]][kept],
        is_among_peers=among_peers[chosen][kept],
        is_new=is_new[chosen][kept],
        operation=group[kept],
        timestamps_ns=kernels.min_by(rows.start_ns[chosen], group, count, np.iinfo(np.int64).max),
    )


def _longest(values: np.ndarray, cell: np.ndarray, cells: int, kernels: Kernels) -> np.ndarray:
    """Return the row with the largest value of each cell, the first of equal ones."""
    if cells == len(cell):
        return np.arange(cells)
    largest = kernels.max_by(values, cell, cells, -np.inf)
    rows = np.flatnonzero(values == largest[cell])
    return kernels.min_by(rows, cell[rows], cells, len(cell))


def _longest_wait(waits: np.ndarray | None, cell: np.ndarray, cells: int, kernels: Kernels) -> np.ndarray:
    """Return the longest known wait of each cell, NaN where none is known."""
    if waits is None:
        return np.full(cells, np.nan)
    longest = kernels.max_by(np.nan_to_num(waits, nan=-1.0), cell, cells, -1.0)
    return np.where(longest < 0, np.nan, longest)


def _collect(cells: _Cells, waited: np.ndarray, span_ns: float, period_ns: int | None, kernels: Kernels) -> Excess:
    is_there = np.bincount(cells.process) > 0
    processes, row = np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[cells.process]
    stretches, begin_ns = _stretches(cells, span_ns, period_ns)
    count, shape = len(processes), (len(processes), len(begin_ns))

    def table(values: np.ndarray) -> np.ndarray:
        whole = np.rint(np.nan_to_num(values, nan=0.0))
        return kernels.sum_by(whole, row * shape[1] + stretches, shape[0] * shape[1]).reshape(shape) / span_ns

    own = table(cells.own)
    longer = np.rint(np.clip(cells.own / span_ns, 0.0, 1.0) * _PARTS)
    sums, squares = (kernels.sum_by(weights, row, count) for weights in (longer, longer**2))
    compared = np.bincount(row, minlength=count)
    worst, new = _longest(cells.own, row, count, kernels), cells.is_new
    return Excess(
        processes=processes,
        peers=np.rint(kernels.sum_by(cells.others, row, count) / compared),
        own=own,
        gpu=table(cells.gpu),
        knows_gpu=np.bincount(row[np.isfinite(cells.gpu)], minlength=count) > 0,
        # Others wait for what it was late, not for more, and often some operations later: those of a host are late
        # together for what they do among themselves, and all others wait in the next that they share.
        waits=np.minimum(np.maximum(own, 0.0), table(waited)),
        spread_over=np.divide(sums**2, squares, out=np.zeros(count), where=squares > 0),
        operations=compared,
        worst_ns=cells.own[worst],
        worst_gpu_ns=cells.gpu[worst],
        worst_at_ns=cells.timestamps_ns[cells.operation[worst]],
        begin_ns=begin_ns,
        span_ns=span_ns,
        newest=kernels.sum_by(np.rint(np.where(new, cells.own, 0.0)), row, count) / span_ns,
        newest_part=np.bincount(row[new], minlength=count) / compared,
    )


def _stretches(cells: _Cells, span_ns: float, period_ns: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the stretch of each cell and when stretches begin: about a step each, where steps are known."""
    wanted = int(span_ns / period_ns) if period_ns else FEWEST_STRETCHES
    timestamps = np.unique(cells.timestamps_ns[np.bincount(cells.operation, minlength=len(cells.timestamps_ns)) > 0])
    first, last = int(timestamps[0]), int(timestamps[-1])
    count = min(int(np.clip(wanted, FEWEST_STRETCHES, _MOST_STRETCHES)), len(timestamps))
    if count < FEWEST_STRETCHES:
        return np.zeros(len(cells.operation), np.int64), np.array([first])
    length = (last - first) / count
    numbers = np.minimum((cells.timestamps_ns - first) / max(length, 1.0), count - 1).astype(np.int64)
    return numbers[cells.operation], first + (np.arange(count) * length).astype(np.int64)


def _span(rows: "Operations", processes: int, kernels: Kernels) -> float:
    """Return how much time the rows of a process cover, in the median of all, each on its own clock."""
    begun, ended = rows.start_ns - np.maximum(rows.gap_ns, 0.0), rows.start_ns + rows.dur_ns
    first = kernels.min_by(begun, rows.process, processes, np.inf)
    last = kernels.max_by(ended, rows.process, processes, -np.inf)
    covered = (last - first)[np.isfinite(first)]
    return max(float(np.median(covered)), 1.0)


_MAD_TO_SIGMA = 1.4826  # for normally distributed values


def spread_of(values: np.ndarray) -> float:
    """Return the standard deviation that the middle of the values suggests.

    >>> round(spread_of(np.array([1.0, 2.0, 3.0, 4.0, 900.0])), 2)
    1.48
    """
    return _MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))
