"""Ticks become UNIX time to the nanosecond, whoever lies, and kernel times are believed where they can be true."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.nccl.clock import (
    ENQUEUE_TOLERANCE_NS,
    GpuClock,
    Interval,
    JudgedKernels,
    KernelTimes,
    TickClock,
    time_kernels,
)
from collector.nccl.operations import add_kernels, add_transfers, times_of
from collector.nccl.ringfile import INDEXED_COMM, RingFile, open_ring
from lockstep import wire
from lockstep.errors import BadRing, RingNotReady
from tests.builders import SECOND, T0
from tests.collector.nccl.forging import ChangingFile, Forged
from tests.collector.nccl.readings import CLOCKS, MS, NUMBER, Array, communicator, enqueued, kernel, known

UNIX_NS = 1_700_000_000_000_000_000
HOUR_NS = 3600 * 10**9


def clock_of(
    path: Path, pairs: list[tuple[int, int]], kind: int = wire.CLOCK_TSC, error_ticks: int = 20
) -> TickClock:
    forged = Forged()
    forged.header["clock_kind"] = kind
    forged.table("clocks")["stamp"] = 0
    forged.set_clock(pairs, error_ticks)
    with open_ring(forged.write(path / "a.ring")) as ring:
        return ring.clock()


def ticks_at(unix_ns: int, hertz: int = 2_694_123_457) -> int:
    return (unix_ns - UNIX_NS + 90 * HOUR_NS) * hertz // 10**9


@pytest.mark.parametrize("count", [2, 64, 65, 300])
def test_time_is_exact_to_a_microsecond_over_hours(tmp_path: Path, count: int) -> None:
    times = [UNIX_NS + number * HOUR_NS // 10 for number in range(count)]
    clock = clock_of(tmp_path, [(ticks_at(time), time) for time in times])
    wanted = np.linspace(times[0], times[-1] + HOUR_NS, 1001).astype(np.int64)
    reported = clock.to_unix_ns(np.array([ticks_at(time) for time in wanted.tolist()], np.uint64))
    assert reported.dtype == np.int64
    assert np.abs(reported - wanted).max() < 1_000
    assert abs(int(clock.duration_ns(ticks_at(UNIX_NS + HOUR_NS) - ticks_at(UNIX_NS))) - HOUR_NS) < 1_000


@pytest.mark.parametrize(
    ("kind", "pairs", "times"),
    [
        (wire.CLOCK_MONOTONIC, [(0, 0), (10**9, 10**9), (2 * 10**9, 2_000_400_000)], {15 * 10**8: 1_500_200_000}),
        (wire.CLOCK_MONOTONIC, [(1_000, 0)], {1_000: 0, 1_500: 500, 0: -1_000}),
        (wire.CLOCK_REPLAY, [(1_000, 0)], {1_000: 0, 1_500: 500, 0: -1_000}),
        (wire.CLOCK_REPLAY, [(0, 0), (0, 0), (70, 70)], {0: 0, 35: 35, 100: 100}),
        (wire.CLOCK_TSC, [(2 * 10**9, 0), (4 * 10**9, 10**9)], {0: -(10**9), 3 * 10**9: 5 * 10**8}),
    ],
    ids=["slewed", "one pair of nanoseconds", "one pair of a replay", "stands still", "before the first pair"],
)
def test_clock_is_followed_from_pair_to_pair(
    tmp_path: Path, kind: int, pairs: list[tuple[int, int]], times: dict[int, int]
) -> None:
    clock = clock_of(tmp_path, [(ticks, UNIX_NS + passed_ns) for ticks, passed_ns in pairs], kind)
    assert (clock.to_unix_ns(list(times)) - UNIX_NS).tolist() == list(times.values())
    if kind != wire.CLOCK_TSC:
        assert clock.duration_ns([0, 123]).tolist() == [0, 123]


def test_clock_that_was_set_changes_times_and_no_durations(tmp_path: Path) -> None:
    for step_ns in (5 * 10**9, -5 * 10**9):
        before = [(number * 2 * 10**9, UNIX_NS + number * 10**9) for number in range(5)]
        after = [(number * 2 * 10**9, UNIX_NS + number * 10**9 + step_ns) for number in range(5, 10)]
        clock = clock_of(tmp_path, before + after)
        reported = clock.to_unix_ns(np.array([3, 8, 9, 10, 19], np.uint64) * 10**9) - UNIX_NS
        assert reported.tolist() == [15 * 10**8, 4 * 10**9, 45 * 10**8, 5 * 10**9 + step_ns, 95 * 10**8 + step_ns]
        assert clock.duration_ns([7]).tolist() == [4]  # half a nanosecond each, to the even one


def test_counter_needs_two_pairs_and_says_so_and_the_first_two_may_be_uncertain(tmp_path: Path) -> None:
    for kind in (wire.CLOCK_TSC, wire.CLOCK_CNTVCT):
        for few, problem in (([], "no clock pair"), ([(1_000, UNIX_NS)], "one clock pair")):
            with pytest.raises(RingNotReady, match=problem):
                clock_of(tmp_path, few, kind)
    pairs = [(0, UNIX_NS), (2 * 10**6, UNIX_NS + 10**6 + 5_000)]
    clock = clock_of(tmp_path, [*pairs, (2 * 10**10, UNIX_NS + 10**10)], error_ticks=12_000)
    assert (clock.to_unix_ns([2 * 10**6 - 2, 2 * 10**10]) - UNIX_NS).tolist() == [10**6 + 4_999, 10**10]
    assert abs(int(clock.duration_ns(2 * 10**9)) - 10**9) < 1_000


def test_pairs_that_cannot_be_are_refused(tmp_path: Path) -> None:
    strange = [[(1, 0), (2 * 10**9, 10**9)], [(2 * 10**9, UNIX_NS), (10**9, UNIX_NS + 10**9)]]
    seconds = (10**9, 1 << 62), (10**9, (1 << 64) - 1), (1, UNIX_NS + 10**9), (10**18, UNIX_NS + 1), (10**9, UNIX_NS)
    strange += [[(0, UNIX_NS), second] for second in seconds]
    strange += [[(0, UNIX_NS), (10**9, UNIX_NS - 10**9), (2 * 10**9, UNIX_NS - 2 * 10**9)]]
    for pairs, kind in product(strange, (wire.CLOCK_TSC, wire.CLOCK_MONOTONIC)):
        with pytest.raises(BadRing) as caught:
            clock_of(tmp_path, pairs, kind)
        assert not isinstance(caught.value, RingNotReady)
    for unix_ns in (0, 1 << 62, (1 << 64) - 1):
        with pytest.raises(BadRing, match="at a time that cannot be"):
            clock_of(tmp_path, [(0, unix_ns)], wire.CLOCK_MONOTONIC)


def test_any_ticks_are_a_time_and_a_duration_also_of_a_slow_counter(tmp_path: Path) -> None:
    clock = clock_of(tmp_path, [(0, UNIX_NS), (10**7, UNIX_NS + 10**9)], wire.CLOCK_CNTVCT)
    ticks = np.array([0, 1 << 62, (1 << 63) - 1, 3 << 62, (1 << 64) - 1], np.uint64)
    assert clock.to_unix_ns(ticks).tolist() == [UNIX_NS, *[UNIX_NS + 10**9 + (1 << 62)] * 2, 0, UNIX_NS - 100]
    assert clock.duration_ns(ticks).tolist() == [0, *[1 << 62] * 4]


def test_pair_that_changes_between_two_looks_or_is_being_written_or_misplaced_does_not_count(tmp_path: Path) -> None:
    changing = Forged()
    changing.set_clock([(0, UNIX_NS), (10, UNIX_NS + 10), (20, UNIX_NS + 20)])
    before = changing.table("clocks").copy()
    changing.table("clocks")["stamp"][1] = 0
    file = ChangingFile(changing.write(tmp_path / "a.ring"), int(changing.header["clocks"]["offset"]), [before])
    with RingFile(file) as ring:
        assert ring.clock().ticks.tolist() == [0, 20]
    pairs = [(number * 10**9, UNIX_NS + number * 10**9) for number in range(64)]
    torn, misplaced = Forged(), Forged()
    torn.set_clock(pairs)
    torn.table("clocks")[:1]["ticks"] = 64 * 10**9  # its UNIX time is still the old one, and so is its stamp
    misplaced.table("clocks")[5] = (77, UNIX_NS, 0, 3)
    for forged, ticks in ((torn, [ticks for ticks, _ in pairs[1:]]), (misplaced, [1_000])):
        with open_ring(forged.write(tmp_path / f"{len(ticks)}.ring")) as ring:
            assert ring.clock().ticks.tolist() == ticks


ANY_NUMBER = st.integers(0, (1 << 64) - 1) | st.integers(UNIX_NS, UNIX_NS + (1 << 33)) | st.integers(0, 300)


@given(
    st.lists(st.tuples(ANY_NUMBER, ANY_NUMBER, ANY_NUMBER, st.booleans()), max_size=20),
    st.lists(ANY_NUMBER, max_size=20),
    st.sampled_from([wire.CLOCK_TSC, wire.CLOCK_CNTVCT, wire.CLOCK_MONOTONIC, wire.CLOCK_REPLAY]),
)
def test_no_forged_pair_does_harm(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int, int, bool]], ticks: list[int], kind: int
) -> None:
    forged = Forged()
    forged.header["clock_kind"] = kind
    for index, (at, unix_ns, error, is_whole) in enumerate(pairs):
        forged.table("clocks")[index] = (at, unix_ns, error, index + 1 if is_whole else error)
    with open_ring(forged.write(tmp_path_factory.getbasetemp() / "clock.ring")) as ring:
        try:
            clock = ring.clock()
        except BadRing:
            return
    reported = clock.to_unix_ns(np.array(ticks, np.uint64))
    assert reported.dtype == np.int64
    assert (reported >= 0).all()
    assert (clock.duration_ns(np.array(ticks, np.uint64)) >= 0).all()


NO_COMMS = np.empty(0, INDEXED_COMM)


def operations(*ticks: int, **fields: Any) -> Array:
    records = [enqueued(number, ticks=tick, **fields) for number, tick in enumerate(ticks)]
    return known(np.concatenate(records))


def seen(*kernels: Array) -> Array:
    return time_kernels(np.concatenate(kernels), CLOCKS, [len(kernels)], NUMBER)


def judge(times: KernelTimes, of: Array, *kernels: Array) -> list[bool]:
    return list(times.judge(seen(*kernels), of).is_good.tolist())


def test_times_in_order_are_good_at_the_least_distance_of_the_clocks_also_shared_by_fused_operations() -> None:
    both = seen(kernel(start=2 * MS), kernel(start=7 * MS, stop=9 * MS))
    judged = KernelTimes().judge(both, operations(MS, 6 * MS))
    assert judged.is_good.tolist() == [True, True]
    assert judged.interval.first_ns - T0 == pytest.approx([2 * MS, 7 * MS], abs=1_500)
    assert judged.seen_ns.tolist() == [T0 + 6 * MS + 1_000, T0 + 9 * MS + 1_000]
    assert judge(KernelTimes(), operations(MS, MS), kernel(), kernel()) == [True, True]
    times = KernelTimes()
    assert judge(times, operations(MS), kernel()) == [True]
    # The second is seen sooner after its end, so the distance of the clocks shrinks by 400 ns.
    assert judge(times, operations(MS), kernel(start_ticks=6 * MS + 500, stop_ticks=6 * MS + 600)) == [True]


def test_kernel_may_begin_just_before_it_was_reported_and_not_long_before_nor_end_before_it_begins() -> None:
    for wrong in ({"gpu_start_ns": 0}, {"gpu_stop_ns": 0}, {"gpu_stop_ns": T0 - 5_000 * MS}):
        assert judge(KernelTimes(), operations(MS, MS), kernel(), kernel(**wrong)) == [True, False]
    begins = kernel(start=20 * MS, stop=30 * MS)
    allowed = 20 * MS + ENQUEUE_TOLERANCE_NS
    assert judge(KernelTimes(), operations(allowed), begins) == [True]
    assert judge(KernelTimes(), operations(allowed + 2_000), begins) == [False]


def test_times_of_an_older_kernel_or_one_before_the_last_good_of_its_channel_are_refused() -> None:
    times = KernelTimes()
    assert judge(times, operations(MS), kernel()) == [True]
    stale = kernel(start=2 * MS, stop=6 * MS, start_ticks=52 * MS, stop_ticks=56 * MS)
    assert judge(times, operations(51 * MS), stale) == [False]
    assert judge(times, operations(60 * MS), kernel(start=61 * MS, stop=62 * MS)) == [True], "nor disturb the clock"
    times = KernelTimes()
    both = operations(MS, MS)
    first, older = kernel(start=10 * MS, stop=11 * MS), kernel(start=8 * MS, stop=9 * MS, start_ticks=12 * MS)
    assert judge(times, both, first, older) == [True, False]
    assert judge(times, operations(MS), kernel(start=9 * MS, stop=13 * MS)) == [False]
    assert judge(times, operations(MS), kernel(start=9 * MS, stop=13 * MS, channel=1)) == [True]


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
