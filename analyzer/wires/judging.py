"""How slow each wire is: against its peers, and against what it needed itself before.

Traffic of one kind is homogeneous, so wires that carry the same function and size class over the same transport need
about the same time per byte; the median of a kind stands for it as long as fewer than half of its wires are slow. A
wire's ratio is the time that it took over the time that its bytes take at the medians of their kinds:

    ratio = sum(bytes * delay) / sum(bytes * max(median of kind, least))

so that what costs the job most counts most, and no wire is slow that needs no longer than its link allows. Where
wires are unequal by nature (colliding paths, trees, experts) the past decides: the same ratio against the wire's own
usual delays, divided by how much all others changed. Slow is what stands out both ways.

Cost: O(rows log rows). Reference: the delay matrix of C4D (HPCA'25).
"""

from dataclasses import dataclass, replace

import numpy as np

from analyzer.wires.memory import Past

_MAD_TO_SIGMA = 1.4826  # for normally distributed excesses
_MEAN_TO_SIGMA = 1.2533  # likewise, from the mean absolute deviation
_RAW = np.uint64(0x5BF0_3635_9C1D_7A11)  # any pattern of bits: tells keys of raw delays from those of others
_ABOVE, _ABOVE_SIGMAS = 0.65, 0.385  # a quantile above the median, and where it lies when excesses are normal


@dataclass(frozen=True, slots=True)
class WireOptions:
    """When a wire counts as slow."""

    min_wires: int = 2  # alone, a wire has nobody to be held against
    few_wires: int = 8  # fewer, and a single slow one moves the spread that it is judged by
    hot_ratio: float = 1.25  # below, a job loses less than restarting it costs, and congestion looks the same
    few_transfers: int = 8  # fewer on one wire, and a single hiccup is what was measured
    few_ratio: float = 2.0  # with few wires or transfers only what nobody can miss
    hot_sigmas: float = 6.0  # one false wire in 10^9 if excesses were normal; they are not, hence the ratio too
    raw_sigmas: float = 3.0  # of waits as they are: with those of what is left, enough; receivers make them swing
    min_spread: float = 0.02  # a cluster quieter than 2 % would make every hiccup many sigmas
    min_lost_share: float = 0.005  # of the window; what costs half a percent of the time is not worth a word
    min_part: float = 0.25  # of the excess of its ring's slowest wire: less costs nothing while that one is there
    min_raw_part: float = (
        0.6  # likewise, of waits as they are: behind a slow wire bursts wait too, but less than half
    )
    step_noise_ns: float = 300e3  # to wake a thread on a busy host; nothing shorter is the wire's
    poll_ns: float = 10e3  # per step: a proxy looks at all its connections in turn
    min_watched: float = 0.5  # of a wire's bytes step by step by both ends, for that to count more than its waits
    few_operations: int = 3  # fewer that were watched, and their median is what as many wake-ups made of it
    clock_margin: float = 3.0  # how many times the scatter of clocks a transit must exceed
    starved_ratio: float = 5.0  # of a host's flush wait over what others need
    starved_ns: float = 200e3  # per step; a healthy flush takes microseconds, a starved proxy a scheduler's slice


@dataclass(frozen=True)
class Delays:
    """Delays of one sort; arrays are parallel, one entry per row."""

    place: np.ndarray  # number of its wire
    kind: np.ndarray  # rows of one number are comparable
    key: np.ndarray  # u64, what its past is remembered by
    bytes: np.ndarray
    n: np.ndarray  # transfers, or operations, that were measured
    ns_per_byte: np.ndarray
    least: np.ndarray  # nanoseconds per byte below which it is never slow
    sharers: np.ndarray  # wires that share its most crowded link
    ring: np.ndarray  # rows of one number belong to one channel of one communicator
    rivals: np.ndarray  # of rows of one number, the slowest leads
    follows: np.ndarray  # whether its delay also shows what happens to others of its ring
    raw_ns_per_byte: np.ndarray  # before what the receiver held up was taken off
    is_net: np.ndarray  # whether anything could be taken off, which is uncertain
    decides: np.ndarray  # whether it is all that the wire took: where it is short, the wire is not slow


