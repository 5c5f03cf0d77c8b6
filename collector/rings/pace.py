"""How often ring files are read."""

from collections.abc import Iterable

from lockstep.clock import NS_PER_S

PERIOD_S = 2.0  # most of a reading's cost is the same for a little and for much
CROWDED_S = 1.0  # while a ring would be more than half full after PERIOD_S: what is overwritten is lost
URGENT_S = 0.1  # while something has just become overdue


def will_crowd(filled: Iterable[float], elapsed_ns: int) -> bool:
    """Return whether a ring would be half full after PERIOD_S, if it went on as since the last reading.

    `filled` has the part of each file's fullest ring that has been written since then.

    >>> will_crowd([0.1, 0.3], NS_PER_S), will_crowd([0.1, 0.3], 2 * NS_PER_S), will_crowd([], NS_PER_S)
    (True, False, False)
    """
    return max(filled, default=0.0) * PERIOD_S * NS_PER_S > 0.5 * max(elapsed_ns, 1)
