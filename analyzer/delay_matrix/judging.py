"""How slow each pair is: against its peers, and against what it needed itself before.

Traffic of one kind is homogeneous, so pairs that carry the same function and size class over the same transport need
about the same time per byte; the median of a kind stands for it as long as fewer than half of its pairs are slow. A
pair's ratio is the time that it took over the time that its bytes take at the medians of their kinds:

    ratio = sum(bytes * delay) / sum(bytes * max(median of kind, least))

so that what costs the job most counts most, and no pair is slow that needs no longer than its link allows. Where
pairs are unequal by nature (colliding paths, trees, experts) the past decides: the same ratio against the pair's own
usual delays, divided by how much all others changed. Slow is what stands out both ways, by more than chance does: how
far the ratio may be off follows from how much single operations differ, those of the pair or, where these happen to
agree, those of all others, of which there may be few as well. What it is held against may be off, too. Channels of
one operation are one measurement, and of one operation alone nothing follows.

Cost: O(rows log rows). Reference: the delay matrix of C4D (HPCA'25).
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, stdtrit

from analyzer.delay_matrix.ends import number_rows
from analyzer.delay_matrix.matrix import Past

_MAD_TO_SIGMA = 1.4826  # for normally distributed excesses
_MEAN_TO_SIGMA = 1.2533  # likewise, from the mean absolute deviation
_RAW = np.uint64(0x5BF0_3635_9C1D_7A11)  # any pattern of bits: tells keys of raw delays from those of others
_MOST_MOVED = 3.0  # that a median may be off: beyond, nothing is known of it, and of little traffic little follows
_UNTOUCHED = 0.2  # of all pairs: a switch that carries more than the others is no part of a job, but its fabric
_ABOVE, _ABOVE_SIGMAS = 0.65, 0.385  # a quantile above the median, and where it lies when excesses are normal
_BELOW, _BELOW_SIGMAS = 0.1, 2.0  # likewise below it, with room for pairs that are fast because others are slow


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
    starved_ratio: float = 5.0  # of a host's flush wait over what others need
    starved_ns: float = 200e3  # per step; a healthy flush takes microseconds, a starved proxy a scheduler's slice


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
    ring: np.ndarray  # rows of one number belong to one channel of one communicator
    rivals: np.ndarray  # of rows of one number, the slowest leads
    follows: np.ndarray  # whether its delay also shows what happens to others of its ring
    raw_ns_per_byte: np.ndarray  # before what the receiver held up was taken off
    is_net: np.ndarray  # whether anything could be taken off, which is uncertain
    decides: np.ndarray  # whether it is all that the wire took: where it is short, the wire is not slow
    is_new: np.ndarray  # whether any of it is newer than the evaluation before


@dataclass(frozen=True)
class Score:
    """How slow each pair is; arrays are by number of the pair, NaN where it has no row of this sort."""

    ratio: np.ndarray
    sigmas: np.ndarray
    slow: np.ndarray
    ns_per_byte: np.ndarray
    wary: np.ndarray  # slow enough not to be learnt as usual
    large: np.ndarray  # slow enough to matter, if only it is no noise
    costly: np.ndarray  # slow enough to matter, by more than chance, if only pairs do not differ as much by nature
    error: np.ndarray  # by which share the ratio may be off, either way, by chance
    operations: np.ndarray  # that were measured
    has_past: np.ndarray  # whether it was held against that
    doubtful: np.ndarray  # nearly slow: enough of a pair that shares an end with a slow one
    shared: np.ndarray  # times as long as others of its kind it may take, for those that share its links


def judge_delays(delays: Delays, past: Past, pairs: int, window_ns: int, options: PairOptions) -> Score:
    """Return how slow each pair is, held against its peers and its past."""
    taken = np.maximum(delays.ns_per_byte, delays.least)
    usual, everywhere = _recall_usual(delays, taken, past.log_delay)
    sharing = delays.sharers / np.maximum(median_of(delays.sharers, delays.kind), 1.0)
    alone = _expect(delays, taken, usual * everywhere)
    expected = alone * np.maximum(sharing, 1.0)
    weight = delays.bytes
    total = _sum(taken * weight, delays.index, pairs)
    normal = _sum(expected * weight, delays.index, pairs)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = total / normal
        lost = (total - normal) / max(window_ns, 1)
        per_byte = _sum(delays.ns_per_byte * weight, delays.index, pairs) / _sum(weight, delays.index, pairs)
    changed = _change(delays, taken, usual, everywhere, pairs)
    has_past = np.isfinite(changed)
    with np.errstate(invalid="ignore", divide="ignore"):  # how many share an end, a pair's past knows better
        uncrowded = total / _sum(expected * delays.crowd * weight, delays.index, pairs)
        held = np.where(has_past, ratio, uncrowded)
        shared = normal / _sum(alone * weight, delays.index, pairs)
        is_spacious = _sum(sharing * weight, delays.index, pairs) < _sum(weight, delays.index, pairs)
    is_few = np.isfinite(ratio).sum() < options.few_pairs
    with np.errstate(invalid="ignore", divide="ignore"):
        spread_peers = _spread(np.log(held), options.min_spread * (5 if is_few else 1))
        # Why those are fast that share their links with fewer others is known.
        spread_peers = max(spread_peers, _reach_below(np.log(held[~is_spacious])) / _BELOW_SIGMAS)
        swing = _sum(past.swing * weight, delays.index, pairs) / _sum(weight, delays.index, pairs)
        spread_past = np.maximum(_spread(np.log(changed), options.min_spread), _MEAN_TO_SIGMA * swing)
    follows = _sum(np.where(delays.follows, weight, 0.0), delays.index, pairs) > 0
    changed_ratio = np.where(follows, options.few_changed_ratio, options.slow_ratio)
    few_ratio = np.where(has_past, changed_ratio, options.few_ratio)
    slow_ratio = np.maximum(options.slow_ratio, few_ratio) if is_few else np.full(pairs, options.slow_ratio)
    error, relative, operations = _chance(delays, expected, total, pairs, options)
    with np.errstate(invalid="ignore", divide="ignore"):
        sigmas = np.where(has_past, np.log(changed) / spread_past, np.log(held) / spread_peers)
        least_ratio = np.where(has_past, np.minimum(ratio, changed), held)
        large = (least_ratio >= slow_ratio) & (lost >= options.min_lost_share)
        is_chance = ~(least_ratio * np.exp(-error) > 1) | (relative > options.odd_error)
        costly = large & ~is_chance
        slow = costly & (sigmas >= options.slow_sigmas)
        nearly = (least_ratio > 1 + (slow_ratio - 1) * options.beside_part) & (sigmas >= options.beside_sigmas)
        doubtful = nearly & ~is_chance & (lost >= options.beside_part * options.min_lost_share)
        # What does not stand out is unequal by nature: unless that is learnt, nothing tells when it changes.
        wary = (ratio >= options.slow_ratio) & (nearly | (has_past & (sigmas >= options.slow_sigmas)))
    return Score(ratio, sigmas, slow, per_byte, wary, large, costly, error, operations, has_past, doubtful, shared)


def _chance(
    delays: Delays, expected: np.ndarray, total_ns: np.ndarray, pairs: int, options: PairOptions
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by which share each pair's ratio may be off by chance, its standard error, and the operations behind it.

    Channels of one operation are late together, so their errors add up; those of different operations cancel.
    """
    group, first = number_rows([delays.operation, delays.index])
    error_ns = np.bincount(group, weights=_errors(delays) * delays.bytes, minlength=len(first))
    seen = np.zeros(len(first))
    np.maximum.at(seen, group, delays.operations)
    operations = _sum(seen, delays.index[first], pairs)
    raw_ns = _sum(_as_waited(delays) * delays.bytes, delays.index, pairs)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.sqrt(_sum(error_ns**2, delays.index[first], pairs)) / total_ns
        # Where nearly all of a wait was taken off, its error is many times what is left; others are not as uncertain.
        of_others = _error_of_others(relative * total_ns / raw_ns, operations, options.errors) * raw_ns / total_ns
        own = np.maximum(options.errors * relative, of_others)
        median = _sum(expected * delays.bytes * _errors_of_medians(delays, options), delays.index, pairs)
        median = median / _sum(expected * delays.bytes, delays.index, pairs)
    return np.hypot(own, np.nan_to_num(median)), relative, operations


