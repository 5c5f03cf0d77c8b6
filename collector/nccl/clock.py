"""Turns ticks of a process's counter into UNIX time and into durations.

The file has pairs (ticks, UNIX time), a new one every now and then. Between two pairs time runs straight; after the
last and before the first it runs at the rate of all of them. Where the host's clock was set between two pairs, the
time before counts on until the next pair. Exact to a nanosecond per pair, since only distances are multiplied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from collector.kernel.foreign_file import ForeignFile
from collector.nccl.arrays import Array
from collector.nccl.header import Layout
from lockstep import wire
from lockstep.errors import RingNotReady
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
        """Return the clock of the process as the file has it now.

        A counter of the processor needs two pairs; until the second is there, RingNotReady says so, and records can
        stay where they are. Nanoseconds (MONOTONIC, REPLAY) need one.
        """
        pairs = self._layout.clocks.read(self._file)
        if self._clock is None or pairs.tobytes() != self._pairs:
            whole = _whole_pairs(pairs, self._layout.clocks.read(self._file)["stamp"])
            self._pairs, self._clock = pairs.tobytes(), _fit_pairs(self._file, whole, self._kind)
        return self._clock


def _fit_pairs(file: ForeignFile, pairs: Table, kind: int) -> TickClock:
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


def _whole_ns(duration_ns: Floats) -> Times:
    bounded = np.minimum(np.maximum(duration_ns, -float(_LIMIT_NS)), float(_LIMIT_NS))
    return np.rint(bounded).astype(np.int64)


NEVER_NS = -(1 << 62)  # before any time; sums of two still fit into 64 bits


class Interval(NamedTuple):
    """When each of several things began and ended, UNIX time."""

    first_ns: Times
    last_ns: Times


# NCCL tells of an operation right after it launched the kernel, so the kernel may be first. On an H200 good kernels
# began at most 47 us before the call (the first launch of a process, 2.32.3; later ones at most 3 us), stale ones
# 300 us and more.
ENQUEUE_TOLERANCE_NS = 100_000

# The H200's clock drifted 2 ppm from the host's. Ten times that: what is allowed also opens the tolerance, by 20 us
# for each second without a time that was heard at once.
_DRIFT_DIVISOR = 50_000


# A closed kernel channel, with the times at which the host heard of it.
SEEN_KERNEL = np.dtype(
    [
        *(("operation", "u8"), ("gpu_start_ns", "i8"), ("gpu_stop_ns", "i8"), ("start_seen_ns", "i8")),
        *(("stop_seen_ns", "i8"), ("channel", "u4"), ("origin", "u2")),
    ],
    align=True,
)


def time_kernels(closed: Array, clocks: HostClocks, counts: Sequence[int], origin: Array) -> Array:
    """Return closed kernel channels of several processes as SEEN_KERNEL."""
    seen = np.zeros(len(closed), SEEN_KERNEL)
    for name in ("operation", "gpu_start_ns", "gpu_stop_ns", "channel"):
        seen[name] = closed[name]
    seen["start_seen_ns"] = clocks.to_unix_ns(closed["start_ticks"], counts)
    seen["stop_seen_ns"] = clocks.to_unix_ns(closed["stop_ticks"], counts)
    seen["origin"] = origin
    return seen


class GpuClock:
    """How far the GPU's clock is behind the host's: the least delay at which the host ever heard of a GPU's time.

    The host hears of a kernel some time after it began or ended, never before. So the smallest difference is the
    best, and times of older kernels, which make it larger, do not disturb it. It may grow by the drift only.
    """

    def __init__(self) -> None:
        self._least = -NEVER_NS  # of difference minus drift, since the beginning

    def offsets_ns(self, seen_ns: Array, gpu_ns: Array) -> Array:
        """Return what to add to each of the GPU's times for UNIX time."""
        if len(seen_ns) == 0:
            return np.zeros(0, np.int64)
        order = np.argsort(seen_ns, kind="stable")
        drift = seen_ns[order] // _DRIFT_DIVISOR
        difference = (seen_ns - gpu_ns)[order]
        before = np.minimum(np.minimum.accumulate(difference - drift), self._least)
        # What is heard later corrects what is at hand.
        after = np.minimum.accumulate((difference + drift)[::-1])[::-1]
        self._least = int(before[-1])
        offsets = np.empty(len(order), np.int64)
        offsets[order] = np.minimum(before + drift, after - drift)
        return offsets


