"""How long each process did nothing for others before its operations, on the clock of its own host."""

import numpy as np


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
