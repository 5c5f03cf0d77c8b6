"""Keeps a flood of kernel lines small: the first of each kind in a second pass, the rest become one count."""

from collections import Counter
from dataclasses import replace

from lockstep.records import Event
from lockstep.topology import host_name

# A host may send 2,000 rows a second in all; what repeats more often than this says nothing new.
MAX_ALIKE = 5  # events of one kind, code and part in a second
MAX_EVENTS = 100  # events in a second, counts not included

_SEVERITIES = ("info", "warning", "error", "critical")


class FloodGate:
    """Lets events through, second by second; `second` never goes back.

    Kinds alone would be too coarse: a program that page-faults in a loop (XID 31) must not hide that the same GPU, or
    another one, fell off the bus (XID 79) in that second.
    """

    def __init__(self) -> None:
        self._second = -1
        self._passed: Counter[tuple[str, str, str]] = Counter()
        self._folded: dict[str, Event] = {}  # by kind: the event that will tell of them
        self._counts: Counter[str] = Counter()

    @property
    def oldest_held_ns(self) -> int | None:
        """Return the time of the oldest count that has not been told yet."""
        return min((event.ts_ns for event in self._folded.values()), default=None)

    def admit(self, event: Event, code: str, second: int) -> list[Event]:
        """Return what is to be sent now: counts of an earlier second, and the event unless it is folded."""
        counts = self.close() if second > self._second else []
        self._second = max(second, self._second)
        key = (event.kind, code, event.component)
        if self._passed[key] < MAX_ALIKE and self._passed.total() < MAX_EVENTS:
            self._passed[key] += 1
            return [*counts, event]
        self._fold(event)
        return counts

    def close(self) -> list[Event]:
        """Return one count for each kind that was folded, and begin anew."""
        counts = [_told(event, self._counts[kind]) for kind, event in self._folded.items()]
        self._passed, self._folded, self._counts = Counter(), {}, Counter()
        return counts

    def _fold(self, event: Event) -> None:
        """Count the event; of all that are folded the earliest time, the worst severity and the last line stay."""
        before = self._folded.get(event.kind, event)
        worst = max(before.severity, event.severity, key=_SEVERITIES.index)
        self._folded[event.kind] = replace(event, ts_ns=min(before.ts_ns, event.ts_ns), severity=worst)
        self._counts[event.kind] += 1


def _told(event: Event, count: int) -> Event:
    message = f"{count} more {event.kind} lines in one second, the last of them: {event.message}"
    return replace(event, kind="folded", component=host_name(event.host), message=message)
