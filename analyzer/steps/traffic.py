"""The operations of a few ranks, in the order in which each of them began, and what tells one from another."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.windows.columns import filled
from analyzer.windows.jobs import Roster
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import WHOSE

_LIGHT = 0.01  # of the bytes of a large operation: norms and losses are a few bytes, buckets are not
_MIX, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)  # an odd number with many ones spreads every bit upwards

WITNESSES = 8  # ranks whose traffic is read; all ranks do the same steps, and eight outvote a few that are ill
_LOOKBACK_NS = 60 * NS_PER_S  # where not all operations are known
_SEARCH_NS = 300 * NS_PER_S  # while no period is known: six steps of fifty seconds
_PACE_NS = 120 * NS_PER_S  # of operations per second: what was usual before, and a fault that is noticed late
_LOOKBACK_PERIODS = 12  # once it is known: enough to find it again after a change
_FEWEST = 4  # operations of a stream: their numbers say how many there were, so few give a rate
_MOST_OPERATIONS = 20_000  # per rank: three steps of a large pipeline have that many

# Numbers of communicators are unique in a job only.
_SEATS = """(job, comm, rank) IN (
    SELECT seat.1, seat.2, seat.3
    FROM (SELECT arrayJoin(arrayZip({jobs:Array(String)}, {comms:Array(UInt64)}, {ranks:Array(UInt32)})) AS seat)
  )"""
_OPERATIONS = f"""
SELECT DISTINCT /*ask,*/ comm, rank, func, peer, seq, replay, seq_valid, captured, epoch, bytes, enqueue_ns,
       start_ns, end_ns, ifNull(collectives.untimed, false) AS untimed
FROM collectives
WHERE {WHOSE} AND host IN {{hosts:Array(String)}}
  AND enqueue_ns >= {{start:Int64}} AND enqueue_ns < {{end:Int64}} AND coalesce(end_ns, enqueue_ns) < {{end:Int64}}
  AND {_SEATS}
ORDER BY enqueue_ns DESC LIMIT {{most:UInt32}} BY /*ask,*/ comm, rank
"""
_SECONDS = f"""
SELECT /*ask,*/ comm, rank, func, size_class, sum(n) AS n, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns
FROM op_stats
WHERE {WHOSE} AND host IN {{hosts:Array(String)}}
  AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}}
  AND {_SEATS}
GROUP BY /*ask,*/ comm, rank, func, size_class
"""
_PACE = f"""
SELECT /*ask,*/ ts_ns, sum(n) AS operations FROM op_stats
WHERE {WHOSE} AND host IN {{hosts:Array(String)}}
  AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}}
  AND {_SEATS}
GROUP BY /*ask,*/ ts_ns ORDER BY ts_ns
"""
_REPORTED = f"""
SELECT /*ask,*/ step, min(start_ns) AS begin_ns, quantileExact(0.5)(end_ns - start_ns) AS length_ns
FROM (SELECT DISTINCT /*ask,*/ world_rank, step, start_ns, end_ns FROM steps
      WHERE {WHOSE} AND source = 'told'
        AND start_ns >= {{start:Int64}} AND end_ns < {{end:Int64}} AND end_ns > start_ns)