class JudgedKernels(NamedTuple):
    """Kernel channels in the order heard: their times as UNIX time, and which of these can be true."""

    interval: Interval
    seen_ns: Array
    is_good: Array


class KernelTimes:
    """Tells good kernel times from stale ones, for one process."""

    def __init__(self) -> None:
        self._clock = GpuClock()
        self._newest: dict[tuple[int, int], int] = {}  # by communicator and channel: the last good GPU time
        self._untrusted_ns: dict[int, int] = {}  # by communicator: since when its times are mixed up

    def distrust(self, enqueued: Array, communicators: Array, nccl_version: str | None) -> None:
        """Note sends to oneself, and what the plugin says of its communicators.

        The plugin's word has no time; it is for a send whose record was lost.
        """
        if _mixes_up(nccl_version):
            to_self = enqueued[(enqueued["peer"] >= 0) & (enqueued["peer"] == enqueued["rank"])]
            for comm, since_ns in zip(to_self["comm"].tolist(), to_self["enqueue_ns"].tolist(), strict=True):
                self._untrusted_ns.setdefault(comm, since_ns)
        for comm in communicators["id"][communicators["kernel_untrusted"] != 0].tolist():
            self._untrusted_ns.setdefault(comm, NEVER_NS)

    def judge(self, kernels: Array, operations: Array) -> JudgedKernels:
        """Return kernels (SEEN_KERNEL) with their times; `operations` holds the operation of each."""
        seen = [kernels[name] for name in ("start_seen_ns", "stop_seen_ns")]
        reported = [kernels[name] for name in ("gpu_start_ns", "gpu_stop_ns")]
        offsets = self._clock.offsets_ns(np.concatenate(seen), np.concatenate(reported))
        interval = Interval(*(gpu_ns + part for gpu_ns, part in zip(reported, np.split(offsets, 2), strict=True)))
        is_good = (reported[0] > 0) & (interval.last_ns >= interval.first_ns) & self._is_trusted(operations)
        is_good &= interval.first_ns >= operations["enqueue_ns"] - ENQUEUE_TOLERANCE_NS
        self._check_order(is_good, reported[0], operations["comm"], kernels["channel"])
        return JudgedKernels(interval, seen[1], is_good)

    def _is_trusted(self, operations: Array) -> Array:
        trusted = np.ones(len(operations), bool)
        for comm, since_ns in self._untrusted_ns.items():
            trusted &= (operations["comm"] != comm) | (operations["enqueue_ns"] < since_ns)
        return trusted

    def _check_order(self, is_good: Array, gpu_start_ns: Array, comms: Array, channels: Array) -> None:
        """Take back what begins before the last good one of its channel. Cost: a loop over the channels."""
        lines = np.unique(np.stack([comms, channels.astype(np.uint64)]), axis=1).T.tolist()
        for comm, channel in lines:
            here = np.flatnonzero(is_good & (comms == comm) & (channels == channel))
            if len(here):
                newest = self._newest.get((comm, channel))
                is_good[here], self._newest[comm, channel] = _in_order(gpu_start_ns[here], newest)


def _mixes_up(nccl_version: str | None) -> bool:
    """Return whether a send to oneself mixes up the times that follow.

    >>> [_mixes_up(version) for version in ("2.25.1", "2.26.2", "2.30.7", "2.31.2", None)]
    [False, True, True, False, True]
    """
    if nccl_version is None:
        return True
    major, minor = (int(part) for part in nccl_version.split(".")[:2])
    return (2, 26) <= (major, minor) <= (2, 30)


def _in_order(starts: Array, newest: int | None) -> tuple[Array, int]:
    """Return which beginnings are no older than all before them, and the newest of all.

    >>> _in_order(np.array([5, 3, 5, 9]), 4)
    (array([ True, False,  True,  True]), 9)
    """
    floor = np.iinfo(np.int64).min if newest is None else newest
    running = np.maximum(np.maximum.accumulate(starts), floor)
    return starts >= running, int(running[-1])
