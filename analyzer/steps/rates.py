"""How long a step is where only some operations are known, or only how many there were in each second.

Sequence numbers count what was not kept, too: how fast they advance is known however few operations are. A step does
its rarest operation once, or a few times that follow each other closely; every other one a whole number of times as
often. Boundaries are read off the stream with most operations kept, between them by straight lines, so a single
step's time is blurred over as many steps as lie between two kept operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analyzer.steps.traffic import Witness
from lockstep.clock import NS_PER_S

_FEWEST = 4  # operations of a stream: their numbers say how many there were, so few give a rate
_COVER = 0.7  # of the time that a stream has to span: what stopped or began meanwhile is no part of each step
_MOST_PER_STEP = 16  # of the rarest operation
_CLEARLY = 0.4  # times the spread at the neighbouring lags: then the lag is a step
_FEWEST_PAIRS = 6  # of operations at a distance; fewer give no spread
_SURE_LAGS = 8  # distances at which there have to be enough: a step that does more of its rarest operation is rare
_AGREE = 0.1  # of the length: ranks of one job have the same steps
_OFTEN = 1.5  # times as often: another number of operations per step, and not the jitter of two rates


@dataclass(frozen=True)
class _Stream:
    """One stream of a rank: numbers and times of the operations that were kept, both rising."""

    numbers: np.ndarray
    times_ns: np.ndarray

    @property
    def rate(self) -> float:
        """Return its operations per nanosecond, kept or not."""
        return float(self.numbers[-1] - self.numbers[0]) / max(float(self.times_ns[-1] - self.times_ns[0]), 1.0)


def find_period_in_samples(witnesses: Sequence[Witness]) -> int | None:
    """Return the length of a step that ranks agree on of which only some operations are known."""
    found = sorted(length for witness in witnesses if (length := _estimate(witness)))
    if 2 * len(found) <= len(witnesses):
        return None
    middle = found[len(found) // 2]
    agreeing = [length for length in found if abs(length - middle) <= _AGREE * middle]
    return int(middle) if 2 * len(agreeing) > len(found) else None


def _estimate(witness: Witness) -> float | None:
    streams = _list_streams(witness)
    if not streams:
        return None
    rarest = min(streams, key=lambda stream: stream.rate)
    per_step = _count_per_step(rarest)
    if per_step is None:  # it stands for a step where others come more often: one of each kind would be odd
        per_step = 1 if any(stream.rate > _OFTEN * rarest.rate for stream in streams) else None
    return per_step / rarest.rate if per_step else None


def find_period_in_seconds(seconds: pa.Table) -> int | None:
    """Return the length of a step from counts per second: a step does its rarest kind of operation once."""
    counts = np.asarray(seconds["n"].combine_chunks()).astype(np.float64)
    first, last = (np.asarray(seconds[name].combine_chunks()).astype(np.int64) for name in ("first_ns", "last_ns"))
    if not len(counts):
        return None
    span = last - first + NS_PER_S
    known = (counts >= 2 * _FEWEST) & (span >= _COVER * span.max())
    return int((span / counts)[known].max()) if known.any() else None


def _list_streams(witness: Witness) -> list[_Stream]:
    whole = float(witness.start_ns.max() - witness.start_ns.min()) if len(witness) else 0.0
    found = []
    for _, places in witness.streams():
        numbers, firsts = np.unique(witness.seq[places], return_index=True)
        times = np.maximum.accumulate(witness.start_ns[places][firsts])
        if len(numbers) >= _FEWEST and times[-1] - times[0] >= _COVER * whole:
            found.append(_Stream(numbers, times))
    return found


def _count_per_step(stream: _Stream) -> int | None:
    """Return how many operations of a stream a step does: the first distance at which times hardly spread.

    None where too few operations at small distances from each other were kept to tell.
    """
    spreads = [_spread(stream, lag) for lag in range(1, _MOST_PER_STEP + 2)]
    if not np.isfinite(spreads[:_SURE_LAGS]).all():
        return None
    for lag in range(2, _MOST_PER_STEP + 1):
        before, here, after = spreads[lag - 2 : lag + 1]
        if here < _CLEARLY * min(before, after):
            return lag
    return 1


def _spread(stream: _Stream, lag: int) -> float:
    """Return how much the time from an operation to the `lag`-th next differs; unknown is endless."""
    place = np.searchsorted(stream.numbers, stream.numbers + lag)
    found = place < len(stream.numbers)
    found[found] = stream.numbers[place[found]] == stream.numbers[found] + lag
    if np.count_nonzero(found) < _FEWEST_PAIRS:
        return np.inf
    apart = stream.times_ns[place[found]] - stream.times_ns[found]
    usual = np.minimum(apart, 3 * np.median(apart) + apart.min())  # one checkpoint is no spread
    return float(np.std(usual))