GROUP BY /*ask,*/ step ORDER BY step
"""


@dataclass(frozen=True)
class Witness:
    """Operations of one rank in the order in which its host asked for them; parallel arrays."""

    process: int
    comm: np.ndarray  # u64
    func: np.ndarray  # str
    peer: np.ndarray
    seq: np.ndarray
    counts: np.ndarray  # bool, whether seq counts the operations; in a CUDA graph it stands still
    bytes: np.ndarray
    enqueue_ns: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    untimed: np.ndarray  # bool, whether nobody saw it begin or end: then both times are when it was asked for

    def __len__(self) -> int:
        return len(self.comm)

    @cached_property
    def words(self) -> np.ndarray:
        """Return a number for each kind of operation, the same in every evaluation.

        Sends and receives are told apart by their peer and not by their size: what is sent to an expert differs
        in each step.
        """
        size = np.where(self.peer >= 0, 0, np.log2(np.maximum(self.bytes, 1)).astype(np.int64))
        parts = (self._func_numbers, self.peer + 2, size)
        words = self.comm.astype(np.uint64)
        with np.errstate(over="ignore"):  # wrapping round is what mixes
            for part in parts:
                words = (words ^ words >> _HALF ^ part.astype(np.uint64)) * _MIX
        return words

    @cached_property
    def _func_numbers(self) -> np.ndarray:
        """Return a number for each function that is the same in every evaluation."""
        names, index = np.unique(self.func, return_inverse=True)
        numbers: np.ndarray = np.array([zlib.crc32(name.encode()) for name in names.tolist()], np.uint64)[index]
        return numbers

    @cached_property
    def gap_ns(self) -> np.ndarray:
        """Return how long before each operation the rank had nothing under way.

        That time is the rank's own; the time inside an operation also holds the delay of others.
        """
        busy_until = np.maximum.accumulate(self.end_ns)
        gaps = np.zeros(len(self), np.int64)
        is_seen = ~(self.untimed[1:] | self.untimed[:-1])
        gaps[1:] = np.where(is_seen, np.maximum(self.start_ns[1:] - busy_until[:-1], 0), 0)
        return gaps

    @cached_property
    def idle_ns(self) -> np.ndarray:
        """Return how long before each operation the host had asked for none."""
        idle = np.zeros(len(self), np.int64)
        idle[1:] = np.maximum(np.diff(self.enqueue_ns), 0)
        return idle

    @property
    def span_ns(self) -> int:
        """Return the time from the first operation's start to the last one's end; 0 without operations."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self) else 0

    @cached_property
    def is_sampled(self) -> bool:
        """Return whether numbers are missing, so that neighbours in the list were none on the rank."""
        wanted = seen = 0
        for index in self.streams:
            numbers = self.seq[index]
            wanted += int(numbers.max() - numbers.min()) + 1
            seen += len(np.unique(numbers))
        return seen < 0.95 * wanted  # single rows get lost without anybody having sampled

    @cached_property
    def lost_ns(self) -> np.ndarray:
        """Return in order when operations were asked for right before which others of their stream are missing."""
        skips = [index[1:][np.diff(self.seq[index]) > 1] for index in self.streams]
        return np.sort(self.enqueue_ns[np.concatenate(skips)]) if skips else self.enqueue_ns[:0]

    def since(self, index: int) -> "Witness":
        """Return the operations from that place on."""
        return self._pick(slice(index, None))

    @cached_property
    def without_light(self) -> "Witness":
        """Return the operations that move a good part of what most do; a logged loss comes now and then."""
        return self._pick(self.bytes >= _LIGHT * np.quantile(self.bytes, 0.9)) if len(self) else self

    def _pick(self, indexes: slice | np.ndarray) -> "Witness":
        return Witness(self.process, *(getattr(self, each.name)[indexes] for each in fields(self)[1:]))

    @cached_property
    def streams(self) -> "list[np.ndarray]":
        """Return the operations of each stream in which `seq` counts."""
        with np.errstate(over="ignore"):
            named = (self.comm.astype(np.uint64) ^ self._func_numbers) * _MIX ^ (self.peer + 2).astype(np.uint64)
        keys = np.unique(named, return_inverse=True)[1]
        keys = np.where(self.counts, keys, -1)
        order = np.argsort(keys, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
        return [part for part in parts if len(part) and keys[part[0]] >= 0]


@dataclass(frozen=True)
class Pace:
    """Operations that a few ranks ended in each second, in parallel arrays; seconds without any are left out."""

    ts_ns: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # when the second begins
    operations: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.ts_ns)

    def count(self, start_ns: int, end_ns: int) -> int:
        """Return the operations in the seconds that begin in a stretch of time."""
        return int(self.operations[(self.ts_ns >= start_ns) & (self.ts_ns < end_ns)].sum())


@dataclass(frozen=True)
class StepFacts:
    """What is known of the steps of a job at one evaluation."""

    witnesses: tuple[Witness, ...] = ()
    seconds: pa.Table | None = None  # operations by kind, where no single ones are known
    reported: pa.Table | None = None  # step, begin_ns, length_ns, where the job tells its steps


def read_operations(store: Store, context: Context) -> StepFacts:
    """Return the operations of a few ranks up to the end of the window; cost does not grow with the job."""
    asked = _ask(context)
    known_ns = _LOOKBACK_PERIODS * context.period_ns if context.period_ns else _SEARCH_NS
    short, long = _span(context, known_ns), _span(context, _LOOKBACK_NS)
    reported = store.query(_REPORTED, min(short, long, key=lambda span: span["start"]))
    if not asked["comms"]:
        return StepFacts(reported=reported)
    witnesses = _read_witnesses(store, context, short | asked)
    if not any(len(witness) >= _FEWEST for witness in witnesses):  # so few single ones tell no rate
        return StepFacts(seconds=store.query(_SECONDS, short | asked), reported=reported)
    if context.period_ns and any(witness.is_sampled for witness in witnesses):
        witnesses = _read_witnesses(store, context, long | asked)
    return StepFacts(witnesses, reported=reported)