def _quantile(freedom: np.ndarray, errors: float) -> np.ndarray:
    """Return the quantile of Student's t that is as rare as so many errors of known size."""
    return np.where(freedom > 0, stdtrit(np.maximum(freedom, 1e-9), ndtr(errors)), np.inf)


def _error_of_others(relative: np.ndarray, operations: np.ndarray, errors: float) -> np.ndarray:
    """Return how far as many operations of all other pairs may be off by chance, as rarely as by so many errors.

    What is known of the others' noise are their own few operations, hence Student's t. Three that agree among others
    that do not prove nothing; three that are late in different ways among others that agree do.

    >>> _error_of_others(np.array([0.3, 0.1, 0.1]), np.array([3.0, 3.0, 3.0]), 3.0).round(2).tolist()
    [0.66, 1.48, 1.48]
    """
    freedom = np.where(np.isfinite(relative), np.maximum(operations - 1, 0), 0.0)
    squares = np.where(freedom > 0, freedom * relative**2 * operations, 0.0)
    left = freedom.sum() - freedom
    single = np.sqrt((squares.sum() - squares) / left)
    error: np.ndarray = _quantile(left, errors) * np.where(left > 0, single, 1.0) / np.sqrt(operations)
    return error


def _errors_of_medians(delays: Delays, options: PairOptions) -> np.ndarray:
    """Return by how much chance moves the median of its kind that each row is held against, as a share of it.

    How much single operations differ is known from those of all pairs of the kind together.
    """
    _, first = number_rows([delays.kind, delays.index])
    kinds = int(delays.kind.max(initial=-1)) + 1
    freedom = np.bincount(delays.kind[first], weights=np.maximum(delays.operations[first] - 1, 0), minlength=kinds)
    single = _quantile(freedom, options.errors)[delays.kind] * _errors(delays) / _as_waited(delays)
    pairs = np.bincount(delays.kind[first], minlength=kinds)[delays.kind]
    moved = _MEAN_TO_SIGMA * median_of(single, delays.kind) / np.sqrt(pairs)
    known: np.ndarray = np.minimum(moved, _MOST_MOVED)
    return known