@dataclass(frozen=True)
class Score:
    """How slow each wire is; arrays are by number of the wire, NaN where it has no row of this sort."""

    ratio: np.ndarray
    sigmas: np.ndarray
    hot: np.ndarray
    ns_per_byte: np.ndarray
    wary: np.ndarray  # slow enough not to be learnt as usual
    large: np.ndarray  # slow enough to matter, if only it is no noise


def judge_delays(delays: Delays, past: Past, wires: int, window_ns: int, options: WireOptions) -> Score:
    """Return how slow each wire is, held against its peers and its past."""
    taken = np.maximum(delays.ns_per_byte, delays.least)
    expected = _expect(delays, taken)
    weight = delays.bytes
    total = _sum(taken * weight, delays.place, wires)
    normal = _sum(expected * weight, delays.place, wires)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = total / normal
        lost = (total - normal) / max(window_ns, 1)
        per_byte = _sum(delays.ns_per_byte * weight, delays.place, wires) / _sum(weight, delays.place, wires)
    changed = _change(delays, taken, past.log_delay, wires)
    is_few = np.isfinite(ratio).sum() < options.few_wires
    spread_peers = _spread(np.log(ratio), options.min_spread * (5 if is_few else 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        swing = _sum(past.swing * weight, delays.place, wires) / _sum(weight, delays.place, wires)
    spread_past = np.maximum(_spread(np.log(changed), options.min_spread), _MEAN_TO_SIGMA * swing)
    has_past = np.isfinite(changed)
    is_brief = _sum(delays.n, delays.place, wires) < options.few_transfers
    hot_ratio = np.where(is_few | is_brief, options.few_ratio, options.hot_ratio)
    with np.errstate(invalid="ignore"):
        sigmas = np.where(has_past, np.log(changed) / spread_past, np.log(ratio) / spread_peers)
        slow = np.where(has_past, np.minimum(ratio, changed), ratio)
        large = (slow >= hot_ratio) & (lost >= options.min_lost_share)
        hot = large & (sigmas >= options.hot_sigmas)
        wary = (ratio >= options.hot_ratio) & (slow > 1 + (hot_ratio - 1) / 2)
    return Score(ratio, sigmas, hot, per_byte, wary, large)


def as_they_are(delays: Delays) -> Delays:
    """Return the delays before anything was taken off, with a past of their own."""
    return replace(delays, ns_per_byte=delays.raw_ns_per_byte, key=delays.key ^ _RAW)


def find_disputed(waits: Delays, watched: Delays, score: Score, options: WireOptions) -> np.ndarray:
    """Return the wires that were watched for most of what they carried and are not slow by that.

    While a sender waits for its wire, bytes are on it. Waits of which this is not true are the host's, or those of a
    receiver that does not read; acknowledgements that come late over a slow wire of the other direction do that.
    """
    wires = len(score.hot)
    carried = _sum(waits.bytes, waits.place, wires)
    seen = _sum(np.where(watched.decides, watched.bytes, 0.0), watched.place, wires)
    result: np.ndarray = (seen > 0) & (seen >= options.min_watched * carried) & ~score.large
    return result


def keep_leading(delays: Delays, hot: np.ndarray, options: WireOptions) -> np.ndarray:
    """Return which slow wires remain when those are left out that only follow a slower one of the same ring.

    On sockets a slow wire feeds the rest of its ring in bursts and its acknowledgements share a NIC with other data,
    so others look slow too, but by less; and those before it wait for a receiver that does not consume.
    """
    if not (hot.any() and delays.follows.any()):
        return hot
    weight = np.where(hot[delays.place], delays.bytes, 0.0)
    leads = _is_large(delays.ns_per_byte, delays, weight > 0, options.min_part)
    if delays.is_net.any():
        leads &= _is_large(delays.raw_ns_per_byte, delays, weight > 0, options.min_raw_part)
    total, leading = (_sum(part, delays.place, len(hot)) for part in (weight, np.where(leads, weight, 0.0)))
    is_own = _sum(np.where(delays.follows, 0.0, weight), delays.place, len(hot)) > 0.5 * total
    return hot & ((leading >= 0.5 * total) | is_own)


def _is_large(values: np.ndarray, delays: Delays, of: np.ndarray, part: float) -> np.ndarray:
    """Return which values exceed the usual by at least this part of what any of their rivals does, among those."""
    excess = values - np.maximum(_usual(values, delays), delays.least)
    largest = np.zeros(int(delays.rivals.max(initial=-1)) + 1)
    np.maximum.at(largest, delays.rivals[of], excess[of])
    result: np.ndarray = excess >= part * largest[delays.rivals]
    return result


def _expect(delays: Delays, taken: np.ndarray) -> np.ndarray:
    """Return the usual delay of each row's kind and ring, longer where more wires than usual share a link."""
    crowd = np.maximum(delays.sharers / np.maximum(median_of(delays.sharers, delays.kind), 1.0), 1.0)
    expected: np.ndarray = np.maximum(_usual(taken, delays), delays.least) * crowd
    return expected


def _usual(values: np.ndarray, delays: Delays) -> np.ndarray:
    """Return the median of each row's kind, and where a ring slows down as a whole, that of its ring."""
    usual = median_of(values, delays.kind)
    return np.where(delays.follows, np.maximum(usual, median_of(values, delays.ring)), usual)


def _change(delays: Delays, taken: np.ndarray, past: np.ndarray, wires: int) -> np.ndarray:
    """Return each wire's delay over its own usual one, relative to how all others changed; NaN without a past."""
    known = np.isfinite(past)
    if not known.any():
        return np.full(wires, np.nan)
    usual = np.maximum(np.exp(np.where(known, past, 0.0)), delays.least)
    changed = taken[known] / usual[known]
    everywhere = float(np.quantile(changed, 0.5, method="lower"))
    around = np.where(delays.follows[known], median_of(changed, delays.ring[known]), everywhere)
    place, weight = delays.place[known], delays.bytes[known]
    now = _sum(taken[known] * weight, place, wires)
    before = _sum(usual[known] * np.maximum(around, everywhere) * weight, place, wires)
    enough = _sum(weight, place, wires) >= 0.5 * _sum(delays.bytes, delays.place, wires)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(enough & (before > 0), now / before, np.nan)


def _spread(excess: np.ndarray, least: float) -> float:
    """Return a standard deviation that outliers do not move, nor wires that are faster than usual.

    The median absolute deviation stands while slow wires are few; just above the median one still sees noise alone
    when a third of them is slow, or when others got faster because the slow ones hold up the traffic.
    """
    seen = excess[np.isfinite(excess)]
    if not len(seen):
        return least
    middle, above = np.quantile(seen, [0.5, _ABOVE], method="lower")
    deviation = float(np.quantile(np.abs(seen - middle), 0.5, method="lower")) * _MAD_TO_SIGMA
    return max(min(deviation, float(above - middle) / _ABOVE_SIGMAS), least)


def _sum(values: np.ndarray, place: np.ndarray, wires: int) -> np.ndarray:
    return np.bincount(place, weights=values, minlength=wires)


def median_of(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return for each value the lower median of its group.

    >>> median_of(np.array([3.0, 1.0, 2.0, 9.0]), np.array([0, 0, 0, 1])).tolist()
    [2.0, 2.0, 2.0, 9.0]
    """
    if not len(values):
        return values
    order = np.lexsort((values, group))
    ranked, first, count = np.unique(group[order], return_index=True, return_counts=True)
    middle = values[order][first + (count - 1) // 2]
    result: np.ndarray = middle[np.searchsorted(ranked, group)]
    return result
