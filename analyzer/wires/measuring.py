"""How long each wire took, in nanoseconds per byte: from waits, steps of single operations, and ends of transfers.

On InfiniBand a sender's wire time ends with the acknowledgement, so it is the delay. On sockets it ends when the
kernel took the bytes: small messages hide in its buffer, and a receiver whose GPU does not consume fills it. So the
receiver's GPU wait is taken off, and what both sides together tell says the rest, less what clocks may be off: for
how long a wire was busy with an operation, and what was under way at the ends of transfers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.clocks import HostClocks
from analyzer.context import Context
from analyzer.wires.columns import as_floats, is_equal, keys_of, kinds_of
from analyzer.wires.ends import Ends, find_ends
from analyzer.wires.judging import Delays, WireOptions
from analyzer.wires.matching import SLACKS_NS
from analyzer.wires.reading import ACKNOWLEDGED, CONNECTION, WireFacts, needs_transits

_SIZED = (*CONNECTION, "size_class")
_Sort = Literal["busy", "lag"]
_NAMING = (*_SIZED, "func", "src_host", "dst_host", "src_nic", "dst_nic", "sport")


@dataclass(frozen=True)
class Measured:
    """The wires of a look and their delays: by waits, and where these do not tell, by busy times and lags too."""

    ends: Ends
    waits: Delays
    transits: tuple[Delays, ...]


def measure(facts: WireFacts, context: Context, options: WireOptions) -> Measured:
    """Return the delays of all wires that a look saw."""
    waits = _measured(facts.waits)
    moved: dict[_Sort, pa.Table] = {}
    if needs_transits(facts.waits):
        moved = {"busy": facts.steps, "lag": _told_alone(facts.lags, facts.steps)}
    tables = [_plain(rows) for rows in (waits, *moved.values())]
    ends = find_ends(pa.concat_tables(tables), facts.paths, context)
    masks = _masks(tables)
    by_wait = _wait_delays(waits, ends, next(masks), _absences(waits, facts.lags))
    transits = tuple(
        _transit_delays(rows, ends, next(masks), sort, _took(sort, rows, facts.clocks, context, options))
        for sort, rows in moved.items()
    )
    return Measured(ends, by_wait, transits)


def _told_alone(lags: pa.Table, steps: pa.Table) -> pa.Table:
    """Return the lags without those of grouped receives whose steps were watched.

    Receives from several ranks that one channel makes at once end together, with the last of them: whose bytes came
    late, their ends do not tell, and steps do.
    """
    if not lags.num_rows or not steps.num_rows:
        return lags
    receiver = kinds_of(lags, ("comm", "channel", "dst_rank"))
    connection, watched = (keys_of(rows, "connection", CONNECTION) for rows in (lags, steps))
    senders = np.bincount(receiver[np.unique(connection, return_index=True)[1]], minlength=int(receiver.max()) + 1)
    is_grouped = is_equal(lags["func"], "Send") & (senders[receiver] > 1)
    return lags.filter(pa.array(~(is_grouped & np.isin(connection, watched))))


def _masks(tables: list[pa.Table]) -> Iterator[np.ndarray]:
    """Yield for each table which of all rows are its own."""
    owner = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    return (owner == number for number in range(len(tables)))


def _measured(waits: pa.Table) -> pa.Table:
    """Return the rows that tell a delay.

    Zero shows a coarse clock, not a fast wire. Where bytes wait in a kernel's buffer, a receiver that says nothing
    may be what they wait for.
    """
    told = (as_floats(waits["bytes"]) > 0) & (as_floats(waits["wire_ns"]) > 0)
    heard = np.asarray(waits["recv_gpu_ns"].is_valid())
    return waits.filter(pa.array(told & (heard | is_equal(waits["transport"], ACKNOWLEDGED))))


def _absences(waits: pa.Table, lags: pa.Table) -> np.ndarray:
    """Return for how long each row's receiver had not yet begun what its sender had, where transfers tell it."""
    if not lags.num_rows:
        return np.zeros(waits.num_rows)
    keys, known = (keys_of(rows, "absent", CONNECTION) for rows in (waits, lags))
    order = np.lexsort((as_floats(lags["absent_ns"]), known))
    place = np.searchsorted(known[order], keys, side="right") - 1  # the longest of a connection
    found = (place >= 0) & (known[order][np.maximum(place, 0)] == keys)
    absent = as_floats(lags["absent_ns"])[order][np.maximum(place, 0)]
    result: np.ndarray = np.where(found, absent * as_floats(waits["n"]), 0.0)
    return result


def _plain(rows: pa.Table) -> pa.Table:
    """Return the columns that name a wire, in types that do not depend on where they came from."""
    texts = {"func", "src_host", "dst_host", "src_nic", "dst_nic"}
    columns = {
        name: rows[name].cast(pa.string() if name in texts else pa.uint64() if name == "comm" else pa.int64())
        for name in _NAMING
    }
    return pa.table(columns)