def read_pace(store: Store, context: Context) -> Pace:
    """Return how many operations the same ranks ended in each of the last seconds."""
    asked = _ask(context)
    if not asked["comms"]:
        return Pace()
    rows = store.query(_PACE, _span(context, _PACE_NS) | asked)
    return Pace(*(np.asarray(rows[name].combine_chunks()).astype(np.int64) for name in ("ts_ns", "operations")))


def _span(context: Context, back_ns: int) -> dict[str, Any]:  # Any: parameters of a query
    begin = max(min(context.window.start_ns, context.window.end_ns - back_ns), 0)
    return context.parameters | {"start": begin}


def _read_witnesses(store: Store, context: Context, asked: dict[str, Any]) -> tuple[Witness, ...]:
    rows = store.query(_OPERATIONS, asked | {"most": _MOST_OPERATIONS})
    return tuple(sort_witnesses(rows, context.roster))


def _ask(context: Context) -> dict[str, Any]:
    """Return which (communicator, rank) to read, and on which hosts they are."""
    numbers = choose_witnesses(context.roster, context.silent)
    hosts = sorted({str(context.roster.host_of[number]) for number in numbers})
    comms, ranks = context.roster.seats(numbers)
    return {"hosts": hosts, "jobs": [context.job] * len(comms), "comms": comms.tolist(), "ranks": ranks.tolist()}


def choose_witnesses(roster: Roster, silent: frozenset[str]) -> list[int]:
    """Return a few processes, spread over the job, that are not on silent hosts."""
    wanted = np.unique(np.linspace(0, max(len(roster) - 1, 0), 4 * WITNESSES).astype(int))
    present = [number for number in wanted.tolist() if number < len(roster) and roster.host_of[number] not in silent]
    spread = np.unique(np.linspace(0, max(len(present) - 1, 0), WITNESSES).astype(int))
    return [present[index] for index in spread.tolist() if index < len(present)]


def sort_witnesses(rows: pa.Table, roster: Roster) -> Iterator[Witness]:
    """Yield what each rank did, in the order in which its host asked for it."""
    comm = np.asarray(rows["comm"].combine_chunks()).astype(np.uint64)
    process = roster.find(comm, _column(rows, "rank"))
    enqueue, start, end = (_column(rows, name) for name in ("enqueue_ns", "start_ns", "end_ns"))
    start = np.where(start < 0, enqueue, start)
    end = np.maximum(np.where(end < 0, start, end), start)
    # A graph is launched as a whole: only on the GPU do its operations have an order.
    asked = np.where(_column(rows, "captured") > 0, start, enqueue)
    func = np.array(rows["func"].to_pylist(), dtype=str)
    peer, seq, size = (_column(rows, name) for name in ("peer", "seq", "bytes"))
    # Sends of one group call are asked for at once: any order will do, if only it is the same in every step.
    order = np.lexsort((seq, peer, np.unique(func, return_inverse=True)[1], start, asked, process))
    order = order[process[order] >= 0]
    flags = {name: _column(rows, name) > 0 for name in ("seq_valid", "untimed")}
    columns = (comm, func, peer, seq, flags["seq_valid"], size, enqueue, start, end, flags["untimed"])
    for part in np.split(order, np.flatnonzero(np.diff(process[order])) + 1) if len(order) else ():
        yield Witness(int(process[part[0]]), *(column[part] for column in columns))


def _column(rows: pa.Table, name: str) -> np.ndarray:
    """Return a column as signed numbers, -1 where it is null."""
    values = rows[name].combine_chunks()
    numbers: np.ndarray = filled(values.cast(pa.int64(), safe=False), -1).astype(np.int64)
    return numbers


_RARER = 4.0  # times as rare as what surely comes in each step: still a part of it
_COVER = 0.7  # of the time that a stream has to span: what stopped or began meanwhile is no part of each step
_MOST_PER_STEP = 16  # of the rarest operation
_CLEARLY = 0.4  # times the spread at the neighbouring lags: then the lag is a step
_FEWEST_PAIRS = 6  # of operations at a distance; fewer give no spread
_SURE_LAGS = 8  # distances at which there have to be enough: a step that does more of its rarest operation is rare
_AGREE = 0.1  # of the length: ranks of one job have the same steps
_OFTEN = 1.5  # times as often: another number of operations per step, and not the jitter of two rates


