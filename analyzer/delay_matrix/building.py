"""Which pair is slow: the delay matrix of one evaluation of a job, and what is remembered for the next.

    facts = read_pairs(store, context)
    matrix, memory = build_matrix(facts, memory, context, PairOptions())

Each sort of delay (`measuring`) is judged by itself (`judging`); a pair is slow when any of them says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.delay_matrix.clocks import HostClocks
from analyzer.delay_matrix.ends import Ends, as_errors, as_floats, find_ends, is_equal, keys_of, kinds_of, number_rows
from analyzer.delay_matrix.inner import judge_inner
from analyzer.delay_matrix.judging import (
    Delays,
    PairOptions,
    Score,
    as_they_are,
    find_disputed,
    judge_delays,
    keep_leading,
    median_of,
)
from analyzer.delay_matrix.matrix import DelayMatrix, PairMemory, SlowPair
from analyzer.delay_matrix.reading import ACKNOWLEDGED, CONNECTION, SLACKS_NS, PairFacts, needs_transits
from analyzer.delay_matrix.sifting import sift_lags, sift_steps, sift_waits
from analyzer.windows.window import Context, End

_SIZED = (*CONNECTION, "size_class")
_KIND = ("size_class",)
_SLOWEST = 16  # rows of a kind that are remembered: of a few pairs, whose ends are not all the same
_MOST_STRANGERS = 16  # pairs without a past that are slow: a ring has one at a time, and more are no coincidence
_Sort = Literal["busy", "lag"]
_OPERATION = ("comm", "func", "size_class", "src_rank", "dst_rank")  # which its channels share
_NAMING = (*_SIZED, "func", "src_host", "dst_host", "src_nic", "dst_nic", "sport")


@dataclass(frozen=True)
class Measured:
    """The pairs of an evaluation and their delays: by waits, where these do not tell by busy times and lags too."""

    ends: Ends
    waits: Delays
    transits: tuple[Delays, ...]


def measure(facts: PairFacts, context: Context, options: PairOptions) -> Measured:
    """Return the delays of all pairs that an evaluation saw."""
    waits = sift_waits(facts.waits)
    moved: dict[_Sort, pa.Table] = {}
    if needs_transits(facts.waits) and not facts.are_durations:
        moved = {"busy": sift_steps(facts.steps), "lag": sift_lags(facts.lags, facts.steps)}
    tables = [_plain(rows) for rows in (waits, *moved.values())]
    ends = find_ends(pa.concat_tables(tables), facts.paths, context)
    owner = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    masks = (owner == number for number in range(len(tables)))
    by_wait = _wait_delays(waits, ends, next(masks), _absences(waits, facts.lags))
    if facts.are_durations:
        by_wait = replace(
            by_wait, follows=np.zeros(len(by_wait.index), bool), is_net=np.zeros(len(by_wait.index), bool)
        )
    transits = tuple(
        _transit_delays(rows, ends, next(masks), sort, _took(sort, rows, facts.clocks, context, options))
        for sort, rows in moved.items()
    )
    return Measured(ends, by_wait, transits)


def _absences(waits: pa.Table, lags: pa.Table) -> np.ndarray:
    """Return for how long each row's receiver had not yet begun what its sender had, where transfers tell it."""
    if not lags.num_rows:
        return np.zeros(waits.num_rows)
    keys, known = (keys_of(rows, "absent", CONNECTION) for rows in (waits, lags))
    order = np.lexsort((as_floats(lags["absent_ns"]), known))
    index = np.searchsorted(known[order], keys, side="right") - 1  # the longest of a connection
    found = (index >= 0) & (known[order][np.maximum(index, 0)] == keys)
    absent = as_floats(lags["absent_ns"])[order][np.maximum(index, 0)]
    result: np.ndarray = np.where(found, absent * as_floats(waits["n"]), 0.0)
    return result


def _plain(rows: pa.Table) -> pa.Table:
    """Return the columns that name a pair, in types that do not depend on where they came from."""
    texts = {"func", "src_host", "dst_host", "src_nic", "dst_nic"}
    columns = {
        name: rows[name].cast(pa.string() if name in texts else pa.uint64() if name == "comm" else pa.int64())
        for name in _NAMING
    }
    return pa.table(columns)


