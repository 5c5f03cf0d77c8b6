"""How much work a job does in a second on so many nodes: measured where it ran, a model's shape where it did not.

The unit of work is the same for all jobs of a cluster, such as floating-point operations, so that weights compare
jobs and not units. Counts that are not in a table are those on which the job cannot run.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np

from lockstep.errors import BadInput

_FEWEST_SAMPLES = 3  # of a count: the median of fewer can be one stray step, such as one with a checkpoint in it


@dataclass(frozen=True)
class Throughput:
    """Work per second by node count; each count once, upwards, none below one node."""

    counts: tuple[int, ...]
    rates: tuple[float, ...]
    measured: frozenset[int] = frozenset()  # the counts that were seen; the others come from a model

    def __post_init__(self) -> None:
        """Refuse a table that contradicts itself."""
        ordered = tuple(sorted(set(self.counts)))
        if len(self.counts) != len(self.rates) or ordered != self.counts or (ordered and ordered[0] < 1):
            raise BadInput(f"a throughput table needs one rate for each count, counts upwards from 1: {self.counts}")
        if not all(np.isfinite(rate) and rate >= 0 for rate in self.rates):
            raise BadInput(f"a throughput table holds rates that are no numbers of 0 or more: {self.rates}")

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return counts and rates as arrays."""
        return np.array(self.counts, np.int64), np.array(self.rates, float)

    def at(self, count: int) -> float:
        """Return the work per second on so many nodes; 0 where the job cannot run on that many."""
        place = bisect_left(self.counts, count)
        return self.rates[place] if place < len(self.counts) and self.counts[place] == count else 0.0


class Sample(NamedTuple):
    """What telemetry saw: steps (or tokens) per second of a job on so many nodes."""

    nodes: int
    per_s: float


def tabulate(rates: Mapping[int, float], measured: Iterable[int] = ()) -> Throughput:
    """Return the table of rates by count.

    >>> tabulate({2: 1.9, 1: 1.0}).at(2)
    1.9
    """
    counts = tuple(sorted(rates))
    return Throughput(counts, tuple(float(rates[count]) for count in counts), frozenset(measured))


def calibrate(samples: Sequence[Sample], work_each: float, model: Throughput) -> Throughput:
    """Return a table with the median of what was seen, and between those counts the model bent to go through them.

    `work_each` is the work of one step (or token), in the unit of the model. What the job does over what the model
    says is taken as a ratio that changes linearly with the logarithm of the count, and as that of the nearest count
    seen outside of them. A count that the model holds impossible counts as possible once it was seen.
    """
    by_count: dict[int, list[float]] = {}
    for sample in samples:
        by_count.setdefault(sample.nodes, []).append(sample.per_s)
    seen = {
        count: work_each * median(values)
        for count, values in sorted(by_count.items())
        if len(values) >= _FEWEST_SAMPLES
    }
    anchors = [count for count in seen if model.at(count) > 0]
    if not anchors:
        return tabulate(dict(zip(model.counts, model.rates, strict=True)) | seen, seen)
    ratio = np.interp(
        np.log(model.counts), np.log(anchors), [seen[count] / model.at(count) for count in anchors]
    )  # np.interp holds the outermost values beyond the ends
    bent = dict(zip(model.counts, (np.array(model.rates) * ratio).tolist(), strict=True))
    return tabulate(bent | seen, seen)
