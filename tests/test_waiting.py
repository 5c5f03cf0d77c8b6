"""Tests can rely on what they wait with."""

import threading

import pytest

from lockstep.clock import NS_PER_S
from tests.waiting import HastyClock, PunctualClock, eventually


def test_waiting_ends_when_it_is_so_and_has_a_limit() -> None:
    answers = iter([False, False, True])
    eventually(lambda: next(answers))
    assert list(answers) == []
    with pytest.raises(AssertionError, match=r"not so within 0\.01 s"):
        eventually(lambda: False, limit_s=0.01)


def test_second_passes_a_hundred_times_faster_on_the_hasty_clock() -> None:
    clock, event = HastyClock(), threading.Event()
    begin_ns = clock.monotonic_ns()
    assert clock.wait(event, 1.0) is False
    assert clock.monotonic_ns() - begin_ns >= NS_PER_S
    event.set()
    assert clock.wait(event, 3600.0) is True


def test_skipping_moves_the_time_of_day_only() -> None:
    clock = HastyClock()
    before_ns = clock.now_ns()
    clock.skip(3600)
    assert clock.now_ns() - before_ns >= 3600 * NS_PER_S
    assert clock.monotonic_ns() < 3600 * NS_PER_S


def test_day_passes_no_faster_than_it_does_on_the_punctual_clock() -> None:
    clock = PunctualClock()
    waited_ns, before_ns = clock.monotonic_ns(), clock.now_ns()
    assert clock.wait(threading.Event(), 1.0) is False
    passed_ns = clock.now_ns() - before_ns
    assert 0 < passed_ns <= (clock.monotonic_ns() - waited_ns) // PunctualClock.SPEED + 1
    clock.skip(3600)
    assert clock.now_ns() - before_ns >= 3600 * NS_PER_S
