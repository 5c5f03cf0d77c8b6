"""How much longer each rank took for itself than ranks that do the same work, operation by operation.

Before an operation a rank computes, loads data or does nothing: the gap since its operation before. It is measured
on one clock and holds no waiting for others, so a rank that is late only because another was has a usual gap. What
it is held against is the (lower) median gap before the same operation on ranks of the same role.

A late rank is waited for: it spends the least time in the operation. Its waits are how much less than the (upper)
median of those in the same operation; between sender and receiver, less than the other one.

Both are summed in stretches of time, so that what lasts can be told from what happened once.

Cost: O(rows log rows).
"""

from dataclasses import dataclass

import numpy as np

from analyzer.lateness.reading import Operations
from analyzer.roles import Roles, find_roles, mix

_MOST_STRETCHES = 8
_FEWEST_STRETCHES = 3  # of fewer, leaving one out leaves no second one to agree with the first
_APART_NS = 10**9  # no clock that is looked after is wrong by as much: such operations do not belong together


@dataclass(frozen=True)
class Excess:
    """What each process took beyond its peers, as shares of the time looked at; negative where it took less."""

    processes: np.ndarray  # numbers of those that could be compared
    peers: np.ndarray  # with how many others each of them was compared, in the mean
    own: np.ndarray  # rows: processes, columns: stretches; own time beyond that of its peers
    gpu: np.ndarray  # the part of it in which the operation was enqueued already
    knows_gpu: np.ndarray  # of each process, whether that part is known
    waits: np.ndarray  # the part of it for which others waited in the same operation
    spread_over: np.ndarray  # over how many operations the excess of each is spread
    operations: np.ndarray  # of each process that were compared
    worst_ns: np.ndarray  # the largest excess before one operation, of each process
    worst_gpu_ns: np.ndarray  # the part of it in which that operation was enqueued already
    worst_at_ns: np.ndarray  # when that was
    begin_ns: np.ndarray  # of each stretch
    span_ns: float  # the time looked at

    @property
    def lasting(self) -> np.ndarray:
        """Return the own share of each process over all stretches but its worst one: a pause is no fault."""
        return without_worst(self.own)


def without_worst(shares: np.ndarray) -> np.ndarray:
    """Return sums over stretches, each without its largest, scaled to all of them.

    >>> without_worst(np.array([[0.1, 0.1, 0.1], [0.0, 0.9, 0.0]])).round(3).tolist()
    [0.3, 0.0]
    """
    count = shares.shape[1]
    if count < _FEWEST_STRETCHES:
        return np.zeros(len(shares))
    rest: np.ndarray = (shares.sum(axis=1) - shares.max(axis=1)) * count / (count - 1)
    return rest


def measure_excess(rows: Operations, are_sums: bool, processes: int, period_ns: int | None) -> Excess | None:
    """Return how much longer each process took, or None where nobody can be compared."""
    rows = _known(rows)
    if len(rows) == 0:
        return None
    roles = find_roles(rows.process, rows.comm, rows.rank, rows.peer, rows.sends, processes)
    waits = np.full(len(rows), np.nan) if are_sums else _waits(rows)
    cells = _compare(rows, waits, _align(rows, _same_operation(rows, roles)))
    if len(cells.process) == 0:
        return None
    waited = cells.own if are_sums else cells.waits  # in sums own time is what was not waited: both are the same
    waits_for_it = np.fmin(np.maximum(cells.own, 0.0), waited)  # others wait for what it was late, not for more
    return _collect(cells, waits_for_it, _span(rows, processes), period_ns)


@dataclass(frozen=True)
class _Cells:
    """One entry per process and operation that others of its role did too."""

    process: np.ndarray
    others: np.ndarray
    own: np.ndarray
    gpu: np.ndarray
    waits: np.ndarray
    moment_ns: np.ndarray  # the same for all that did the operation


def _known(rows: Operations) -> Operations:
    """Return the rows of known processes, with times that can be."""
    fine = (rows.process >= 0) & np.isfinite(rows.gap_ns) & np.isfinite(rows.dur_ns)
    return rows if fine.all() else rows.take(fine)


