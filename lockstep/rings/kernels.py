"""Kernel times that can be true: NCCL stamps them with the GPU's clock and, in several releases, mixes them up.

After a send to oneself (NCCL 2.26 to 2.30) and after its mask was toggled (2.31 and later) NCCL hands out the times
of older kernels. So a pair of times is taken only if

- it ends after it begins, and its communicator is not known to be mixed up;
- it begins no earlier than the host enqueued the operation, less a tolerance;
- it begins, on the GPU's own clock, no earlier than the last good one of its communicator and channel. Operations
  that NCCL fuses into one kernel share their times, so an equal beginning is right; as UNIX time it would differ by
  the few nanoseconds by which the distance of the clocks was put right in between.

The GPU's clock is its own: `GpuClock` learns how far it is from the host's.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep.rings.clock import HostClocks
from lockstep.rings.span import NEVER_NS, Span

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

# NCCL tells of an operation right after it launched the kernel, so the kernel may be first. On an H200 good kernels
# began at most 47 us before the call (the first launch of a process, 2.32.3; later ones at most 3 us), stale ones
# 300 us and more.
ENQUEUE_TOLERANCE_NS = 100_000

# The H200's clock drifted 2 ppm from the host's. Ten times that: what is allowed also opens the tolerance, by 20 us
# for each second without a time that was heard at once.
_DRIFT_DIVISOR = 50_000


# A closed kernel channel, with the times at which the host heard of it.
HEARD = np.dtype(
    [
        *(("operation", "u8"), ("gpu_start_ns", "i8"), ("gpu_stop_ns", "i8"), ("start_heard_ns", "i8")),
        *(("stop_heard_ns", "i8"), ("channel", "u4"), ("origin", "u2")),
    ],
    align=True,
)


def time_kernels(closed: Array, clocks: HostClocks, counts: Sequence[int], origin: Array) -> Array:
    """Return closed kernel channels of several processes as HEARD."""
    heard = np.zeros(len(closed), HEARD)
    for name in ("operation", "gpu_start_ns", "gpu_stop_ns", "channel"):
        heard[name] = closed[name]
    heard["start_heard_ns"] = clocks.to_unix_ns(closed["start_ticks"], counts)
    heard["stop_heard_ns"] = clocks.to_unix_ns(closed["stop_ticks"], counts)
    heard["origin"] = origin
    return heard


class GpuClock:
    """How far the GPU's clock is behind the host's: the least delay at which the host ever heard of a GPU's time.

    The host hears of a kernel some time after it began or ended, never before. So the smallest difference is the
    best, and times of older kernels, which make it larger, do not disturb it. It may grow by the drift only.
    """

    def __init__(self) -> None:
        self._least = -NEVER_NS  # of difference minus drift, since the beginning

    def offsets_ns(self, heard_ns: Array, gpu_ns: Array) -> Array:
        """Return what to add to each of the GPU's times for UNIX time."""
        if len(heard_ns) == 0:
            return np.zeros(0, np.int64)
        order = np.argsort(heard_ns, kind="stable")
        drift = heard_ns[order] // _DRIFT_DIVISOR
        difference = (heard_ns - gpu_ns)[order]
        before = np.minimum(np.minimum.accumulate(difference - drift), self._least)
        after = np.minimum.accumulate((difference + drift)[::-1])[
            ::-1
        ]  # what is heard later corrects what is at hand
        self._least = int(before[-1])
        offsets = np.empty(len(order), np.int64)
        offsets[order] = np.minimum(before + drift, after - drift)
        return offsets


class JudgedKernels(NamedTuple):
    """Kernel channels in the order heard: their times as UNIX time, and which of these can be true."""

    span: Span
    heard_ns: Array
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
        """Return kernels (HEARD) with their times; `operations` holds the operation of each."""
        heard = [kernels[name] for name in ("start_heard_ns", "stop_heard_ns")]
        told = [kernels[name] for name in ("gpu_start_ns", "gpu_stop_ns")]
        offsets = self._clock.offsets_ns(np.concatenate(heard), np.concatenate(told))
        span = Span(*(gpu_ns + part for gpu_ns, part in zip(told, np.split(offsets, 2), strict=True)))
        is_good = (told[0] > 0) & (span.last_ns >= span.first_ns) & self._is_trusted(operations)
        is_good &= span.first_ns >= operations["enqueue_ns"] - ENQUEUE_TOLERANCE_NS
        self._check_order(is_good, told[0], operations["comm"], kernels["channel"])
        return JudgedKernels(span, heard[1], is_good)

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
