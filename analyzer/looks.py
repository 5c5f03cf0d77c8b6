"""When to look and how far back: often enough to be quick, over enough steps to be sure."""

from dataclasses import dataclass

from analyzer.windows import Window
from lockstep.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class LookOptions:
    """The rhythm of the analyzer."""

    hop_ns: int = 2 * NS_PER_S  # statistics are per second: more often would see little that is new
    shortest_ns: int = 6 * NS_PER_S  # ten steps of a fast job; whole seconds on both sides
    longest_ns: int = 120 * NS_PER_S  # beyond, memory and time to detect count for more than one more step
    periods: int = 3  # fewer steps, and a single odd one decides


def plan_looks(done_until_ns: int, until_ns: int, options: LookOptions) -> list[int]:
    """Return the ends of the looks that are due between two moments, aligned so that a second run has the same ones.

    >>> plan_looks(3, 10, LookOptions(hop_ns=4))
    [4, 8]
    """
    first = (done_until_ns // options.hop_ns + 1) * options.hop_ns
    return list(range(first, until_ns + 1, options.hop_ns))


def window_at(end_ns: int, first_ns: int, period_ns: int | None, options: LookOptions) -> Window:
    """Return what a look at this moment judges: some periods, once they are known, and never before the job began.

    Statistics are per second, so it begins with one, unless it is meant to be shorter than that.
    """
    wanted_ns = options.periods * (period_ns or 0)
    length_ns = min(max(wanted_ns, options.shortest_ns), options.longest_ns)
    grain_ns = NS_PER_S if length_ns >= NS_PER_S else 1
    whole_ns = -(-length_ns // grain_ns) * grain_ns
    start_ns = (end_ns - whole_ns) // grain_ns * grain_ns
    return Window(max(start_ns, min(first_ns, end_ns - 1)), end_ns)
