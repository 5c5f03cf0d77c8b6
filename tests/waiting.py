"""How tests wait for other threads and processes: until it is so, with a limit, and never for a guessed time."""

import threading
import time
from collections.abc import Callable

LIMIT_S = 600.0  # only ends what hangs: far more than anything takes, also on a machine that many share


def eventually(is_so: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Return as soon as the condition holds; fail when it does not within the limit."""
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < deadline, f"not so within {limit_s} s"
        pause.wait(0.002)


class HastyClock:
    """A clock on which a second passes in a hundredth of one: real threads, real waiting, little of it."""

    SPEED = 100

    def __init__(self) -> None:
        self._begin_ns, self._epoch_ns = time.monotonic_ns(), time.time_ns()

    def now_ns(self) -> int:
        return self._epoch_ns + self.monotonic_ns()

    def skip(self, seconds: float) -> None:
        """Set the time of day forward, as an administrator would; nobody who waits notices."""
        self._epoch_ns += round(seconds * 1e9)

    def monotonic_ns(self) -> int:
        return (time.monotonic_ns() - self._begin_ns) * self.SPEED

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s / self.SPEED)


class PunctualClock(HastyClock):
    """As hasty for whoever waits, but the time of day passes as it does: what is a minute old stays so a while."""

    def now_ns(self) -> int:
        return self._epoch_ns + self.monotonic_ns() // self.SPEED