@dataclass(frozen=True)
class _Stream:
    """One stream of a rank: numbers and times of the operations that were kept, both rising."""

    numbers: np.ndarray
    times_ns: np.ndarray

    @property
    def rate(self) -> float:
        """Return its operations per nanosecond, kept or not."""
        return float(self.numbers[-1] - self.numbers[0]) / max(float(self.times_ns[-1] - self.times_ns[0]), 1.0)


def find_period_in_samples(witnesses: Sequence[Witness]) -> int | None:
    """Return the length of a step that ranks agree on of which only some operations are known."""
    found = sorted(length for witness in witnesses if (length := _estimate(witness)))
    if 2 * len(found) <= len(witnesses):
        return None
    middle = found[len(found) // 2]
    agreeing = [length for length in found if abs(length - middle) <= _AGREE * middle]
    return int(middle) if 2 * len(agreeing) > len(found) else None


def _estimate(witness: Witness) -> float | None:
    streams = _list_streams(witness)
    if not streams:
        return None
    rarest = min(streams, key=lambda stream: stream.rate)
    per_step = _count_per_step(rarest)
    if per_step is None:  # it stands for a step where others come more often: one of each kind would be odd
        per_step = 1 if any(stream.rate > _OFTEN * rarest.rate for stream in streams) else None
    return per_step / rarest.rate if per_step else None


def find_period_in_seconds(seconds: pa.Table) -> int | None:
    """Return the length of a step from counts per second: a step does its rarest kind of operation once.

    What comes far more rarely than the rest is an evaluation. While something that may be part of each step has come
    two or three times only, or in a young job once, nobody knows.
    """
    counts = np.asarray(seconds["n"].combine_chunks()).astype(np.float64)
    first, last = (np.asarray(seconds[name].combine_chunks()).astype(np.int64) for name in ("first_ns", "last_ns"))
    if not len(counts):
        return None
    span = last - first + NS_PER_S
    comes_again = (counts > 1) & (span >= _COVER * span.max())
    if not comes_again.any():
        return None
    is_sure = counts >= 2 * _FEWEST
    length = np.where(is_sure, span / counts, (last - first) / np.maximum(counts - 1, 1))
    sure_ns = float(length[comes_again & is_sure].max(initial=0.0))
    likely = comes_again & (length <= _RARER * sure_ns if sure_ns else True)
    rarest = int(np.where(likely | (length == sure_ns), length, -1.0).argmax())
    is_known = counts[rarest] >= _FEWEST and (sure_ns > 0 or (counts > 1).all())
    return int(length[rarest]) if is_known else None


def _list_streams(witness: Witness) -> list[_Stream]:
    whole = float(witness.start_ns.max() - witness.start_ns.min()) if len(witness) else 0.0
    found = []
    for indexes in witness.streams:
        numbers, firsts = np.unique(witness.seq[indexes], return_index=True)
        times = np.maximum.accumulate(witness.start_ns[indexes][firsts])
        if len(numbers) >= _FEWEST and times[-1] - times[0] >= _COVER * whole:
            found.append(_Stream(numbers, times))
    return found


def _count_per_step(stream: _Stream) -> int | None:
    """Return how many operations of a stream a step does: the first distance at which times hardly spread.

    None where too few operations at small distances from each other were kept to tell.
    """
    spreads = [_spread(stream, lag) for lag in range(1, _MOST_PER_STEP + 2)]
    if not np.isfinite(spreads[:_SURE_LAGS]).all():
        return None
    for lag in range(2, _MOST_PER_STEP + 1):
        before, here, after = spreads[lag - 2 : lag + 1]
        if here < _CLEARLY * min(before, after):
            return lag
    return 1


def _spread(stream: _Stream, lag: int) -> float:
    """Return how much the time from an operation to the `lag`-th next differs; unknown is endless."""
    index = np.searchsorted(stream.numbers, stream.numbers + lag)
    found = index < len(stream.numbers)
    found[found] = stream.numbers[index[found]] == stream.numbers[found] + lag
    if np.count_nonzero(found) < _FEWEST_PAIRS:
        return np.inf
    apart = stream.times_ns[index[found]] - stream.times_ns[found]
    usual = np.minimum(apart, 3 * np.median(apart) + apart.min())  # one checkpoint is no spread
    return float(np.std(usual))
