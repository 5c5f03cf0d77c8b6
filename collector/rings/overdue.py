"""Which operations take longer than they usually do: then progress is looked at more often, for a while."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep import wire
from lockstep.clock import NS_PER_S
from lockstep.rings.grouping import Groups, pick

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

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
    told: dict[int, list[tuple[Row, float]]] = {}
    if len(written):
        groups = Groups(written["place"], written["func"], written["peer"], written["origin"])
        lasted = np.maximum(written["active_ns"] - written["enqueue_ns"], 0)
        means = (groups.sum(lasted) / groups.count()).tolist()
        one = pick(written, groups.firsts)
        columns = (one[name].tolist() for name in ("origin", "place", "func", "peer"))
        for origin, place, func, peer, mean_ns in zip(*columns, means, strict=True):
            told.setdefault(origin, []).append(((place, func, peer), mean_ns))
    return told


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
        if len(operations) == 0:
            self._since_ns = {}
            return Overdue()
        oldest: dict[Row, int] = {}
        is_begun = operations["open"] > 0
        for place, func, peer, since in zip(
            *(operations[name][is_begun].tolist() for name in ("comm", "func", "peer")),
            enqueue_ns[is_begun].tolist(),
            strict=True,
        ):
            if place != wire.NO_COMM:
                oldest[place, func, peer] = min(since, oldest.get((place, func, peer), since))
        late = frozenset(row for row, since in oldest.items() if is_overdue(now_ns - since, self._usual_ns.get(row)))
        self._since_ns = {row: self._since_ns.get(row, now_ns) for row in late}
        return Overdue(late, any(now_ns - since < URGENT_NS for since in self._since_ns.values()))