def _wait_delays(waits: pa.Table, ends: Ends, mine: np.ndarray, absent_ns: np.ndarray) -> Delays:
    rows = waits.filter(pa.array(ends.known[mine]))
    size, pair = as_floats(rows["bytes"]), as_floats(rows["wire_ns"])
    follows = ~is_equal(rows["transport"], ACKNOWLEDGED)
    held = np.where(follows, as_floats(rows["recv_gpu_ns"]) + absent_ns[ends.known[mine]], 0.0)
    index, ring = ends.indexes[mine[ends.known]], kinds_of(rows, ("comm", "channel"))
    return Delays(
        index=index,
        kind=kinds_of(rows, ("transport", "func", "size_class")),
        kind_key=keys_of(rows, "wait", _KIND),
        key=keys_of(rows, "wait", _SIZED),
        bytes=size,
        operation=kinds_of(rows, _OPERATION),
        operations=as_floats(rows["operations"]),
        ns_per_byte=np.maximum(pair - held, 0.0) / size,
        error=as_errors(rows) / size,
        least=ends.least_ns_per_byte[index],
        sharers=ends.sharers[index],
        crowd=_crowding(rows, ends, index, size / np.maximum(as_floats(rows["operations"]), 1.0)),
        ring=ring,
        rivals=ring,
        follows=follows,
        raw_ns_per_byte=pair / size,
        is_net=follows,
        decides=np.zeros(rows.num_rows, bool),
        is_new=np.ones(rows.num_rows, bool),
    )


