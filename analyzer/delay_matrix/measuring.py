"""What each sort of measurement says of the delays of all pairs: waits of senders, busy times, lags of receivers.

Rows that were not measured, and those of operations that cost nothing, tell nothing of a pair and are left out first.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.delay_matrix.clocks import HostClocks
from analyzer.delay_matrix.delays import Delays, PairOptions, median_of
from analyzer.delay_matrix.ends import Ends, as_errors, as_floats, find_ends, is_equal, keys_of, kinds_of, number_rows
from analyzer.delay_matrix.reading import ACKNOWLEDGED, CONNECTION, SLACKS_NS, PairFacts, needs_transits
from analyzer.windows.window import Context

_SIZED = (*CONNECTION, "size_class")
_KIND = ("size_class",)
_Sort = Literal["busy", "lag"]
_OPERATION = ("comm", "func", "size_class", "src_rank", "dst_rank")  # which its channels share
_NAMING = (*_SIZED, "func", "src_host", "dst_host", "src_nic", "dst_nic", "sport")
_TRIFLE = 0.01  # of the time and of the bytes of all: what has less of both costs nothing, however long a byte takes


@dataclass(frozen=True)
class Measured:
    """The pairs of an evaluation and their delays: by waits, where these do not tell by busy times and lags too."""

    ends: Ends
    waits: Delays
    transits: tuple[Delays, ...]


def measure(facts: PairFacts, context: Context, options: PairOptions) -> Measured:
    """Return the delays of all pairs that an evaluation saw."""
    waits = _sift_waits(facts.waits)
    moved: dict[_Sort, pa.Table] = {}
    if needs_transits(facts.waits) and not facts.are_durations:
        moved = {"busy": _sift_steps(facts.steps), "lag": _sift_lags(facts.lags, facts.steps)}
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


def _sift_waits(waits: pa.Table) -> pa.Table:
    """Return the rows that tell a delay worth the name.

    Zero shows a coarse clock, not a fast wire. Where bytes wait in a kernel's buffer, a receiver that says nothing
    may be what they wait for.
    """
    measured = (as_floats(waits["bytes"]) > 0) & (as_floats(waits["wire_ns"]) > 0)
    present = np.asarray(waits["recv_gpu_ns"].is_valid())
    told = waits.filter(pa.array(measured & (present | is_equal(waits["transport"], ACKNOWLEDGED))))
    return _without_trifles(told, as_floats(told["wire_ns"]), as_floats(told["bytes"]))


def _sift_steps(steps: pa.Table) -> pa.Table:
    """Return the rows of operations that keep their wires busy."""
    if not steps.num_rows:
        return steps
    times, busy_ns = as_floats(steps["operations"]), as_floats(pc.list_element(steps["busy_ns"], 0))
    return _without_trifles(steps, busy_ns * times, as_floats(steps["bytes"]) * times)


def _sift_lags(lags: pa.Table, steps: pa.Table) -> pa.Table:
    """Return the rows of transfers of which much is under way at their end.

    Receives from several ranks that one channel makes at once end together, with the last of them: whose bytes came
    late, their ends do not tell, and steps do.
    """
    if not lags.num_rows:
        return lags
    lags = _without_watched_groups(lags, steps) if steps.num_rows else lags
    times, lag_ns = as_floats(lags["n"]), np.maximum(as_floats(lags["transit_ns"]), 0.0)
    return _without_trifles(lags, lag_ns * times, as_floats(lags["bytes"]) * times)


def _without_watched_groups(lags: pa.Table, steps: pa.Table) -> pa.Table:
    receiver = kinds_of(lags, ("comm", "channel", "dst_rank"))
    connection, watched = (keys_of(rows, "connection", CONNECTION) for rows in (lags, steps))
    senders = np.bincount(receiver[np.unique(connection, return_index=True)[1]], minlength=int(receiver.max()) + 1)
    is_grouped = is_equal(lags["func"], "Send") & (senders[receiver] > 1)
    return lags.filter(pa.array(~(is_grouped & np.isin(connection, watched))))


def _without_trifles(rows: pa.Table, took_ns: np.ndarray, size: np.ndarray) -> pa.Table:
    """Return the rows of functions and sizes that take time, or carry bytes, worth the name.

    A loss of four bytes that ranks add up takes microseconds a byte, over pairs that carry nothing else: what is
    usual of those, and how much it differs, would be what all others are judged by.
    """
    if not rows.num_rows:
        return rows
    kind = kinds_of(rows, ("func", "size_class"))
    shares = [np.bincount(kind, weights=part)[kind] / max(float(part.sum()), 1.0) for part in (took_ns, size)]
    return rows.filter(pa.array(np.maximum(*shares) >= _TRIFLE))


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
    crowd, flows = _crowding(rows, ends, index, size / np.maximum(as_floats(rows["operations"]), 1.0))
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
        crowd=crowd,
        flows=flows,
        ring=ring,
        rivals=ring,
        follows=follows,
        raw_ns_per_byte=pair / size,
        is_net=follows,
        decides=np.zeros(rows.num_rows, bool),
        is_new=np.ones(rows.num_rows, bool),
    )


def _crowding(rows: pa.Table, ends: Ends, index: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many times what is usual for its kind the busier end of each row may carry at once, and its own.

    In a tree a host in the middle sends to and receives from more others than a leaf does. Sends and receives of a
    pipeline are made one after the other. Both are at least 1.
    """
    kind = kinds_of(rows, ("func", "size_class"))
    named = [np.asarray(rows[nic].is_valid()) for nic in ("src_nic", "dst_nic")]
    loads = []
    for end, has_name in zip((ends.src[index], ends.dst[index]), named, strict=True):
        group, _ = number_rows([kind, end])
        load = np.bincount(group, weights=size, minlength=len(size))[group]
        loads.append(np.where(has_name | ~named[0].any(), load, 0.0))  # of a host of which others name the NICs
    load = np.maximum(*loads)
    is_single = is_equal(rows["func"], "Send") | is_equal(rows["func"], "Recv")
    crowd, flows = load / np.maximum(median_of(load, kind), 1e-9), load / np.maximum(size, 1e-9)
    return np.where(is_single, 1.0, np.maximum(crowd, 1.0)), np.where(is_single, 1.0, np.maximum(flows, 1.0))