def _wait_delays(waits: pa.Table, ends: Ends, mine: np.ndarray, absent_ns: np.ndarray) -> Delays:
    rows = waits.filter(pa.array(ends.known[mine]))
    size, wire = as_floats(rows["bytes"]), as_floats(rows["wire_ns"])
    follows = ~is_equal(rows["transport"], ACKNOWLEDGED)
    held = np.where(follows, as_floats(rows["recv_gpu_ns"]) + absent_ns[ends.known[mine]], 0.0)
    place, ring = ends.places[mine[ends.known]], kinds_of(rows, ("comm", "channel"))
    return Delays(
        place=place,
        kind=kinds_of(rows, ("transport", "func", "size_class")),
        key=keys_of(rows, "wait", _SIZED),
        bytes=size,
        n=as_floats(rows["n"]),
        ns_per_byte=np.maximum(wire - held, 0.0) / size,
        least=ends.least_ns_per_byte[place],
        sharers=ends.sharers[place],
        ring=ring,
        rivals=ring,
        follows=follows,
        raw_ns_per_byte=wire / size,
        is_net=follows,
        decides=np.zeros(rows.num_rows, bool),
    )


@dataclass(frozen=True)
class _Took:
    """How long bytes took by both sides' word; arrays are parallel."""

    took_ns: np.ndarray  # per transfer
    noise_ns: np.ndarray  # of that may be the hosts' doing
    times: np.ndarray  # transfers that were measured
    decides: np.ndarray  # whether both ends watched every step in this look, by clocks that are good enough


def _transit_delays(moved: pa.Table, ends: Ends, mine: np.ndarray, sort: _Sort, took: _Took) -> Delays:
    known = ends.known[mine]
    rows, place = moved.filter(pa.array(known)), ends.places[mine[ends.known]]
    size = np.maximum(as_floats(rows["bytes"]), 1.0)
    ns_per_byte = np.maximum(took.took_ns[known], 0.0) / size
    return Delays(
        place=place,
        kind=kinds_of(rows, ("func", "size_class")),
        key=keys_of(rows, sort, _SIZED),
        bytes=size * took.times[known],
        n=as_floats(rows["n"]),
        ns_per_byte=ns_per_byte,
        least=ends.least_ns_per_byte[place] + took.noise_ns[known] / size,
        sharers=ends.sharers[place],
        ring=kinds_of(rows, ("comm", "channel")),
        rivals=kinds_of(rows, ("comm", "channel", "func", "size_class")),  # a byte of each costs something else
        follows=np.ones(rows.num_rows, bool),
        raw_ns_per_byte=ns_per_byte,
        is_net=np.zeros(rows.num_rows, bool),
        decides=took.decides[known],
    )


def _took(sort: _Sort, rows: pa.Table, clocks: HostClocks, context: Context, options: WireOptions) -> _Took:
    n, steps = as_floats(rows["n"]), as_floats(rows["steps"])
    errors = _clock_errors(rows, clocks, options)
    if sort == "lag":
        lag = as_floats(rows["transit_ns"]) - errors
        return _Took(lag, options.step_noise_ns * steps, n, np.zeros(rows.num_rows, bool))
    times = n / np.maximum(steps, 1.0)
    hiccups = np.where(times < options.few_operations, options.few_operations, 1)
    noise = options.step_noise_ns * hiccups + options.poll_ns * steps
    is_new = rows["newest_ns"].to_numpy().astype(np.int64) >= context.window.start_ns
    decides = is_new & (errors <= options.step_noise_ns) & (times >= options.few_operations)
    return _Took(_busy_ns(rows, errors), noise, times, decides)


def _busy_ns(rows: pa.Table, errors: np.ndarray) -> np.ndarray:
    """Return the busy time that is left when every step left as much later than told as clocks allow."""
    sums = np.asarray(pc.list_flatten(rows["busy_ns"]).cast(pa.float64())).reshape(-1, len(SLACKS_NS))
    sums = np.column_stack([sums, np.zeros(len(sums))])
    slack = np.searchsorted(np.array(SLACKS_NS, np.float64), errors)
    busy: np.ndarray = sums[np.arange(len(sums)), slack]
    return busy


def _clock_errors(steps: pa.Table, clocks: HostClocks, options: WireOptions) -> np.ndarray:
    """Return by how much clocks may lengthen each transit.

    Either the hosts know their clocks, or the transits show it: were clocks apart, shortest transits would scatter by
    as much, and some would be negative.
    """
    least = as_floats(steps["least_ns"])
    if not len(least):
        return least
    src, dst = (np.array(steps[name].to_pylist(), dtype=object) for name in ("src_host", "dst_host"))
    told = clocks.errors_of(src) + clocks.errors_of(dst)
    told = told + _refuted(src, dst, np.nan_to_num(-least - told, neginf=0.0))
    scatter = float(np.median(np.abs(least - np.median(least)))) + max(float(-least.min()), 0.0)
    errors: np.ndarray = np.minimum(told, options.clock_margin * scatter)
    return errors


def _refuted(src: np.ndarray, dst: np.ndarray, beyond_ns: np.ndarray) -> np.ndarray:
    """Return what to add to the errors of each row's clocks where some rows arrive before they left: one jumped."""
    hosts, place = np.unique(np.concatenate([src, dst]).astype(str), return_inverse=True)
    more = np.zeros(len(hosts))
    np.maximum.at(more, place.reshape(-1), np.tile(np.maximum(beyond_ns, 0.0), 2))
    both = more[place.reshape(2, -1)]
    largest: np.ndarray = 2 * both.max(axis=0)  # the jump and what the bound already hid of it
    return largest
