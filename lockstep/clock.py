"""Where time comes from: a Clock in the shells, plain `now_ns` arguments in pure code."""

import threading
import time
from datetime import UTC, datetime
from typing import Protocol

NS_PER_S = 1_000_000_000


def rfc3339(timestamp_ns: int) -> str:
    """Return a moment as people and programs write it, in UTC to the second.

    >>> rfc3339(0)
    '1970-01-01T00:00:00Z'
    """
    return datetime.fromtimestamp(timestamp_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Clock(Protocol):
    """Tells the time and waits; the one way to the wall clock."""

    def now_ns(self) -> int:
        """Return UNIX time in nanoseconds; may step when the host's clock is set."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never go back, for intervals and time-outs."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set or the time has passed; return whether it is set."""
        ...


class SystemClock:
    """The clock of this host."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


class ManualClock:
    """A clock that stands still until it is told to move; `wait` moves it instead of waiting."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_ns(self) -> int:
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move time forward; a clock that could go back would not test what the system meets."""
        if seconds < 0:
            raise ValueError(f"time only moves forward, not by {seconds} s")
        with self._lock:
            self._now_ns += round(seconds * NS_PER_S)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.advance(timeout_s)
        return event.is_set()
