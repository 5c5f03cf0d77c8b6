"""Kernel times are believed only where they can be true."""

from typing import Any

import numpy as np
import pytest

from collector.nccl.clock import ENQUEUE_TOLERANCE_NS, GpuClock, Interval, JudgedKernels, KernelTimes, time_kernels
from collector.nccl.operations import add_kernels, add_transfers, times_of
from collector.nccl.ringfile import INDEXED_COMM
from lockstep import wire
from tests.builders import SECOND, T0
from tests.collector.nccl.readings import CLOCKS, MS, NUMBER, Array, communicator, enqueued, kernel, known

NO_COMMS = np.empty(0, INDEXED_COMM)


def operations(*ticks: int, **fields: Any) -> Array:
    records = [enqueued(number, ticks=tick, **fields) for number, tick in enumerate(ticks)]
    return known(np.concatenate(records))


def seen(*kernels: Array) -> Array:
    return time_kernels(np.concatenate(kernels), CLOCKS, [len(kernels)], NUMBER)


def judge(times: KernelTimes, of: Array, *kernels: Array) -> list[bool]:
    return list(times.judge(seen(*kernels), of).is_good.tolist())


def test_least_delay_is_the_distance_of_the_clocks_and_times_in_order_are_good() -> None:
    times = KernelTimes()
    both = seen(kernel(start=2 * MS), kernel(start=7 * MS, stop=9 * MS))
    judged = times.judge(both, operations(MS, 6 * MS))
    assert judged.is_good.tolist() == [True, True]
    assert judged.interval.first_ns - T0 == pytest.approx([2 * MS, 7 * MS], abs=1_500)
    assert judged.seen_ns.tolist() == [T0 + 6 * MS + 1_000, T0 + 9 * MS + 1_000]


def test_kernel_may_begin_just_before_it_was_reported_of_and_not_long_before() -> None:
    start = 20 * MS
    allowed = start + ENQUEUE_TOLERANCE_NS
    assert judge(KernelTimes(), operations(allowed), kernel(start=start, stop=30 * MS)) == [True]
    assert judge(KernelTimes(), operations(allowed + 2_000), kernel(start=start, stop=30 * MS)) == [False]


def test_times_of_an_older_kernel_are_refused_and_do_not_disturb_the_clock() -> None:
    times = KernelTimes()
    assert judge(times, operations(MS), kernel()) == [True]
    stale = kernel(start=2 * MS, stop=6 * MS, start_ticks=52 * MS, stop_ticks=56 * MS)
    assert judge(times, operations(51 * MS), stale) == [False]
    assert judge(times, operations(60 * MS), kernel(start=61 * MS, stop=62 * MS)) == [True]


def test_kernel_that_begins_before_the_last_good_one_of_its_channel_is_refused() -> None:
    times = KernelTimes()
    both = operations(MS, MS)
    first, older = kernel(start=10 * MS, stop=11 * MS), kernel(start=8 * MS, stop=9 * MS, start_ticks=12 * MS)
    assert judge(times, both, first, older) == [True, False]
    assert judge(times, operations(MS), kernel(start=9 * MS, stop=13 * MS)) == [False]
    assert judge(times, operations(MS), kernel(start=9 * MS, stop=13 * MS, channel=1)) == [True]


def test_operations_fused_into_one_kernel_share_their_times_also_when_the_clocks_are_known_better() -> None:
    assert judge(KernelTimes(), operations(MS, MS), kernel(), kernel()) == [True, True]
    times = KernelTimes()
    assert judge(times, operations(MS), kernel()) == [True]
    # The second is seen sooner after its end, so the distance of the clocks shrinks by 400 ns.
    assert judge(times, operations(MS), kernel(start_ticks=6 * MS + 500, stop_ticks=6 * MS + 600)) == [True]


@pytest.mark.parametrize("wrong", [{"gpu_start_ns": 0}, {"gpu_stop_ns": 0}, {"gpu_stop_ns": T0 - 5_000 * MS}])
def test_kernel_that_ends_before_it_begins_or_has_no_time_is_refused(wrong: dict[str, int]) -> None:
    assert judge(KernelTimes(), operations(MS, MS), kernel(), kernel(**wrong)) == [True, False]


@pytest.mark.parametrize(("version", "good"), [("2.28.9", False), ("2.32.3", True), (None, False)])
def test_after_a_send_to_oneself_nothing_is_believed_of_that_communicator(version: str | None, good: bool) -> None:
    times = KernelTimes()
    times.distrust(operations(5 * MS, func=wire.SEND, peer=0), NO_COMMS, version)
    before, after = kernel(), kernel(start=7 * MS, stop=8 * MS)
    assert judge(times, operations(MS, 6 * MS), before, after) == [True, good]
    reported = KernelTimes()  # the send itself was lost, and the plugin says so
    reported.distrust(operations(MS), communicator(kernel_untrusted=1), "2.28.9")
    assert judge(reported, operations(MS), kernel()) == [False]


def test_clock_follows_a_drift_and_does_not_follow_a_jump() -> None:
    clock = GpuClock()
    seen = np.arange(0, 100 * SECOND, SECOND)
    drifting = seen - 5 * SECOND - seen // 200_000  # 5 ppm slower than the host
    offsets = clock.offsets_ns(seen, drifting)
    assert np.abs(offsets - (seen - drifting)).max() < 1_000
    jumped = clock.offsets_ns(np.array([101 * SECOND]), np.array([101 * SECOND - 6 * SECOND]))
    assert jumped[0] < 5 * SECOND + 1_000_000


HERE = np.array([0])


def end_of(*, kernel_ms: float, read_ms: float | None = None, sent_ms: float | None = None) -> float:
    """Return when an operation ends, given when its kernel and its transfers did; all in milliseconds."""
    operation = known(enqueued())
    times = Interval(np.array([T0]), np.array([T0 + int(kernel_ms * MS)]))
    add_kernels(operation, HERE, JudgedKernels(times, times.last_ns, np.array([True])))
    for ended_ms, sends in ((read_ms, False), (sent_ms, True)):
        if ended_ms is not None:
            interval = Interval(np.array([T0]), np.array([T0 + int(ended_ms * MS)]))
            add_transfers(operation, HERE, interval, np.array([sends]))
    return float(times_of(operation).last_ns[0] - T0) / MS


def test_kernel_says_when_an_operation_ends_unless_data_came_in_long_after_it() -> None:
    assert end_of(kernel_ms=3.0) == end_of(kernel_ms=3.0, read_ms=2.9, sent_ms=2.0) == 3.0
    # In trees and grouped sends and receives one warp stamps the end while others still read.
    assert end_of(kernel_ms=0.2, read_ms=3.7) == pytest.approx(3.7)
    assert end_of(kernel_ms=3.0, read_ms=3.05) == 3.0, "the proxy looks a little late"
    assert end_of(kernel_ms=3.0, sent_ms=9.0) == 3.0, "what is still being sent does not hold the GPU"
