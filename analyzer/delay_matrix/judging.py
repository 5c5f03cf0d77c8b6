"""How slow each pair is: against its peers, and against what it needed itself before.

Traffic of one kind is homogeneous, so pairs that carry the same function and size class over the same transport need
about the same time per byte; the median of a kind stands for it as long as fewer than half of its pairs are slow. A
pair's ratio is the time that it took over the time that its bytes take at the medians of their kinds:

    ratio = sum(bytes * delay) / sum(bytes * max(median of kind, least))

so that what costs the job most counts most, and no pair is slow that needs no longer than its link allows. Where
pairs are unequal by nature (colliding paths, trees, experts) the past decides: the same ratio against the pair's own
usual delays, divided by how much all others changed. Slow is what stands out both ways, by more than chance does.

Cost: O(rows log rows). Reference: the delay matrix of C4D (HPCA'25).
"""

from dataclasses import dataclass

import numpy as np

from analyzer.delay_matrix.chance import MEAN_TO_SIGMA, measure_chance
from analyzer.delay_matrix.delays import Delays, PairOptions, median_of, sum_of
from analyzer.delay_matrix.ends import number_rows
from analyzer.delay_matrix.matrix import Past

_MAD_TO_SIGMA = 1.4826  # for normally distributed excesses
_UNTOUCHED = 0.2  # of all pairs: a switch that carries more than the others is no part of a job, but its fabric
_ABOVE, _ABOVE_SIGMAS = 0.65, 0.385  # a quantile above the median, and where it lies when excesses are normal
_BELOW, _BELOW_SIGMAS = 0.1, 2.0  # likewise below it, with room for pairs that are fast because others are slow


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
    total = sum_of(taken * weight, delays.index, pairs)
    normal = sum_of(expected * weight, delays.index, pairs)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = total / normal
        lost = (total - normal) / max(window_ns, 1)
        per_byte = sum_of(delays.ns_per_byte * weight, delays.index, pairs) / sum_of(weight, delays.index, pairs)
    changed = _change(delays, taken, usual, everywhere, pairs)
    has_past = np.isfinite(changed)
    with np.errstate(invalid="ignore", divide="ignore"):  # how many share an end, a pair's past knows better
        # What is held against its link's rate alone shares it with all that its end carries.
        crowd = np.where((alone <= delays.least) & delays.follows, delays.flows, delays.crowd)
        uncrowded = total / sum_of(expected * crowd * weight, delays.index, pairs)
        against_peers = np.maximum(uncrowded, np.minimum(ratio, 1.0))  # as fast as usual is not faster than usual
        held = np.where(has_past, ratio, against_peers)
        shared = normal / sum_of(alone * weight, delays.index, pairs)
        is_spacious = sum_of(sharing * weight, delays.index, pairs) < sum_of(weight, delays.index, pairs)
        waited = sum_of(delays.raw_ns_per_byte * weight, delays.index, pairs)
        is_rest = sum_of(delays.ns_per_byte * weight, delays.index, pairs) < options.min_left * waited
    is_few = np.isfinite(ratio).sum() < options.few_pairs
    with np.errstate(invalid="ignore", divide="ignore"):
        spread_peers = _spread(np.log(held), options.min_spread * (5 if is_few else 1))
        # Why those are fast that share their links with fewer others is known, and of whose wait little was left.
        spread_peers = max(spread_peers, _reach_below(np.log(held[~is_spacious & ~is_rest])) / _BELOW_SIGMAS)
        swing = sum_of(past.swing * weight, delays.index, pairs) / sum_of(weight, delays.index, pairs)
        spread_past = np.maximum(_spread(np.log(changed), options.min_spread), MEAN_TO_SIGMA * swing)
    follows = sum_of(np.where(delays.follows, weight, 0.0), delays.index, pairs) > 0
    changed_ratio = np.where(follows, options.few_changed_ratio, options.slow_ratio)
    few_ratio = np.where(has_past, changed_ratio, options.few_ratio)
    slow_ratio = np.maximum(options.slow_ratio, few_ratio) if is_few else np.full(pairs, options.slow_ratio)
    error, relative, operations = measure_chance(delays, expected, total, pairs, options)
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
        # Waits that are a pair's own show the begin of a fault, which must not become the past it is held against.
        wary = (ratio >= options.slow_ratio) & (nearly | (has_past & (sigmas >= options.slow_sigmas)))
        wary |= nearly & ~follows
    return Score(ratio, sigmas, slow, per_byte, wary, large, costly, error, operations, has_past, doubtful, shared)


def find_disputed(waits: Delays, watched: Delays, score: Score, options: PairOptions) -> np.ndarray:
    """Return the pairs that were watched for most of what they carried and are not slow by that.

    While a sender waits for the wire, bytes are on it. Waits of which this is not true are the host's, or those of a
    receiver that does not read; acknowledgements that come late over a slow pair of the other direction do that.
    """
    pairs = len(score.slow)
    carried = sum_of(waits.bytes, waits.index, pairs)
    seen = sum_of(np.where(watched.decides, watched.bytes, 0.0), watched.index, pairs)
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
    total, leading = (sum_of(part, delays.index, len(slow)) for part in (weight, np.where(leads, weight, 0.0)))
    is_own = sum_of(np.where(delays.follows, 0.0, weight), delays.index, len(slow)) > 0.5 * total
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

    All changed as the median did, or on sockets as that of their ring did, where a slow pair holds up the others;
    what takes no longer than its link needs has not changed, and is never learnt though others of its kind are.
    Acknowledged bytes wait for nothing but their own way: what a fifth of the pairs did not take part in is no change
    of all.
    """
    usual = np.maximum(np.exp(log_delay), delays.least)
    known = np.isfinite(log_delay)
    if not known.any():
        return usual, np.ones(len(usual))
    is_learnt = np.bincount(delays.kind, weights=known, minlength=1)[delays.kind] > 0  # of its kind anything
    told = known | (is_learnt & delays.follows & (taken <= delays.least))
    changed = np.where(known, taken / usual, 1.0)
    median, least = np.quantile(changed[told], [0.5, _UNTOUCHED], method="lower")
    around = np.full(len(usual), float(median))
    around[told] = np.maximum(median_of(changed[told], delays.ring[told]), median)
    everywhere: np.ndarray = np.where(delays.follows, around, min(float(median), max(float(least), 1.0)))
    return usual, everywhere


def _change(delays: Delays, taken: np.ndarray, usual: np.ndarray, everywhere: np.ndarray, pairs: int) -> np.ndarray:
    """Return each pair's delay over its own usual one, relative to how all others changed; NaN without a past."""
    known = np.isfinite(usual)
    index, weight = delays.index[known], delays.bytes[known]
    now = sum_of(taken[known] * weight, index, pairs)
    before = sum_of((usual * everywhere)[known] * weight, index, pairs)
    enough = sum_of(weight, index, pairs) >= 0.5 * sum_of(delays.bytes, delays.index, pairs)
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
