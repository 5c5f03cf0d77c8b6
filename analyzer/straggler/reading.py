"""What each rank did between its operations: from `collectives`, or from `op_stats` where those are sampled."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.straggler.gpu_waits import SAMPLES_BACK_NS, GpuWaits, read_gpu_waits
from analyzer.straggler.kernels import mix
from analyzer.straggler.operations import (
    Operations,
    find_doubled,
    find_idle,
    find_skips,
    integers,
    none_of,
    processes_of,
)
from analyzer.straggler.seconds import read_seconds
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import OF_HOSTS, WHOSE

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
# Counted over whole seconds, as `op_stats` has no others.
_COUNTED = f"""
SELECT /*ask,*/ sum(n) AS counted FROM op_stats WHERE {WHOSE} AND ts_ns >= {{first:Int64}} AND ts_ns < {{last:Int64}}
/*GROUP BY ask*/
"""
# What a proxy thread that lacks a core shows, per host: the flush of its receives, of the window and of what samples
# count beside it.
_FLUSHES = f"""
SELECT /*ask,*/ host, last_ns >= {{start:Int64}} AS is_now, sum(transfers.steps) AS steps,
       sum(transfers.flush_ns) AS flushed_ns, sum(last_ns - first_ns) AS busy_ns, max(last_ns) AS newest_ns
FROM transfers WHERE {WHOSE} AND direction = 'recv' AND flush_ns IS NOT NULL AND last_ns >= {{back:Int64}}
    AND last_ns < {{end:Int64}} AND first_ns >= {{back:Int64}} - {{before:Int64}} AND first_ns < {{end:Int64}}
GROUP BY /*ask,*/ host, is_now ORDER BY host, is_now
"""
# What GPUs say of lowered clocks, back to their last reading; idle ones lower theirs too and are no news.
_THROTTLED = f"""
SELECT /*ask,*/ host, gpu, groupUniqArray(throttle) AS reasons, min(sm_mhz) AS sm_mhz FROM gpu_health
WHERE {OF_HOSTS} AND ts_ns >= {{start:Int64}} - {{before:Int64}} AND ts_ns < {{end:Int64}}
    AND throttle NOT IN ('', 'gpu_idle')
