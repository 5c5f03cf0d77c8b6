"""Which pair is slow: the delay matrix of one evaluation of a job, and what is remembered for the next.

    facts = read_pairs(store, context)
    matrix, memory = build_matrix(facts, memory, context, PairOptions())

Each sort of delay (`measuring`) is judged by itself (`judging`); a pair is slow when any of them says so.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analyzer.delay_matrix.delays import Delays, PairOptions, as_they_are, sum_of
from analyzer.delay_matrix.ends import Ends
from analyzer.delay_matrix.inner import judge_inner
from analyzer.delay_matrix.judging import Score, find_disputed, judge_delays, keep_leading
from analyzer.delay_matrix.matrix import DelayMatrix, PairMemory, SlowPair
from analyzer.delay_matrix.measuring import measure
from analyzer.delay_matrix.reading import PairFacts
from analyzer.windows.window import Context, End

_SLOWEST = 16  # rows of a kind that are remembered: of a few pairs, whose ends are not all the same
_MOST_STRANGERS = 16  # pairs without a past that are slow: a ring has one at a time, and more are no coincidence


def build_matrix(
    facts: PairFacts, memory: PairMemory, context: Context, options: PairOptions
) -> tuple[DelayMatrix | None, PairMemory]:
    """Return the delay matrix, none when too few pairs can be compared, and what is remembered of it."""
    measured = measure(facts, context, options)
    inner, memory = judge_inner(facts.inner, memory, context, options)
    pairs = len(measured.ends.pairs)
    if pairs < options.min_pairs and inner is None:
        return None, memory
    window_ns = context.window.end_ns - context.window.start_ns
    if measured.transits and not memory.has_past:
        # Pairs over sockets differ by nature, and nothing yet tells by how much: only what nobody can miss.
        options = replace(options, slow_ratio=options.few_ratio)
    scores = []
    # Waits are all that the wire took, so what they cost the window is known; transits are samples.
    for delays, span_ns in [(measured.waits, window_ns), *((delays, 0) for delays in measured.transits)]:
        score, memory = _judge(delays, memory, measured.ends, span_ns, options)
        scores.append(score)
    for delays, score in zip(measured.transits, scores[1:], strict=True):
        disputed = find_disputed(measured.waits, delays, score, options)
        scores = [replace(each, slow=each.slow & ~disputed) for each in scores]
    is_stale = not any(delays.is_new.any() for delays in (measured.waits, *measured.transits)) and inner is None
    hidden = _find_hidden(measured.waits, scores[1:], pairs)
    return replace(_join(measured.ends, facts, scores, hidden, options), inner=inner, is_stale=is_stale), memory


def _find_hidden(waits: Delays, transits: Sequence[Score], pairs: int) -> np.ndarray:
    """Return the pairs of which nothing tells how long the wire takes, be it slow or not.

    Where a sender waits for less than its link needs, a buffer took the bytes. It takes as many of all transfers of
    a kind: where no pair of a kind waits for longer, none of them would show a slow wire.
    """
    shows = waits.raw_ns_per_byte >= waits.least
    shows_kind = np.bincount(waits.kind, weights=shows | ~waits.follows, minlength=1) > 0
    seen = sum_of(shows_kind[waits.kind].astype(np.float64), waits.index, pairs) > 0
    watched = np.logical_or.reduce([np.isfinite(score.ratio) for score in transits], initial=False)
    hidden: np.ndarray = ~seen & ~watched
    return hidden


def _judge(
    delays: Delays, memory: PairMemory, ends: Ends, span_ns: int, options: PairOptions
) -> tuple[Score, PairMemory]:
    """Return how slow each pair is by one sort of delays, and the memory with what was usual in them."""
    score = judge_delays(delays, memory.recall(delays.key), len(ends.pairs), span_ns, options)
    raw, is_net = as_they_are(delays), delays.is_net.any()
    checked = judge_delays(raw, memory.recall(raw.key), len(ends.pairs), span_ns, options) if is_net else score
    agreed = _agree(score, checked, options) if is_net else score.slow
    slow = _keep_slowest(delays, agreed, score, memory, ends, options)
    slow |= _find_beside(slow, score, checked, ends, options)
    is_first = not memory.slowest.keys() & set(
        np.unique(delays.kind_key).tolist()
    )  # nobody was seen before: all may be so
    memory = memory.learn_slowest(_find_slowest(delays, ends, slow & ~is_first))
    memory = _learn(memory, delays, score)
    if is_net:  # long only for what its receiver holds up
        memory = _learn(memory, raw, replace(checked, wary=checked.wary & score.wary))
    return replace(score, slow=keep_leading(delays, slow, options)), memory


def _agree(score: Score, raw: Score, options: PairOptions) -> np.ndarray:
    """Return which pairs are slow by what is left of their waits and by the waits as they are.

    What is taken off is uncertain, so that one has to stand out and the other must not deny it; where most is left,
    the two are the same, and the one that differs less between pairs tells.
    """
    left = score.ns_per_byte / np.maximum(raw.ns_per_byte, 1e-9)
    by_rest = score.slow & ((left >= options.min_left) | ~(raw.sigmas < options.raw_sigmas))
    by_all = score.costly & (score.sigmas >= options.raw_sigmas) & raw.slow & (left >= options.nearly_all)
    agreed: np.ndarray = (by_rest | by_all) & raw.large
    return agreed


def _find_beside(slow: np.ndarray, score: Score, raw: Score, ends: Ends, options: PairOptions) -> np.ndarray:
    """Return the pairs that are nearly slow and share an end with one that is, by no more than twice as much.

    One of many that is at the edge of noise is nothing; at a NIC of which another pair is slow, it tells which end.
    """
    beside = np.zeros(len(slow), bool)
    excess: dict[End, float] = {}
    for pair in np.flatnonzero(slow).tolist():
        for end in (ends.pairs[pair].src, ends.pairs[pair].dst):
            excess[end] = max(excess.get(end, 0.0), math.log(score.ratio[pair]))
    for pair in np.flatnonzero(score.doubtful & raw.doubtful & ~slow).tolist() if excess else ():
        most = max(excess.get(ends.pairs[pair].src, 0.0), excess.get(ends.pairs[pair].dst, 0.0))
        beside[pair] = most > 0 and math.log(score.ratio[pair]) >= options.beside_part * most
    return beside


def _keep_slowest(
    delays: Delays, slow: np.ndarray, score: Score, memory: PairMemory, ends: Ends, options: PairOptions
) -> np.ndarray:
    """Return the slow pairs without those that have no past and take no longer than others did when it was they.

    A ring is as fast as its slowest pair, on which bytes then wait, while all others have time to spare. In a healthy
    one that is now this pair and now that one.
    """
    kept, taken = slow.copy(), np.maximum(delays.ns_per_byte, delays.least)
    strangers = np.flatnonzero(slow & ~score.has_past).tolist()
    beside = {(ends.pairs[pair].src.host, ends.pairs[pair].dst.host) for pair in strangers}
    for pair in strangers if len(strangers) <= _MOST_STRANGERS else ():
        mine = np.flatnonzero(delays.index == pair)
        kinds = zip(delays.kind_key[mine].tolist(), delays.follows[mine].tolist(), strict=True)
        usual = np.array(
            [memory.slowest_elsewhere(kind, ends.pairs[pair], follows, beside) for kind, follows in kinds]
        )
        carried = delays.bytes[mine]
        kept[pair] = (taken[mine] * carried).sum() >= options.elsewhere_ratio * (usual * carried).sum()
    return kept


def _find_slowest(delays: Delays, ends: Ends, slow: np.ndarray) -> dict[int, tuple[SlowPair, ...]]:
    """Return by kind the pairs that take longest, of those that are not slow."""
    usual = np.flatnonzero(~slow[delays.index] & delays.is_new)
    taken = np.maximum(delays.ns_per_byte, delays.least)[usual]
    order = usual[np.lexsort((-taken, delays.kind_key[usual]))]
    kinds, first = np.unique(delays.kind_key[order], return_index=True)
    found = {}
    for kind, begin in zip(kinds.tolist(), first.tolist(), strict=True):
        rows = [row for row in order[begin : begin + _SLOWEST].tolist() if delays.kind_key[row] == kind]
        pairs = [(max(delays.ns_per_byte[row], delays.least[row]), ends.pairs[delays.index[row]]) for row in rows]
        found[kind] = tuple(SlowPair(float(delay), pair.src.host, pair.dst.host) for delay, pair in pairs)
    return found


def _learn(memory: PairMemory, delays: Delays, score: Score) -> PairMemory:
    """Return the memory with this evaluation's usual delays; what looks slow is not usual."""
    exact = delays.ns_per_byte > np.where(delays.follows, delays.least, 0.0)  # else it is only known to be short
    calm = ~score.wary[delays.index] & exact & delays.is_new
    return memory.learn(delays.key[calm], np.log(np.maximum(delays.ns_per_byte, delays.least)[calm]))


