"""Delays of all pairs by one sort of measurement, and when one counts as slow."""

from dataclasses import dataclass, replace

import numpy as np

_RAW = np.uint64(0x5BF0_3635_9C1D_7A11)  # any pattern of bits: tells keys of raw delays from those of others


@dataclass(frozen=True, slots=True)
class PairOptions:
    """When a pair counts as slow."""

    min_pairs: int = 2  # alone, a pair has nobody to be held against
    few_pairs: int = 8  # fewer, and a single slow one moves the spread that it is judged by
    slow_ratio: float = 1.25  # below, a job loses less than restarting it costs, and congestion looks the same
    few_ratio: float = 2.0  # with few pairs only what nobody can miss
    few_changed_ratio: float = 1.5  # over sockets, where a past tells how much they differ, and one moves the others
    elsewhere_ratio: float = (
        1.25  # likewise, over what the slowest of the others used to take, of a pair without past
    )
    slow_sigmas: float = 6.0  # one false wire in 10^9 if excesses were normal; they are not, hence the ratio too
    beside_sigmas: float = 3.0  # of a pair at an end of a slow one: a few are asked, where a job has thousands
    beside_part: float = (
        0.5  # of that one's excess, and of what a slow pair needs: what shares an end is slowed alike
    )
    errors: float = 3.0  # standard errors that a pair must exceed its peers by: chance does so once in 700 times
    odd_error: float = 0.6  # k odd operations among usual ones have an error of 1 / sqrt(k) of their mean: three do
    raw_sigmas: float = 3.0  # of waits as they are: with those of what is left, enough; receivers make them swing
    min_left: float = 0.67  # of a wait: where most of it is left, what was taken off cannot have made it look long
    nearly_all: float = 0.9  # likewise, of a wait that is judged as it is
    min_spread: float = 0.02  # a cluster quieter than 2 % would make every hiccup many sigmas
    min_lost_share: float = 0.005  # of the window; what costs half a percent of the time is not worth a word
    min_part: float = 0.25  # of the excess of its ring's slowest wire: less costs nothing while that one is there
    min_raw_part: float = (
        0.6  # likewise, of waits as they are: behind a slow pair bursts wait too, but less than half
    )
    least_part: float = 0.1  # likewise, of the excess of the slowest of all: what waits for it comes in bursts too
    step_noise_ns: float = 300e3  # to wake a thread on a busy host; nothing shorter is the wire's
    poll_ns: float = 10e3  # per step: a proxy looks at all its connections in turn
    min_watched: float = 0.5  # of a pair's bytes step by step by both ends, for that to count more than its waits
    few_operations: int = 3  # fewer that were watched, and their median is what as many wake-ups made of it
    clock_margin: float = 3.0  # how many times the scatter of clocks a transit must exceed


@dataclass(frozen=True)
class Delays:
    """Delays of one sort; arrays are parallel, one entry per row."""

    index: np.ndarray  # number of its pair
    kind: np.ndarray  # rows of one number are comparable
    kind_key: np.ndarray  # u64, what the slowest of its kind is remembered by
    key: np.ndarray  # u64, what its past is remembered by
    bytes: np.ndarray
    operation: np.ndarray  # rows of one number are channels of the same operations
    operations: np.ndarray  # that were measured, or seconds of them
    ns_per_byte: np.ndarray
    error: np.ndarray  # standard error of that; NaN where there was one measurement
    least: np.ndarray  # nanoseconds per byte below which it is never slow
    sharers: np.ndarray  # pairs that share its most crowded link
    crowd: np.ndarray  # times as much as usual that its busier end may carry at once
    flows: np.ndarray  # times as much as it carries itself
    ring: np.ndarray  # rows of one number belong to one channel of one communicator
    rivals: np.ndarray  # of rows of one number, the slowest leads
    follows: np.ndarray  # whether its delay also shows what happens to others of its ring
    raw_ns_per_byte: np.ndarray  # before what the receiver held up was taken off
    is_net: np.ndarray  # whether anything could be taken off, which is uncertain
    decides: np.ndarray  # whether it is all that the wire took: where it is short, the wire is not slow
    is_new: np.ndarray  # whether any of it is newer than the evaluation before


def as_they_are(delays: Delays) -> Delays:
    """Return the delays before anything was taken off, with a past of their own."""
    return replace(delays, ns_per_byte=delays.raw_ns_per_byte, key=delays.key ^ _RAW, kind_key=delays.kind_key ^ _RAW)


def sum_of(values: np.ndarray, index: np.ndarray, pairs: int) -> np.ndarray:
    """Return the sum of the rows of each pair."""
    return np.bincount(index, weights=values, minlength=pairs)


def median_of(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return for each value the lower median of its group.

    >>> median_of(np.array([3.0, 1.0, 2.0, 9.0]), np.array([0, 0, 0, 1])).tolist()
    [2.0, 2.0, 2.0, 9.0]
    """
    if not len(values):
        return values
    order = np.lexsort((values, group))
    ordered = group[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    count = np.diff(np.append(first, len(values)))
    result = np.empty_like(values)
    result[order] = np.repeat(values[order[first + (count - 1) // 2]], count)
    return result
