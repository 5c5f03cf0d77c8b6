"""Time stands still in tests until it is moved, and the host's clock really waits."""

import threading

import pytest

from lockstep.clock import NS_PER_S, Clock, ManualClock, SystemClock, rfc3339


def test_moment_is_written_in_utc_to_the_second() -> None:
    timestamps = (0, 1_700_000_000_999_999_999, 2**63 - 1)
    written = ["1970-01-01T00:00:00Z", "2023-11-14T22:13:20Z", "2262-04-11T23:47:16Z"]
    assert [rfc3339(timestamp_ns) for timestamp_ns in timestamps] == written


def test_manual_clock_moves_by_exactly_what_it_is_told_and_at_once_where_somebody_waits() -> None:
    clock = ManualClock(now_ns=5)
    clock.advance(0.57)  # 0.57 * 1e9 is a hair below 570,000,000 as a float
    assert (clock.now_ns(), clock.monotonic_ns()) == (570_000_005, 570_000_005)
    with pytest.raises(ValueError, match="time only moves forward, not by -1 s"):
        clock.advance(-1)
    assert clock.now_ns() == 570_000_005
    clock, event = ManualClock(), threading.Event()
    assert clock.wait(event, 3600.0) is False
    assert clock.now_ns() == 3600 * NS_PER_S
    event.set()
    assert clock.wait(event, 3600.0) is True
    assert clock.now_ns() == 3600 * NS_PER_S


def test_clock_of_the_host_runs_and_wakes_when_the_event_comes() -> None:
    clock: Clock = SystemClock()
    begin_ns, event = clock.monotonic_ns(), threading.Event()
    assert clock.now_ns() > 1_600_000_000 * NS_PER_S
    assert clock.wait(event, 0.001) is False
    assert clock.monotonic_ns() - begin_ns >= 1_000_000
    event.set()
    assert clock.wait(event, 60.0) is True