def _waits(rows: Operations) -> np.ndarray:
    """Return by how much each row's rank was in its operation for less time than others; NaN without others."""
    pairwise, sends = rows.peer >= 0, rows.sends
    source = np.where(pairwise, np.where(sends, rows.rank, rows.peer), -1)
    target = np.where(pairwise, np.where(sends, rows.peer, rows.rank), -1)
    kind = np.where(pairwise, np.uint64(0), rows.func)
    key = mix(rows.comm, kind, source, target, rows.turn, rows.replay)
    order = np.lexsort((rows.dur_ns, key))
    begins, group = _segments(key[order])
    sizes = np.diff(np.r_[begins, len(key)])
    usual = rows.dur_ns[order][begins + sizes // 2]
    waits = np.full(len(key), np.nan)
    waits[order] = np.where(sizes > 1, usual, np.nan)[group] - rows.dur_ns[order]
    less: np.ndarray = np.maximum(waits, 0.0)  # NaN stays
    return less


def _same_operation(rows: Operations, roles: Roles) -> np.ndarray:
    """Return a number per row that is the same for operations of one kind and number on ranks of one role."""
    pairwise = rows.peer >= 0
    # In a pipeline it matters to whom; in a ring or an exchange all that a rank does at once is one thing to do.
    way = np.where(roles.is_chain, mix(rows.func, rows.peer - rows.rank), np.uint64(0))
    kind = np.where(pairwise, way, mix(rows.func + np.uint64(1), rows.size))
    return mix(roles.family_of, roles.role_of[rows.process], kind, rows.turn, rows.replay)


def _align(rows: Operations, key: np.ndarray) -> np.ndarray:
    """Keep apart the communicators that count differently: their operations of one number are not at one time."""
    order = np.lexsort((rows.start_ns, key))
    begins, group = _segments(key[order])
    sizes = np.diff(np.r_[begins, len(key)])
    moments = np.zeros(len(key), np.int64)
    moments[order] = rows.start_ns[order][begins + (sizes - 1) // 2][group]
    _, place = np.unique(rows.comm, return_inverse=True)
    place = place.reshape(-1)
    apart = np.bincount(place, weights=np.abs(rows.start_ns - moments)) / np.bincount(place) > _APART_NS
    return np.where(apart[place], mix(key, rows.comm), key)


def _compare(rows: Operations, waits: np.ndarray, key: np.ndarray) -> _Cells:
    """Return each process's gap before an operation against the lower median of all that did the same."""
    order = np.lexsort((-rows.gap_ns, rows.process, key))
    firsts, cell = _segments(mix(key[order], rows.process[order]))  # the longest gap stands for all begun at once
    chosen = order[firsts]
    waited = np.full(len(firsts), -1.0)
    np.fmax.at(waited, cell, waits[order])
    begins, group = _segments(key[chosen])
    others = np.diff(np.r_[begins, len(chosen)])[group] - 1
    gap, gpu = rows.gap_ns[chosen], rows.gpu_ns[chosen]
    cells = _Cells(
        process=rows.process[chosen],
        others=others,
        own=gap - _lower_medians(gap, begins, group),
        gpu=gpu - _lower_medians(gpu, begins, group),
        waits=np.where(waited < 0, np.nan, waited),
        moment_ns=np.minimum.reduceat(rows.start_ns[chosen], begins)[group],
    )
    return _Cells(**{name: getattr(cells, name)[others > 0] for name in cells.__dataclass_fields__})


def _collect(cells: _Cells, waits: np.ndarray, span_ns: float, period_ns: int | None) -> Excess:
    processes, row = np.unique(cells.process, return_inverse=True)
    row = row.reshape(-1)
    stretches, begin_ns = _stretches(cells.moment_ns, span_ns, period_ns)
    shape = (len(processes), len(begin_ns))

    def table(values: np.ndarray) -> np.ndarray:
        known = np.isfinite(values)
        flat = np.bincount(row[known] * shape[1] + stretches[known], values[known], shape[0] * shape[1])
        return flat.reshape(shape) / span_ns

    longer = np.maximum(cells.own, 0.0)
    sums, squares = (np.bincount(row, weights, shape[0]) for weights in (longer, longer**2))
    compared = np.bincount(row, minlength=shape[0])
    worst = np.lexsort((cells.own, row))[np.cumsum(np.bincount(row)) - 1]
    return Excess(
        processes=processes,
        peers=np.bincount(row, cells.others, shape[0]) / compared,
        own=table(cells.own),
        gpu=table(cells.gpu),
        knows_gpu=np.bincount(row, np.isfinite(cells.gpu), shape[0]) > 0,
        waits=table(waits),
        spread_over=np.divide(sums**2, squares, out=np.zeros(shape[0]), where=squares > 0),
        operations=compared,
        worst_ns=cells.own[worst],
        worst_gpu_ns=cells.gpu[worst],
        worst_at_ns=cells.moment_ns[worst],
        begin_ns=begin_ns,
        span_ns=span_ns,
    )


def _stretches(moment_ns: np.ndarray, span_ns: float, period_ns: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the stretch of each cell and when stretches begin: about a step each, where steps are known."""
    wanted = int(span_ns / period_ns) if period_ns else _FEWEST_STRETCHES
    count = int(np.clip(wanted, _FEWEST_STRETCHES, _MOST_STRETCHES))
    first, last = int(moment_ns.min()), int(moment_ns.max())
    if len(np.unique(moment_ns)) < count:
        return np.zeros(len(moment_ns), np.int64), np.array([first])
    length = (last - first) / count
    numbers = np.minimum((moment_ns - first) / max(length, 1.0), count - 1).astype(np.int64)
    return numbers, first + (np.arange(count) * length).astype(np.int64)


def _span(rows: Operations, processes: int) -> float:
    """Return how much time the rows of a process cover, in the median of all, each on its own clock."""
    first, last = np.full(processes, np.inf), np.full(processes, -np.inf)
    np.minimum.at(first, rows.process, rows.start_ns - np.maximum(rows.gap_ns, 0.0))
    np.maximum.at(last, rows.process, rows.start_ns + rows.dur_ns)
    covered = (last - first)[np.isfinite(first)]
    return max(float(np.median(covered)), 1.0)


def _segments(ordered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where runs of equal numbers begin, and the run of each entry."""
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    group = np.zeros(len(ordered), np.int64)
    group[begins[1:]] = 1
    return begins, np.cumsum(group)


def _lower_medians(values: np.ndarray, begins: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return for each entry the lower median of its run; runs lie one after the other."""
    order = np.lexsort((values, group))
    sizes = np.diff(np.r_[begins, len(values)])
    medians: np.ndarray = values[order][begins + (sizes - 1) // 2][group]
    return medians