def _as_waited(delays: Delays) -> np.ndarray:
    """Return each row's delay before anything was taken off, at least what its link needs."""
    waited: np.ndarray = np.maximum(np.maximum(delays.raw_ns_per_byte, delays.least), 1e-9)
    return waited


def _errors(delays: Delays) -> np.ndarray:
    """Return each row's standard error: never less than rows of as many operations have; of one, all it took."""
    taken = np.maximum(delays.ns_per_byte, delays.least)
    with np.errstate(invalid="ignore", divide="ignore"):
        # Of one operation, relative; how much that differs which no link is slow for says nothing.
        single = delays.error * np.sqrt(delays.operations) / _as_waited(delays)
    known = single[np.isfinite(single) & (single > 0)]
    usual = float(np.median(known)) if len(known) else 0.0
    least = usual * taken / np.sqrt(np.maximum(delays.operations, 1.0))
    errors: np.ndarray = np.maximum(np.where(np.isfinite(delays.error), delays.error, taken), least)
    return errors


def as_they_are(delays: Delays) -> Delays:
    """Return the delays before anything was taken off, with a past of their own."""
    return replace(delays, ns_per_byte=delays.raw_ns_per_byte, key=delays.key ^ _RAW, kind_key=delays.kind_key ^ _RAW)


def find_disputed(waits: Delays, watched: Delays, score: Score, options: PairOptions) -> np.ndarray:
    """Return the pairs that were watched for most of what they carried and are not slow by that.

    While a sender waits for the wire, bytes are on it. Waits of which this is not true are the host's, or those of a
    receiver that does not read; acknowledgements that come late over a slow pair of the other direction do that.
    """
    pairs = len(score.slow)
    carried = _sum(waits.bytes, waits.index, pairs)
    seen = _sum(np.where(watched.decides, watched.bytes, 0.0), watched.index, pairs)
    result: np.ndarray = (seen > 0) & (seen >= options.min_watched * carried) & ~score.large
    return result


def keep_leading(delays: Delays, slow: np.ndarray, options: PairOptions) -> np.ndarray:
    """Return which slow pairs remain when those are left out that only follow a slower one of the same ring.

    On sockets a slow pair feeds the rest of its ring in bursts and its acknowledgements share a NIC with other data,
    so others look slow too, but by less; and those before it wait for a receiver that does not consume.
    """
    if not (slow.any() and delays.follows.any()):
        return slow
    weight = np.where(slow[delays.index], delays.bytes, 0.0)
    leads = _is_large(delays.ns_per_byte, delays, weight > 0, options.min_part)
    if delays.is_net.any():
        leads &= _is_large(delays.raw_ns_per_byte, delays, weight > 0, options.min_raw_part)
    total, leading = (_sum(part, delays.index, len(slow)) for part in (weight, np.where(leads, weight, 0.0)))
    is_own = _sum(np.where(delays.follows, 0.0, weight), delays.index, len(slow)) > 0.5 * total
    return slow & ((leading >= 0.5 * total) | is_own)