def _join(
    ends: Ends, facts: PairFacts, scores: Sequence[Score], hidden: np.ndarray, options: PairOptions
) -> DelayMatrix:
    """Return the matrix of all sorts of delays: for a pair speaks the first that calls it slow, else the first."""
    ratio, sigmas, per_byte, error, operations, shared = (
        np.stack([getattr(score, name) for score in scores])
        for name in ("ratio", "sigmas", "ns_per_byte", "error", "operations", "shared")
    )
    slow, has_past = (np.stack([getattr(score, name) for score in scores]) for name in ("slow", "has_past"))
    is_slow: np.ndarray = np.logical_or.reduce(slow, axis=0)
    known = np.isfinite(ratio)
    most = float(np.max(ratio, initial=1.0, where=slow & known)) - 1
    is_slow &= ((ratio - 1 >= options.least_part * most) & slow).any(axis=0)
    speaker = np.where(is_slow, slow.argmax(axis=0), known.argmax(axis=0))
    pair = np.arange(len(ends.pairs))
    return DelayMatrix(
        pairs=ends.pairs,
        transports=frozenset(facts.waits["transport"].to_pylist()),
        ratio=np.nan_to_num(ratio[speaker, pair], nan=1.0),
        sigmas=np.nan_to_num(sigmas[speaker, pair], nan=0.0),
        slow=is_slow,
        ns_per_byte=np.nan_to_num(per_byte[speaker, pair], nan=0.0),
        error=np.nan_to_num(error[speaker, pair], nan=np.inf),
        operations=operations[speaker, pair],
        shared=np.nan_to_num(shared[speaker, pair], nan=1.0),
        hidden=hidden & ~is_slow,
        has_past=has_past[speaker, pair],
        told_since_ns=int(np.median(facts.steps["oldest_ns"].to_numpy())) if facts.steps.num_rows else None,
    )
