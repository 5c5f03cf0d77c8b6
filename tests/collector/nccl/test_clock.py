"""Ticks become UNIX time to the nanosecond, also over days, when the clock is set, and when somebody lies."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.nccl.clock import HostClocks, TickClock
from collector.nccl.ringfile import RingFile, open_ring
from lockstep import wire
from lockstep.errors import BadRing, RingNotReady
from tests.collector.nccl.forging import ChangingFile, Forged

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
        (
            wire.CLOCK_MONOTONIC,
            [(0, 0), (10**9, 10**9), (2 * 10**9, 2 * 10**9 + 400_000)],
            {15 * 10**8: 1_500_200_000},
        ),
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


@pytest.mark.parametrize("step_ns", [5 * 10**9, -5 * 10**9])
def test_clock_that_was_set_changes_times_and_no_durations(tmp_path: Path, step_ns: int) -> None:
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


NUMBER = (
    st.integers(0, (1 << 64) - 1) | st.integers(0, 1 << 33).map(lambda more: UNIX_NS + more) | st.integers(0, 300)
)


@given(
    st.lists(st.tuples(NUMBER, NUMBER, NUMBER, st.booleans()), max_size=20),
    st.lists(NUMBER, max_size=20),
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


def test_clocks_asked_together_report_what_each_reports_alone(tmp_path: Path) -> None:
    rates = (1_000_000_000, 2_694_123_457, 24_000_000)
    times = [UNIX_NS + number * HOUR_NS for number in range(5)]
    clocks = [clock_of(tmp_path, [(ticks_at(time, hertz), time) for time in times]) for hertz in rates]
    wanted = [np.arange(count, dtype=np.uint64) * np.uint64(10**14) for count in (50, 0, 7)]
    counts, together = [50, 0, 7], HostClocks(clocks)
    alone = [clock.to_unix_ns(ticks) for clock, ticks in zip(clocks, wanted, strict=True)]
    assert together.to_unix_ns(np.concatenate(wanted), counts).tolist() == np.concatenate(alone).tolist()
    lengths = [clock.duration_ns(ticks) for clock, ticks in zip(clocks, wanted, strict=True)]
    assert together.duration_ns(np.concatenate(wanted), counts).tolist() == np.concatenate(lengths).tolist()