def _is_large(values: np.ndarray, delays: Delays, of: np.ndarray, part: float) -> np.ndarray:
    """Return which values exceed the usual by at least this part of what any of their rivals does, among those."""
    excess = values - np.maximum(_usual(values, delays), delays.least)
    largest = np.zeros(int(delays.rivals.max(initial=-1)) + 1)
    np.maximum.at(largest, delays.rivals[of], excess[of])
    result: np.ndarray = excess >= part * largest[delays.rivals]
    return result


def _expect(delays: Delays, taken: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the usual delay of each row's kind and ring.

    Where nothing is left of the usual one, a delay is held against the usual one before anything was taken off. Where
    delays are the wire's own and most pairs of a kind are known, theirs of before stand for it when they are less:
    most may be slow at once, through one switch.
    """
    usual = np.maximum(_usual(taken, delays), delays.least)
    before = median_of(np.where(np.isnan(known), np.inf, np.maximum(known, delays.least)), delays.kind)
    usual = np.where(delays.follows, usual, np.minimum(usual, before))
    expected: np.ndarray = np.where(usual > 0, usual, median_of(delays.raw_ns_per_byte, delays.kind))
    return expected


def _usual(values: np.ndarray, delays: Delays) -> np.ndarray:
    """Return the median of each row's kind, and where a ring slows down as a whole, that of its kind in its ring."""
    usual = median_of(values, delays.kind)
    around = median_of(values, number_rows([delays.ring, delays.kind])[0])
    return np.where(delays.follows, np.maximum(usual, around), usual)


def _recall_usual(delays: Delays, taken: np.ndarray, log_delay: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the usual delay of each row, NaN without a past, and how much all of its sort changed.

    All changed as the median did, or on sockets as that of their ring did, where a slow pair holds up the others.
    Acknowledged bytes wait for nothing but their own way: what a fifth of the pairs did not take part in is no change
    of all.
    """
    usual = np.maximum(np.exp(log_delay), delays.least)
    changed, known = taken / usual, np.isfinite(log_delay)
    if not known.any():
        return usual, np.ones(len(usual))
    median, least = np.quantile(changed[known], [0.5, _UNTOUCHED], method="lower")
    around = np.full(len(usual), float(median))
    around[known] = np.maximum(median_of(changed[known], delays.ring[known]), median)
    everywhere: np.ndarray = np.where(delays.follows, around, min(float(median), max(float(least), 1.0)))
    return usual, everywhere


def _change(delays: Delays, taken: np.ndarray, usual: np.ndarray, everywhere: np.ndarray, pairs: int) -> np.ndarray:
    """Return each pair's delay over its own usual one, relative to how all others changed; NaN without a past."""
    known = np.isfinite(usual)
    index, weight = delays.index[known], delays.bytes[known]
    now = _sum(taken[known] * weight, index, pairs)
    before = _sum((usual * everywhere)[known] * weight, index, pairs)
    enough = _sum(weight, index, pairs) >= 0.5 * _sum(delays.bytes, delays.index, pairs)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(enough & (before > 0), now / before, np.nan)


def _spread(excess: np.ndarray, least: float) -> float:
    """Return a standard deviation that outliers do not move, nor pairs that are faster than usual.

    The median absolute deviation stands while slow pairs are few; just above the median one still sees noise alone
    when a third of them is slow, or when others got faster because the slow ones hold up the traffic.
    """
    seen = excess[np.isfinite(excess)]
    if not len(seen):
        return least
    middle, above = np.quantile(seen, [0.5, _ABOVE], method="lower")
    deviation = float(np.quantile(np.abs(seen - middle), 0.5, method="lower")) * _MAD_TO_SIGMA
    return max(min(deviation, float(above - middle) / _ABOVE_SIGMAS), least)


def _reach_below(excess: np.ndarray) -> float:
    """Return how far below the usual one the fastest pairs lie: where some are that fast by nature, others are slow.

    >>> round(_reach_below(np.log([0.5, 0.5, 1.0, 1.0, 1.0, 1.5])), 2)
    0.69
    """
    seen = excess[np.isfinite(excess)]
    return max(-float(np.quantile(seen, _BELOW, method="lower")), 0.0) if len(seen) else 0.0


def _sum(values: np.ndarray, index: np.ndarray, pairs: int) -> np.ndarray:
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
