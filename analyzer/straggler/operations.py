"""Operations of ranks, one by one or summed: how their rows become arrays, without doubles and with gaps."""

from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa

from analyzer.windows.window import Context


def find_doubled(process: np.ndarray, begun: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return which rows repeat another one: the store may hold a batch twice until it has merged its parts.

    >>> find_doubled(np.array([0, 0, 0]), np.array([5, 5, 5]), np.array([1, 2, 1])).tolist()
    [False, False, True]
    """
    order = np.lexsort((key, begun, process))
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in (process, begun, key):
        same &= np.diff(column[order].astype(np.int64)) == 0
    doubled = np.zeros(len(order), bool)
    doubled[order[1:]] = same
    return doubled


def find_idle(process: np.ndarray, begun: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Return for each operation the time since the latest end of all that its process began before it.

    Operations that begin together have the same. 0 where an earlier one was still under way, -1 where there is none.

    >>> find_idle(np.array([0, 0, 0, 0]), np.array([0, 5, 30, 30]), np.array([20, 7, 40, 50])).tolist()
    [-1, 0, 10, 10]
    """
    if len(process) == 0:
        return np.zeros(0, np.int64)
    order = np.lexsort((begun, process))
    who, when = process[order], begun[order]
    first = min(int(ended.min()), int(begun.min()))
    # One running maximum serves all processes: each lies above the one before by more than times differ.
    ends = ended[order] - first
    lift = who * (int(ends.max()) + 1)
    busy_until = np.maximum.accumulate(ends + lift) - lift
    is_first = np.r_[True, (who[1:] != who[:-1]) | (when[1:] != when[:-1])]
    before = (np.flatnonzero(is_first) - 1)[np.cumsum(is_first) - 1]  # the last row that began earlier
    is_known = (before >= 0) & (who[before] == who)
    since = when - first - busy_until[before]
    idle = np.empty(len(process), np.int64)
    idle[order] = np.where(is_known, np.maximum(since, 0), -1)
    return idle


def find_skips(line: np.ndarray, seq: np.ndarray) -> np.ndarray:
    """Return which operations follow others of their line, a communicator's calls of one function, that are missing.

    >>> find_skips(np.array([0, 0, 1, 0]), np.array([5, 4, 9, 7])).tolist()
    [False, False, False, True]
    """
    order = np.lexsort((seq, line))
    skips = np.zeros(len(line), bool)
    skips[order[1:]] = (np.diff(line[order]) == 0) & (np.diff(seq[order]) > 1)
    return skips


def none_of(kind: type[np.generic]) -> np.ndarray:
    return np.zeros(0, kind)


@dataclass(frozen=True)
class Operations:
    """Operations of single ranks, or all of a rank in one second together; one entry per row in each array."""

    process: np.ndarray = field(default_factory=lambda: none_of(np.int64))
    comm: np.ndarray = field(default_factory=lambda: none_of(np.uint64))
    rank: np.ndarray = field(default_factory=lambda: none_of(np.int64))
    func: np.ndarray = field(default_factory=lambda: none_of(np.uint64))  # a number that stands for the name
    sends: np.ndarray = field(default_factory=lambda: none_of(np.bool_))  # whether it is a Send
    peer: np.ndarray = field(default_factory=lambda: none_of(np.int64))
    seq: np.ndarray = field(default_factory=lambda: none_of(np.int64))  # number of the operation, or the second
    replay: np.ndarray = field(default_factory=lambda: none_of(np.int64))
    size: np.ndarray = field(default_factory=lambda: none_of(np.int64))  # bytes, or how many operations a second
    start_ns: np.ndarray = field(default_factory=lambda: none_of(np.int64))  # on the clock of the rank's host
    dur_ns: np.ndarray = field(default_factory=lambda: none_of(np.float64))
    gap_ns: np.ndarray = field(default_factory=lambda: none_of(np.float64))  # own time before
    gpu_ns: np.ndarray = field(default_factory=lambda: none_of(np.float64))  # of it, waiting for the GPU alone

    def __len__(self) -> int:
        return len(self.process)

    def take(self, chosen: np.ndarray) -> "Operations":
        """Return some of the rows."""
        return Operations(*(getattr(self, each.name)[chosen] for each in fields(self)))


def integers(rows: pa.Table, name: str) -> np.ndarray:
    """Return a column as signed integers; what is too large for them wraps round."""
    numbers: np.ndarray = rows[name].to_numpy().astype(np.int64)
    return numbers


def processes_of(rows: pa.Table, context: Context) -> np.ndarray:
    comm, rank = rows["comm"].to_numpy().astype(np.uint64), rows["rank"].to_numpy().astype(np.int64)
    return context.roster.find(comm, rank)