def _crowding(rows: pa.Table, ends: Ends, index: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return how many times what is usual for its kind the busier end of each row may carry at once, at least 1.

    In a tree a host in the middle sends to and receives from more others than a leaf does. Sends and receives of a
    pipeline are made one after the other.
    """
    kind = kinds_of(rows, ("func", "size_class"))
    named = [np.asarray(rows[nic].is_valid()) for nic in ("src_nic", "dst_nic")]
    loads = []
    for end, has_name in zip((ends.src[index], ends.dst[index]), named, strict=True):
        group, _ = number_rows([kind, end])
        load = np.bincount(group, weights=size, minlength=len(size))[group]
        loads.append(np.where(has_name | ~named[0].any(), load, 0.0))  # of a host of which others name the NICs
    load = np.maximum(*loads)
    crowd = np.maximum(load / np.maximum(median_of(load, kind), 1e-9), 1.0)
    is_single = is_equal(rows["func"], "Send") | is_equal(rows["func"], "Recv")
    result: np.ndarray = np.where(is_single, 1.0, crowd)
    return result


@dataclass(frozen=True)
class _Took:
    """How long bytes took by both sides' word; arrays are parallel."""

    took_ns: np.ndarray  # per transfer
    noise_ns: np.ndarray  # of that may be the hosts' doing
    times: np.ndarray  # transfers that were measured
    decides: np.ndarray  # whether both ends watched every step in this evaluation, by clocks that are good enough
    is_new: np.ndarray  # whether any was measured since the evaluation before


def _transit_delays(moved: pa.Table, ends: Ends, mine: np.ndarray, sort: _Sort, took: _Took) -> Delays:
    known = ends.known[mine]
    rows, index = moved.filter(pa.array(known)), ends.indexes[mine[ends.known]]
    size = np.maximum(as_floats(rows["bytes"]), 1.0)
    ns_per_byte = np.maximum(took.took_ns[known], 0.0) / size
    return Delays(
        index=index,
        kind=kinds_of(rows, ("func", "size_class")),
        kind_key=keys_of(rows, sort, _KIND),
        key=keys_of(rows, sort, _SIZED),
        bytes=size * took.times[known],
        operation=kinds_of(rows, _OPERATION),
        operations=as_floats(rows["operations"]),
        ns_per_byte=ns_per_byte,
        error=as_errors(rows) / size,
        least=ends.least_ns_per_byte[index] + took.noise_ns[known] / size,
        sharers=ends.sharers[index],
        crowd=_crowding(rows, ends, index, size),
        ring=kinds_of(rows, ("comm", "channel")),
        rivals=kinds_of(rows, ("comm", "channel", "func", "size_class")),  # a byte of each costs something else
        follows=np.ones(rows.num_rows, bool),
        raw_ns_per_byte=ns_per_byte,
        is_net=np.zeros(rows.num_rows, bool),
        decides=took.decides[known],
        is_new=took.is_new[known],
    )


def _took(sort: _Sort, rows: pa.Table, clocks: HostClocks, context: Context, options: PairOptions) -> _Took:
    n, steps = as_floats(rows["n"]), as_floats(rows["steps"])
    errors = _clock_errors(rows, clocks, options)
    if sort == "lag":
        lag = as_floats(rows["transit_ns"]) - errors
        nowhere = np.zeros(rows.num_rows, bool)
        return _Took(lag, options.step_noise_ns * steps, n, nowhere, ~nowhere)
    times = n / np.maximum(steps, 1.0)
    hiccups = np.where(times < options.few_operations, options.few_operations, 1)
    noise = options.step_noise_ns * hiccups + options.poll_ns * steps
    newest_ns = rows["newest_ns"].to_numpy().astype(np.int64)
    decides = (
        (newest_ns >= context.window.start_ns) & (errors <= options.step_noise_ns) & (times >= options.few_operations)
    )
    return _Took(_busy_ns(rows, errors), noise, times, decides, newest_ns >= context.fresh_ns)


def _busy_ns(rows: pa.Table, errors: np.ndarray) -> np.ndarray:
    """Return the busy time that is left when every step left as much later than told as clocks allow."""
    sums = np.asarray(pc.list_flatten(rows["busy_ns"]).cast(pa.float64())).reshape(-1, len(SLACKS_NS))
    sums = np.column_stack([sums, np.zeros(len(sums))])
    slack = np.searchsorted(np.array(SLACKS_NS, np.float64), errors)
    busy: np.ndarray = sums[np.arange(len(sums)), slack]
    return busy


def _clock_errors(steps: pa.Table, clocks: HostClocks, options: PairOptions) -> np.ndarray:
    """Return by how much clocks may lengthen each transit.

    Either the hosts know their clocks, or the transits show it: were clocks apart, shortest transits would scatter by
    as much, and some would be negative.
    """
    least = as_floats(steps["least_ns"])
    if not len(least):
        return least
    src, dst = (np.array(steps[name].to_pylist(), dtype=object) for name in ("src_host", "dst_host"))
    bounds = clocks.errors_of(src) + clocks.errors_of(dst)
    bounds = bounds + _refuted(src, dst, np.nan_to_num(-least - bounds, neginf=0.0))
    scatter = float(np.median(np.abs(least - np.median(least)))) + max(float(-least.min()), 0.0)
    errors: np.ndarray = np.minimum(bounds, options.clock_margin * scatter)
    return errors


def _refuted(src: np.ndarray, dst: np.ndarray, beyond_ns: np.ndarray) -> np.ndarray:
    """Return what to add to the errors of each row's clocks where some rows arrive before they left: one jumped."""
    hosts, index = np.unique(np.concatenate([src, dst]).astype(str), return_inverse=True)
    more = np.zeros(len(hosts))
    np.maximum.at(more, index.reshape(-1), np.tile(np.maximum(beyond_ns, 0.0), 2))
    both = more[index.reshape(2, -1)]
    largest: np.ndarray = 2 * both.max(axis=0)  # the jump and what the bound already hid of it
    return largest


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
    return replace(_join(measured.ends, facts, scores, options), inner=inner, is_stale=is_stale), memory


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
    for pair in strangers if len(strangers) <= _MOST_STRANGERS else ():
        mine = np.flatnonzero(delays.index == pair)
        kinds = zip(delays.kind_key[mine].tolist(), delays.follows[mine].tolist(), strict=True)
        usual = np.array([memory.slowest_elsewhere(kind, ends.pairs[pair], follows) for kind, follows in kinds])
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


def find_starved(flushes: pa.Table, options: PairOptions) -> frozenset[str]:
    """Return the hosts whose proxy threads do not keep up: they see late what the network has long done."""
    if flushes.num_rows < 2:
        return frozenset()
    waits = flushes["step_flush_ns"].to_numpy().astype(np.float64)
    usual = float(np.quantile(waits, 0.5, method="lower"))
    slow = waits > max(options.starved_ns, options.starved_ratio * usual)
    return frozenset(np.array(flushes["host"].to_pylist(), dtype=object)[slow].tolist())


def _learn(memory: PairMemory, delays: Delays, score: Score) -> PairMemory:
    """Return the memory with this evaluation's usual delays; what looks slow is not usual."""
    exact = delays.ns_per_byte > np.where(delays.follows, delays.least, 0.0)  # else it is only known to be short
    calm = ~score.wary[delays.index] & exact & delays.is_new
    return memory.learn(delays.key[calm], np.log(np.maximum(delays.ns_per_byte, delays.least)[calm]))


def _join(ends: Ends, facts: PairFacts, scores: Sequence[Score], options: PairOptions) -> DelayMatrix:
    """Return the matrix of all sorts of delays: for a pair speaks the first that calls it slow, else the first."""
    ratio, sigmas, per_byte, error, operations, shared = (
        np.stack([getattr(score, name) for score in scores])
        for name in ("ratio", "sigmas", "ns_per_byte", "error", "operations", "shared")
    )
    slow = np.stack([score.slow for score in scores])
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
        told_since_ns=int(np.median(facts.steps["oldest_ns"].to_numpy())) if facts.steps.num_rows else None,
        starved=find_starved(facts.flushes, options),
    )