@dataclass(frozen=True)
class _Took:
    """How long bytes took by both sides' word; arrays are parallel."""

    took_ns: np.ndarray  # per transfer
    noise_ns: np.ndarray  # of that may be the hosts' doing
    times: np.ndarray  # transfers that were measured
    trifle: np.ndarray  # nanoseconds per byte that are nothing beside what a transfer takes as a whole
    decides: np.ndarray  # whether both ends watched every step in this evaluation, by clocks that are good enough
    is_new: np.ndarray  # whether any was measured since the evaluation before


def _transit_delays(moved: pa.Table, ends: Ends, mine: np.ndarray, sort: _Sort, took: _Took) -> Delays:
    known = ends.known[mine]
    rows, index = moved.filter(pa.array(known)), ends.indexes[mine[ends.known]]
    size = np.maximum(as_floats(rows["bytes"]), 1.0)
    ns_per_byte = np.maximum(took.took_ns[known], 0.0) / size
    crowd, flows = _crowding(rows, ends, index, size)
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
        least=np.maximum(ends.least_ns_per_byte[index] + took.noise_ns[known] / size, took.trifle[known]),
        sharers=ends.sharers[index],
        crowd=crowd,
        flows=flows,
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
    times = n if sort == "lag" else n / np.maximum(steps, 1.0)
    hiccups = np.where(times < options.few_operations, options.few_operations, 1)
    noise = options.step_noise_ns * hiccups + options.poll_ns * steps  # a thread that woke finds all that came in
    trifle = options.min_spread * as_floats(rows["pace"])
    if sort == "lag":
        nowhere = np.zeros(rows.num_rows, bool)
        return _Took(as_floats(rows["transit_ns"]) - errors, noise, n, trifle, nowhere, ~nowhere)
    newest_ns = rows["newest_ns"].to_numpy().astype(np.int64)
    decides = (
        (newest_ns >= context.window.start_ns) & (errors <= options.step_noise_ns) & (times >= options.few_operations)
    )
    return _Took(_busy_ns(rows, errors), noise, times, trifle, decides, newest_ns >= context.fresh_ns)


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
