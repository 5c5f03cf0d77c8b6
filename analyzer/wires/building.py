"""Which wire is slow: the delay matrix of one look at a job, and what is remembered for the next.

    facts = read_wires(store, context)
    matrix, memory = build_matrix(facts, memory, context, WireOptions())

Each sort of delay (`measuring`) is judged by itself (`judging`); a wire is slow when any of them says so.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from analyzer.context import Context
from analyzer.wires.ends import Ends
from analyzer.wires.inner import judge_inner
from analyzer.wires.judging import (
    Delays,
    Score,
    WireOptions,
    as_they_are,
    find_disputed,
    judge_delays,
    keep_leading,
)
from analyzer.wires.matrix import DelayMatrix
from analyzer.wires.measuring import measure
from analyzer.wires.memory import WireMemory
from analyzer.wires.reading import WireFacts


def build_matrix(
    facts: WireFacts, memory: WireMemory, context: Context, options: WireOptions
) -> tuple[DelayMatrix | None, WireMemory]:
    """Return the delay matrix of a look, none when too few wires can be compared, and what is remembered of it."""
    measured = measure(facts, context, options)
    inner, memory = judge_inner(facts.inner, memory, context, options)
    wires = len(measured.ends.wires)
    if wires < options.min_wires and inner is None:
        return None, memory
    window_ns = context.window.end_ns - context.window.start_ns
    if measured.transits and not memory.has_past:
        # Wires over sockets differ by nature, and nothing yet tells by how much: only what nobody can miss.
        options = replace(options, hot_ratio=options.few_ratio)
    scores = []
    # Waits are all that the wire took, so what they cost the window is known; transits are samples.
    for delays, span_ns in [(measured.waits, window_ns), *((delays, 0) for delays in measured.transits)]:
        score, memory = _judge(delays, memory, wires, span_ns, options)
        scores.append(score)
    for delays, score in zip(measured.transits, scores[1:], strict=True):
        disputed = find_disputed(measured.waits, delays, score, options)
        scores = [replace(each, hot=each.hot & ~disputed) for each in scores]
    return replace(_join(measured.ends, facts, scores, options), inner=inner), memory


def _judge(
    delays: Delays, memory: WireMemory, wires: int, span_ns: int, options: WireOptions
) -> tuple[Score, WireMemory]:
    """Return how slow each wire is by one sort of delays, and the memory with what was usual in them."""
    score = judge_delays(delays, memory.recall(delays.key), wires, span_ns, options)
    memory = _learn(memory, delays, score)
    if not delays.is_net.any():
        return replace(score, hot=keep_leading(delays, score.hot, options)), memory
    # What is taken off is uncertain, so waits must be long as they are, too.
    raw = as_they_are(delays)
    checked = judge_delays(raw, memory.recall(raw.key), wires, span_ns, options)
    leading = keep_leading(delays, score.hot & checked.large, options)
    is_long = ~(checked.sigmas < options.raw_sigmas)
    return replace(score, hot=leading & is_long), _learn(memory, raw, checked)


def find_starved(flushes: pa.Table, options: WireOptions) -> frozenset[str]:
    """Return the hosts whose proxy threads do not keep up: they see late what the network has long done."""
    if flushes.num_rows < 2:
        return frozenset()
    waits = flushes["step_flush_ns"].to_numpy().astype(np.float64)
    usual = float(np.quantile(waits, 0.5, method="lower"))
    slow = waits > max(options.starved_ns, options.starved_ratio * usual)
    return frozenset(np.array(flushes["host"].to_pylist(), dtype=object)[slow].tolist())


def _learn(memory: WireMemory, delays: Delays, score: Score) -> WireMemory:
    """Return the memory with this look's usual delays; what looks slow is not usual."""
    told = delays.ns_per_byte > np.where(delays.follows, delays.least, 0.0)  # else it is only known to be short
    calm = ~score.wary[delays.place] & told
    return memory.learn(delays.key[calm], np.log(np.maximum(delays.ns_per_byte, delays.least)[calm]))


def _join(ends: Ends, facts: WireFacts, scores: Sequence[Score], options: WireOptions) -> DelayMatrix:
    """Return the matrix of all sorts of delays: for a wire speaks the first that calls it slow, else the first."""
    ratio, sigmas, per_byte = (
        np.stack([getattr(score, name) for score in scores]) for name in ("ratio", "sigmas", "ns_per_byte")
    )
    hot = np.stack([score.hot for score in scores])
    is_slow: np.ndarray = np.logical_or.reduce(hot, axis=0)
    known = np.isfinite(ratio)
    speaker = np.where(is_slow, hot.argmax(axis=0), known.argmax(axis=0))
    wire = np.arange(len(ends.wires))
    return DelayMatrix(
        wires=ends.wires,
        transports=frozenset(facts.waits["transport"].to_pylist()),
        ratio=np.nan_to_num(ratio[speaker, wire], nan=1.0),
        sigmas=np.nan_to_num(sigmas[speaker, wire], nan=0.0),
        hot=is_slow,
        ns_per_byte=np.nan_to_num(per_byte[speaker, wire], nan=0.0),
        starved=find_starved(facts.flushes, options),
    )