GROUP BY /*ask,*/ host, gpu
"""


@dataclass(frozen=True)
class Flushes:
    """How long the proxy threads of each host took to flush what they received; entries are parallel.

    A host may be there twice: with what it received in the window, and in the time before it that samples count.
    """

    hosts: tuple[str, ...] = ()
    is_now: np.ndarray = field(default_factory=lambda: none_of(np.bool_))  # in the window
    steps: np.ndarray = field(default_factory=lambda: none_of(np.float64))
    flush_ns: np.ndarray = field(default_factory=lambda: none_of(np.float64))
    busy_ns: np.ndarray = field(default_factory=lambda: none_of(np.float64))  # of the transfers they belong to
    newest_ns: np.ndarray = field(default_factory=lambda: none_of(np.int64))  # when the last of those ended


@dataclass(frozen=True)
class StragglerFacts:
    """Everything that tells who was late in one evaluation."""

    operations: Operations = field(default_factory=Operations)
    are_sums: bool = False  # rows are sums of seconds: a single late operation cannot be told
    flushes: Flushes = field(default_factory=Flushes)
    throttled: dict[tuple[str, int], str] = field(default_factory=dict)  # by host and GPU: what it says of its clock
    gpu_waits: GpuWaits = field(default_factory=GpuWaits)  # where no GPU times are known
    per_s: float | None = None  # operations of a rank in a second
    slow_senders: frozenset[str] = frozenset()  # hosts of slow connections: data lies there because it cannot leave
    slow_hosts: frozenset[str] = frozenset()  # at either end of these, or slow inside


def read_straggler_facts(
    store: Store,
    context: Context,
    slow_senders: frozenset[str] = frozenset(),
    slow_hosts: frozenset[str] = frozenset(),
) -> StragglerFacts:
    """Return the operations of a window with the gaps before them, complete ones where they are all there."""
    window = context.window
    asked = context.parameters | {
        "before": max(2 * context.period_ns, _LEAST_BEFORE_NS) if context.period_ns else _BEFORE_NS,
        "first": -(-window.start_ns // NS_PER_S) * NS_PER_S,
        "last": window.end_ns // NS_PER_S * NS_PER_S,
        "back": min(window.end_ns - SAMPLES_BACK_NS, window.start_ns),
    }
    counted = int(pc.sum(store.query(_COUNTED, asked)["counted"]).as_py() or 0)
    flushes = _as_flushes(store.query(_FLUSHES, asked))
    health = {"hosts": context.list_reporting("gpu_health"), "before": _BEFORE_NS}  # GPUs are read every ten seconds
    slowed = store.query(_THROTTLED, asked | health).to_pylist()
    throttled = {(row["host"], row["gpu"]): ", ".join(sorted(row["reasons"])) for row in slowed}
    seconds = (asked["last"] - asked["first"]) / NS_PER_S
    per_s = counted / max(len(context.roster), 1) / seconds if seconds > 0 else None
    gpu_waits = read_gpu_waits(store, context, per_s or 0.0)
    operations, are_sums = _read_single(store, context, asked, counted), False
    if operations is None:
        operations, are_sums = read_seconds(store, context, asked), True
    return StragglerFacts(operations, are_sums, flushes, throttled, gpu_waits, per_s, slow_senders, slow_hosts)


def _as_flushes(rows: pa.Table) -> Flushes:
    steps, flush_ns, busy_ns = (
        integers(rows, name).astype(np.float64) for name in ("steps", "flushed_ns", "busy_ns")
    )
    hosts, is_now = tuple(rows["host"].to_pylist()), integers(rows, "is_now") > 0
    return Flushes(hosts, is_now, steps, flush_ns, busy_ns, integers(rows, "newest_ns"))


def _read_single(store: Store, context: Context, asked: dict[str, Any], counted: int) -> Operations | None:
    """Return the operations of a window one by one; None where they are too many, or only some of them are known."""
    if counted > MOST_ROWS:
        return None
    rows = store.query(_OPERATIONS, asked | {"most": MOST_ROWS + 1})
    if rows.num_rows > MOST_ROWS:
        return None
    process, begun, ended = processes_of(rows, context), integers(rows, "begun"), integers(rows, "ended")
    key = mix(*(integers(rows, name) for name in ("comm", "rank", "func_code", "peer", "seq", "replay", "epoch")))
    single = ~find_doubled(process, begun, key)
    seen = int(np.count_nonzero(single & (ended >= asked["first"]) & (ended < asked["last"])))
    if seen < _SEEN_SHARE * counted:
        return None
    known = np.flatnonzero(single & (process >= 0))
    earliest = asked["start"] - asked["before"]  # a row that says 1970 must not stretch the times of all others
    gap_ns = find_idle(process[known], np.maximum(begun[known], earliest), np.maximum(ended[known], earliest))
    is_wanted = (gap_ns >= 0) & (integers(rows, "seq_valid")[known] > 0) & (ended[known] >= asked["start"])
    # What a rank did between operations of which those in between are lost, nobody knows: most of it was no own time.
    line = mix(*(integers(rows, name)[known] for name in ("comm", "rank", "func_code", "peer", "epoch")))
    is_wanted &= ~find_skips(line, integers(rows, "seq")[known])
    chosen = known[is_wanted]
    return _as_operations(rows.take(chosen), process[chosen], gap_ns[is_wanted])


def _as_operations(rows: pa.Table, process: np.ndarray, gap_ns: np.ndarray) -> Operations:
    begun = integers(rows, "begun")
    # The GPU's part of a gap is the time in which the operation was enqueued already and the GPU still busy.
    queued_ns = np.maximum(begun - integers(rows, "enqueue_ns"), 0)
    return Operations(
        process=process,
        comm=integers(rows, "comm").view(np.uint64),
        rank=integers(rows, "rank"),
        func=integers(rows, "func_code").view(np.uint64),
        sends=integers(rows, "sends") > 0,
        peer=integers(rows, "peer"),
        seq=integers(rows, "seq"),
        replay=integers(rows, "replay"),
        size=integers(rows, "bytes"),
        start_ns=begun,
        dur_ns=(integers(rows, "ended") - begun).astype(np.float64),
        gap_ns=gap_ns.astype(np.float64),
        gpu_ns=np.minimum(gap_ns, queued_ns).astype(np.float64),
    )
