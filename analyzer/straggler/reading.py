"""What each rank did between its operations: from `collectives`, or from `op_stats` where those are sampled."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.straggler.excess import find_roles
from analyzer.straggler.gpu_waits import GpuWaits, read_gpu_waits
from analyzer.straggler.kernels import mix
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import OF_HOSTS, WHOSE


def find_doubled(process: np.ndarray, begun: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return which rows repeat another one: the store may hold a batch twice until it has merged its parts.

    >>> find_doubled(np.array([0, 0, 0]), np.array([5, 5, 5]), np.array([1, 2, 1])).tolist()
    [False, False, True]
    """
    order = np.lexsort((key, begun, process))
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in (process, begun, key):
        same &= np.diff(column[order].astype(np.int64)) == 0
    doubled = np.zeros(len(order), bool)
    doubled[order[1:]] = same
    return doubled


def find_idle(process: np.ndarray, begun: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Return for each operation the time since the latest end of all that its process began before it.

    Operations that begin together have the same. 0 where an earlier one was still under way, -1 where there is none.

    >>> find_idle(np.array([0, 0, 0, 0]), np.array([0, 5, 30, 30]), np.array([20, 7, 40, 50])).tolist()
    [-1, 0, 10, 10]
    """
    if len(process) == 0:
        return np.zeros(0, np.int64)
    order = np.lexsort((begun, process))
    who, when = process[order], begun[order]
    first = min(int(ended.min()), int(begun.min()))
    # One running maximum serves all processes: each lies above the one before by more than times differ.
    ends = ended[order] - first
    lift = who * (int(ends.max()) + 1)
    busy_until = np.maximum.accumulate(ends + lift) - lift
    is_first = np.r_[True, (who[1:] != who[:-1]) | (when[1:] != when[:-1])]
    before = (np.flatnonzero(is_first) - 1)[np.cumsum(is_first) - 1]  # the last row that began earlier
    is_known = (before >= 0) & (who[before] == who)
    since = when - first - busy_until[before]
    idle = np.empty(len(process), np.int64)
    idle[order] = np.where(is_known, np.maximum(since, 0), -1)
    return idle


# Judging a million rows takes 2 s of a core, as long as looks are apart; above, statistics of seconds take over.
MOST_ROWS = 1_000_000
# The operation before the first one of a window must be known for the gap between them: it is a step back at most.
_BEFORE_NS, _LEAST_BEFORE_NS = 10 * NS_PER_S, NS_PER_S
_SEEN_SHARE = 0.9  # of the operations counted; with fewer rows, the one before is often missing and gaps are wrong

_OPERATIONS = f"""
SELECT /*ask,*/ comm, rank, cityHash64(func) AS func_code, func = 'Send' AS sends, peer, seq, replay, epoch,
       seq_valid, bytes, enqueue_ns, assumeNotNull(start_ns) AS begun, assumeNotNull(end_ns) AS ended
FROM collectives
WHERE {WHOSE} AND start_ns IS NOT NULL AND end_ns IS NOT NULL AND end_ns >= start_ns
    AND enqueue_ns >= {{start:Int64}} - {{before:Int64}} AND enqueue_ns < {{end:Int64}} AND end_ns < {{end:Int64}}
LIMIT {{most:UInt64}} /*BY ask*/
"""
# Gaps of `op_stats` are counted inside one communicator, so what a rank did not spend in operations of any of them
# stands for its own time. Sends and receives overlap: where there are some, durations do not add up, and only those
# can be compared that wait for the same neighbours, which are as far along in their pipelines.
_SECONDS = f"""
SELECT /*ask,*/ comm, rank, ts_ns, sum(op_stats.n) AS n, sum(dur_sum_ns) AS dur_ns,
       max(func IN ('Send', 'Recv')) AS overlaps
FROM op_stats WHERE {WHOSE} AND ts_ns >= {{first:Int64}} AND ts_ns < {{last:Int64}}
GROUP BY /*ask,*/ comm, rank, ts_ns
"""
# Who sends to whom in pipelines.
_LINKS = f"""
SELECT DISTINCT /*ask,*/ comm, rank, peer, direction = 'send' AS sends FROM transfer_stats
WHERE {WHOSE} AND func IN ('Send', 'Recv') AND peer >= 0 AND ts_ns >= {{first:Int64}} AND ts_ns < {{last:Int64}}
"""
# How long operations lay enqueued before they began, in the mean of those that were sampled.
_LEADS = f"""
SELECT /*ask,*/ comm, rank, avg(greatest(assumeNotNull(start_ns) - enqueue_ns, 0)) AS lead_ns
FROM collectives WHERE {WHOSE} AND start_ns IS NOT NULL AND enqueue_ns >= {{start:Int64}} - {{before:Int64}}
    AND enqueue_ns < {{end:Int64}} AND end_ns >= {{start:Int64}} AND end_ns < {{end:Int64}}
GROUP BY /*ask,*/ comm, rank
"""
# Counted over whole seconds, as `op_stats` has no others.
_COUNTED = f"""
SELECT /*ask,*/ sum(n) AS counted FROM op_stats WHERE {WHOSE} AND ts_ns >= {{first:Int64}} AND ts_ns < {{last:Int64}}
/*GROUP BY ask*/
"""
# What a proxy thread that lacks a core shows, per host: the flush of its receives.
_FLUSHES = f"""
SELECT /*ask,*/ host, sum(transfers.steps) AS steps, sum(transfers.flush_ns) AS flushed_ns,
       sum(last_ns - first_ns) AS busy_ns
FROM transfers WHERE {WHOSE} AND direction = 'recv' AND flush_ns IS NOT NULL AND last_ns >= {{start:Int64}}
    AND last_ns < {{end:Int64}} AND first_ns >= {{start:Int64}} - {{before:Int64}} AND first_ns < {{end:Int64}}
GROUP BY /*ask,*/ host ORDER BY host
"""
# What GPUs say of lowered clocks, back to their last reading; idle ones lower theirs too and are no news.
_THROTTLED = f"""
SELECT /*ask,*/ host, gpu, groupUniqArray(throttle) AS reasons, min(sm_mhz) AS sm_mhz FROM gpu_health
WHERE {OF_HOSTS} AND ts_ns >= {{start:Int64}} - {{before:Int64}} AND ts_ns < {{end:Int64}}
    AND throttle NOT IN ('', 'gpu_idle')
GROUP BY /*ask,*/ host, gpu
"""


def _none(kind: type[np.generic]) -> np.ndarray:
    return np.zeros(0, kind)


@dataclass(frozen=True)
class Operations:
    """Operations of single ranks, or all of a rank in one second together; one entry per row in each array."""

    process: np.ndarray = field(default_factory=lambda: _none(np.int64))
    comm: np.ndarray = field(default_factory=lambda: _none(np.uint64))
    rank: np.ndarray = field(default_factory=lambda: _none(np.int64))
    func: np.ndarray = field(default_factory=lambda: _none(np.uint64))  # a number that stands for the name
    sends: np.ndarray = field(default_factory=lambda: _none(np.bool_))  # whether it is a Send
    peer: np.ndarray = field(default_factory=lambda: _none(np.int64))
    seq: np.ndarray = field(default_factory=lambda: _none(np.int64))  # number of the operation, or the second
    replay: np.ndarray = field(default_factory=lambda: _none(np.int64))
    size: np.ndarray = field(default_factory=lambda: _none(np.int64))  # bytes, or how many operations a second
    start_ns: np.ndarray = field(default_factory=lambda: _none(np.int64))  # on the clock of the rank's host
    dur_ns: np.ndarray = field(default_factory=lambda: _none(np.float64))
    gap_ns: np.ndarray = field(default_factory=lambda: _none(np.float64))  # own time before
    gpu_ns: np.ndarray = field(default_factory=lambda: _none(np.float64))  # part in which only the GPU was waited for

    def __len__(self) -> int:
        return len(self.process)

    def take(self, chosen: np.ndarray) -> "Operations":
        """Return some of the rows."""
        return Operations(*(getattr(self, each.name)[chosen] for each in fields(self)))


@dataclass(frozen=True)
class Flushes:
    """How long the proxy threads of each host took to flush what they received."""

    hosts: tuple[str, ...] = ()
    steps: np.ndarray = field(default_factory=lambda: _none(np.float64))
    flush_ns: np.ndarray = field(default_factory=lambda: _none(np.float64))
    busy_ns: np.ndarray = field(default_factory=lambda: _none(np.float64))  # of the transfers they belong to


@dataclass(frozen=True)
class StragglerFacts:
    """Everything that tells who was late in one evaluation."""

    operations: Operations = field(default_factory=Operations)
    are_sums: bool = False  # rows are sums of seconds: a single late operation cannot be told
    flushes: Flushes = field(default_factory=Flushes)
    throttled: dict[tuple[str, int], str] = field(default_factory=dict)  # by host and GPU: what it says of its clock
    gpu_waits: GpuWaits = field(default_factory=GpuWaits)  # where no GPU times are known
    per_s: float | None = None  # operations of a rank in a second


def read_straggler_facts(store: Store, context: Context) -> StragglerFacts:
    """Return the operations of a window with the gaps before them, complete ones where they are all there."""
    window = context.window
    asked = context.parameters | {
        "before": max(2 * context.period_ns, _LEAST_BEFORE_NS) if context.period_ns else _BEFORE_NS,
        "first": -(-window.start_ns // NS_PER_S) * NS_PER_S,
        "last": window.end_ns // NS_PER_S * NS_PER_S,
    }
    counted = int(pc.sum(store.query(_COUNTED, asked)["counted"]).as_py() or 0)
    flushed = store.query(_FLUSHES, asked)
    sums = [flushed[name].to_numpy().astype(np.float64) for name in ("steps", "flushed_ns", "busy_ns")]
    flushes = Flushes(tuple(flushed["host"].to_pylist()), *sums)
    health = {"hosts": context.list_reporting("gpu_health"), "before": _BEFORE_NS}  # GPUs are read every ten seconds
    slowed = store.query(_THROTTLED, asked | health).to_pylist()
    throttled = {(row["host"], row["gpu"]): ", ".join(sorted(row["reasons"])) for row in slowed}
    seconds = (asked["last"] - asked["first"]) / NS_PER_S
    per_s = counted / max(len(context.roster), 1) / seconds if seconds > 0 else None
    gpu_waits = read_gpu_waits(store, context, per_s or 0.0)
    operations, are_sums = _read_single(store, context, asked, counted), False
    if operations is None:
        operations, are_sums = _read_seconds(store, context, asked), True
    return StragglerFacts(operations, are_sums, flushes, throttled, gpu_waits, per_s)


def _read_single(store: Store, context: Context, asked: dict[str, Any], counted: int) -> Operations | None:
    """Return the operations of a window one by one; None where they are too many, or only some of them are known."""
    if counted > MOST_ROWS:
        return None
    rows = store.query(_OPERATIONS, asked | {"most": MOST_ROWS + 1})
    if rows.num_rows > MOST_ROWS:
        return None
    process, begun, ended = _processes(rows, context), _integers(rows, "begun"), _integers(rows, "ended")
    key = mix(*(_integers(rows, name) for name in ("comm", "rank", "func_code", "peer", "seq", "replay", "epoch")))
    single = ~find_doubled(process, begun, key)
    seen = int(np.count_nonzero(single & (ended >= asked["first"]) & (ended < asked["last"])))
    if seen < _SEEN_SHARE * counted:
        return None
    known = np.flatnonzero(single & (process >= 0))
    earliest = asked["start"] - asked["before"]  # a row that says 1970 must not stretch the times of all others
    gap_ns = find_idle(process[known], np.maximum(begun[known], earliest), np.maximum(ended[known], earliest))
    is_wanted = (gap_ns >= 0) & (_integers(rows, "seq_valid")[known] > 0) & (ended[known] >= asked["start"])
    chosen = known[is_wanted]
    return _as_operations(rows.take(chosen), process[chosen], gap_ns[is_wanted])


def _as_operations(rows: pa.Table, process: np.ndarray, gap_ns: np.ndarray) -> Operations:
    begun = _integers(rows, "begun")
    # The GPU's part of a gap is the time in which the operation was enqueued already and the GPU still busy.
    queued_ns = np.maximum(begun - _integers(rows, "enqueue_ns"), 0)
    return Operations(
        process=process,
        comm=_integers(rows, "comm").view(np.uint64),
        rank=_integers(rows, "rank"),
        func=_integers(rows, "func_code").view(np.uint64),
        sends=_integers(rows, "sends") > 0,
        peer=_integers(rows, "peer"),
        seq=_integers(rows, "seq"),
        replay=_integers(rows, "replay"),
        size=_integers(rows, "bytes"),
        start_ns=begun,
        dur_ns=(_integers(rows, "ended") - begun).astype(np.float64),
        gap_ns=gap_ns.astype(np.float64),
        gpu_ns=np.minimum(gap_ns, queued_ns).astype(np.float64),
    )


def _integers(rows: pa.Table, name: str) -> np.ndarray:
    """Return a column as signed integers; what is too large for them wraps round."""
    numbers: np.ndarray = rows[name].to_numpy().astype(np.int64)
    return numbers


def _read_seconds(store: Store, context: Context, asked: dict[str, Any]) -> Operations:
    """Return a row per process and second whose gap is what it spent outside of operations."""
    rows = store.query(_SECONDS, asked)
    leads = store.query(_LEADS, asked)
    lead_ns = _mean_by(_processes(leads, context), leads["lead_ns"].to_numpy(), len(context.roster))
    ts_ns, n, dur_ns, overlaps = (
        rows[name].to_numpy().astype(np.int64) for name in ("ts_ns", "n", "dur_ns", "overlaps")
    )
    stage = _read_stages(store, context, asked) if overlaps.any() else np.zeros(len(context.roster), np.uint64)
    return sum_seconds(_processes(rows, context), ts_ns, n, dur_ns, overlaps, lead_ns, stage)


def _read_stages(store: Store, context: Context, asked: dict[str, Any]) -> np.ndarray:
    """Return a number per process, equal for those at the same place of their pipelines, 0 where it is not known."""
    rows = store.query(_LINKS, asked)
    rank, peer, sends = (_integers(rows, name) for name in ("rank", "peer", "sends"))
    process, comm = _processes(rows, context), rows["comm"].to_numpy().astype(np.uint64)
    told = process >= 0
    roles = find_roles(process[told], comm[told], rank[told], peer[told], sends[told] > 0, len(context.roster))
    return roles.role_of


def sum_seconds(
    process: np.ndarray,
    ts_ns: np.ndarray,
    n: np.ndarray,
    dur_ns: np.ndarray,
    overlaps: np.ndarray,
    lead_ns: np.ndarray,
    stage: np.ndarray,
) -> Operations:
    """Return a row per process and second; without those whose operations overlap at an unknown place."""
    mixed = np.zeros(len(lead_ns), bool)
    mixed[process[(overlaps > 0) & (process >= 0)]] = True
    kept = (process >= 0) & ~(mixed & (stage == 0))[process]
    seconds, second = np.unique(ts_ns[kept], return_inverse=True)
    pairs, index = np.unique(process[kept] * len(seconds) + second.reshape(-1), return_inverse=True)
    count, busy = (
        np.bincount(index.reshape(-1), weights=column[kept], minlength=len(pairs)) for column in (n, dur_ns)
    )
    own_ns = NS_PER_S - busy  # an operation may have begun in the second before: only differences mean something
    rows = len(pairs)
    who, when = np.divmod(pairs, max(len(seconds), 1))
    return Operations(
        process=who,
        comm=np.zeros(rows, np.uint64),
        rank=who,
        func=np.where(mixed, stage, np.uint64(0))[who],
        sends=np.zeros(rows, np.bool_),
        peer=np.full(rows, -1),
        seq=seconds[when],
        replay=np.zeros(rows, np.int64),
        size=np.where(mixed[who], 0, count).astype(np.int64),  # of many small ones, some end a second later
        start_ns=seconds[when],
        dur_ns=busy,
        gap_ns=own_ns,
        gpu_ns=np.minimum(own_ns, lead_ns[who] * count) if rows else own_ns,
    )


def _processes(rows: pa.Table, context: Context) -> np.ndarray:
    comm, rank = rows["comm"].to_numpy().astype(np.uint64), rows["rank"].to_numpy().astype(np.int64)
    return context.roster.find(comm, rank)


def _mean_by(process: np.ndarray, values: np.ndarray, processes: int) -> np.ndarray:
    """Return the mean of each process, NaN where nothing is known."""
    known = process >= 0
    sums = np.bincount(process[known], weights=values[known], minlength=processes)
    counts = np.bincount(process[known], minlength=processes).astype(np.float64)
    means: np.ndarray = np.divide(sums, counts, out=np.full(processes, np.nan), where=counts > 0)
    return means
