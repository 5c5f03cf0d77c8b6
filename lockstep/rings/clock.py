"""Turns ticks of a process's counter into UNIX time and into durations.

The file has pairs (ticks, UNIX time), a new one every now and then. Between two pairs time runs straight; after the
last and before the first it runs at the rate of all of them. Where the host's clock was set between two pairs, the
time before counts on until the next pair. Exact to a nanosecond per pair, since only distances are multiplied.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lockstep import wire
from lockstep.errors import RingNotReady
from lockstep.rings.layout import Layout
from lockstep.rings.opening import ForeignFile
from lockstep.wire import Table

Floats = NDArray[np.float64]
Times = NDArray[np.int64]  # ns

_COUNTER_RATES = (0.05, 1000.0)  # ns per tick: from 20 GHz to 1 MHz, the slowest counter ARM allowed
_NS_RATES = (0.5, 2.0)  # a tick is one, unless the clock was set
_CLOCK_TOLERANCE = 1e-3  # NTP changes the rate by 5e-4 at most, a quartz is off by 1e-4: more means the clock was set
_NS_KINDS = (wire.CLOCK_MONOTONIC, wire.CLOCK_REPLAY)
_LIMIT_NS = 1 << 62  # sums of two of these still fit into 64 bits; the year 2116


@dataclass(frozen=True)
class TickClock:
    """The clock of one process; pairs in the order of their ticks, no two at the same one."""

    ticks: NDArray[np.uint64]
    unix_ns: Times
    rates: Floats  # ns per tick from each pair on
    rate: float  # over all of them

    def to_unix_ns(self, ticks: ArrayLike) -> Times:
        """Return UNIX time; whatever the ticks are, a number that is not negative."""
        wanted = np.asarray(ticks, np.uint64)
        return HostClocks([self]).to_unix_ns(wanted.reshape(-1), [wanted.size]).reshape(wanted.shape)

    def duration_ns(self, ticks: ArrayLike) -> Times:
        """Return how long so many ticks are."""
        return _whole_ns(np.asarray(ticks, np.uint64).astype(np.float64) * self.rate)


class HostClocks:
    """The clocks of several processes, asked together; ticks come process by process, `counts` of each."""

    def __init__(self, clocks: Sequence[TickClock]) -> None:
        self._each = [clock.ticks for clock in clocks]
        self._firsts = np.cumsum([0, *(len(ticks) for ticks in self._each)])[:-1]
        self._ticks = np.concatenate([np.empty(0, np.uint64), *self._each])
        self._unix_ns = np.concatenate([np.empty(0, np.int64), *(clock.unix_ns for clock in clocks)])
        self._rates = np.concatenate([np.empty(0), *(clock.rates for clock in clocks)])
        self._rate = np.array([clock.rate for clock in clocks], np.float64)

    @property
    def count(self) -> int:
        return len(self._each)

    def to_unix_ns(self, ticks: NDArray[np.uint64], counts: Sequence[int]) -> Times:
        """Return UNIX time; whatever the ticks are, a number that is not negative."""
        pair, begin = np.empty(len(ticks), np.intp), 0
        for pairs, first, count in zip(self._each, self._firsts.tolist(), counts, strict=True):
            if count:
                pair[begin : begin + count] = pairs.searchsorted(ticks[begin : begin + count], "right") + (first - 1)
            begin += count
        first = np.repeat(self._firsts, counts)
        is_before = pair < first
        start = np.maximum(pair, first)
        rates = self._rates[start]
        if is_before.any():
            rates = np.where(is_before, np.repeat(self._rate, counts), rates)
        since = np.subtract(ticks, self._ticks[start]).view(np.int64)  # wraps to a negative one before the first pair
        unix_ns: Times = np.maximum(self._unix_ns[start] + _whole_ns(since * rates), 0)
        return unix_ns

    def duration_ns(self, ticks: NDArray[np.uint64], counts: Sequence[int]) -> Times:
        """Return how long so many ticks are; there may be several in each row."""
        rates = np.repeat(self._rate, counts)
        return _whole_ns(ticks * (rates[:, None] if ticks.ndim > 1 else rates))


class ClockReader:
    """Reads the clock of one file; as long as no pair is new it is the same one."""

    def __init__(self, file: ForeignFile, layout: Layout, kind: int) -> None:
        self._file, self._layout, self._kind = file, layout, kind
        self._pairs = b""
        self._clock: TickClock | None = None

    def read(self) -> TickClock:
        """Return the clock as the file has it now; RingNotReady or BadRing as `read_clock` has them."""
        pairs = self._layout.clocks.read(self._file).tobytes()
        if self._clock is None or pairs != self._pairs:
            self._pairs, self._clock = pairs, read_clock(self._file, self._layout, self._kind)
        return self._clock


def read_clock(file: ForeignFile, layout: Layout, kind: int) -> TickClock:
    """Return the clock as the file has it now.

    A counter of the processor needs two pairs; until the second is there, RingNotReady says so, and records can stay
    where they are. Nanoseconds (MONOTONIC, REPLAY) need one.
    """
    pairs = _whole_pairs(layout.clocks.read(file), layout.clocks.read(file)["stamp"])
    if pairs["unix_ns"].size == 0:
        raise RingNotReady("has no clock pair yet", file=file.name)
    if pairs["unix_ns"].max() >= _LIMIT_NS or pairs["unix_ns"].min() == 0:
        raise file.bad("has a clock pair at a time that cannot be")
    _, firsts = np.unique(pairs["ticks"], return_index=True)  # a clock that is replayed may stand still
    pairs = pairs[firsts]
    if len(pairs) == 1 and kind not in _NS_KINDS:
        raise RingNotReady("has one clock pair, and the rate of its counter takes two", file=file.name)
    return _fit(file, pairs, kind)


def _whole_pairs(pairs: Table, stamps_after: NDArray[np.uint64]) -> Table:
    """Return pairs that nobody changed while they were copied.

    The one that comes next overwrites the oldest, perhaps just now, so of a full table the oldest does not count.
    """
    count, stamps = np.uint64(len(pairs)), pairs["stamp"]
    is_ours = (stamps != 0) & (stamps == stamps_after) & ((stamps - np.uint64(1)) % count == np.arange(len(pairs)))
    newest = stamps_after.max(initial=0)
    kept: Table = pairs[is_ours & (newest - stamps + np.uint64(1) < count)]
    return kept


def _fit(file: ForeignFile, pairs: Table, kind: int) -> TickClock:
    ticks, unix_ns = pairs["ticks"].copy(), pairs["unix_ns"].astype(np.int64)
    between, passed = np.diff(ticks).astype(np.float64), np.diff(unix_ns).astype(np.float64)
    usual = _usual_rate(file, passed / between, between, kind)
    uncertain = (pairs["error_ticks"][1:].astype(np.float64) + pairs["error_ticks"][:-1]) / between
    is_steady = np.abs(passed / between / usual - 1) <= _CLOCK_TOLERANCE + np.minimum(uncertain, 0.5)
    rate = usual
    if is_steady.any():
        rate = float(passed[is_steady].sum() / between[is_steady].sum())
    rates = np.append(np.where(is_steady, passed / between, rate), rate)
    return TickClock(ticks, unix_ns, rates, rate)


def _usual_rate(file: ForeignFile, rates: Floats, weights: Floats, kind: int) -> float:
    """Return the weighted median (half of the time passed at this rate or a lower one), or 1 where ticks are ns."""
    if len(rates):
        order = np.argsort(rates)
        summed = np.cumsum(weights[order])
        median = float(rates[order][np.searchsorted(summed, summed[-1] / 2)])
        fastest, slowest = _NS_RATES if kind in _NS_KINDS else _COUNTER_RATES
        if not fastest <= median <= slowest:
            raise file.bad(f"has clock pairs of {median:g} ns per tick, which no such counter has")
    return 1.0 if kind in _NS_KINDS else median


def _whole_ns(span_ns: Floats) -> Times:
    bounded = np.minimum(np.maximum(span_ns, -float(_LIMIT_NS)), float(_LIMIT_NS))
    return np.rint(bounded).astype(np.int64)
