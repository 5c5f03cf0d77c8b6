"""Whether all is there is asked once a second, and a busy machine is not called broken while it works that out."""

import threading
from collections.abc import Callable

import pytest

from api import readiness as readiness_module
from api.readiness import RememberedCheck
from lockstep.clock import ManualClock
from lockstep.errors import StoreAway
from tests.builders import T0

PATIENCE_S = 60


class Check:
    """Says what it is told to say, when it is let go."""

    def __init__(self) -> None:
        self.asked = 0
        self.trouble: StoreAway | None = None
        self.began, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self) -> None:
        self.asked += 1
        self.began.set()
        assert self.go.wait(PATIENCE_S)
        if self.trouble is not None:
            raise self.trouble


def while_somebody_asks(check: Check, ready: RememberedCheck, act: Callable[[], None]) -> None:
    """Do something while another thread waits for what the check says."""
    check.began.clear()
    check.go.clear()
    other = threading.Thread(target=ready.check)
    other.start()
    try:
        assert check.began.wait(PATIENCE_S)
        act()
    finally:
        check.go.set()
        other.join()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness_module, "_PATIENCE_S", 0.01)


def test_answer_holds_for_a_second() -> None:
    clock, check = ManualClock(T0), Check()
    ready = RememberedCheck(check, clock)
    ready.check()
    ready.check()
    assert check.asked == 1
    check.trouble = StoreAway("the store is away")
    clock.advance(1.0)
    for _ in range(2):
        with pytest.raises(StoreAway, match="the store is away"):
            ready.check()
    assert check.asked == 2


def test_last_word_that_all_is_well_holds_while_the_next_is_worked_out() -> None:
    clock, check = ManualClock(T0), Check()
    ready = RememberedCheck(check, clock)
    ready.check()
    clock.advance(4.0)
    while_somebody_asks(check, ready, ready.check)


def test_nobody_is_told_that_all_is_well_who_cannot_know() -> None:
    def refused(ready: RememberedCheck) -> None:
        with pytest.raises(StoreAway, match="still waits for an answer"):
            ready.check()

    clock, check = ManualClock(T0), Check()
    ready = RememberedCheck(check, clock)
    while_somebody_asks(check, ready, lambda: refused(ready))
    clock.advance(5.0)
    while_somebody_asks(check, ready, lambda: refused(ready))
