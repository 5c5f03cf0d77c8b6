"""Where the facts of a standstill come from; a look at a job that moves costs one query over its window."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.context import Context
from analyzer.hangs.circumstances import add_circumstances
from analyzer.hangs.endings import date_ends
from analyzer.hangs.facts import HangOptions, Lines, People, ProgressFacts
from analyzer.hangs.standstill import drop_unheard_of, find_standstill
from analyzer.hosts import OF_HOSTS, list_hosts
from analyzer.roster import NOBODY, Roster
from lockstep.clock import NS_PER_S
from lockstep.store.store import Parameters, Store

_LEARN_NS = 120 * NS_PER_S  # how far back the pace of a job is learnt from, when nobody told it
_FEW_ROWS = 3  # a recording has a row or two at its beginning and one at its end; they tell of no rhythm
_WHOSE = "job = {job:String} AND attempt = {attempt:UInt16}"

# Nothing begins or ends while a rank stands still, though its host may enqueue more: those two counts make a state.
_LINES = f"""
SELECT comm, rank, func, peer, argMax(host_, last) AS host, argMax(enqueued_, last) AS enqueued,
       argMax(started, last) AS started, argMax(done, last) AS done, argMax(first, last) AS since_ns,
       max(last) AS seen_ns, min(first) AS first_ns, sum(looks) AS n, argMax(looks, last) AS same,
       argMax(state_, last) AS state,
       argMax(head_peer_, last) AS head_peer, argMax(head_channel_, last) AS head_channel,
       argMax(open_bytes_, last) AS open_bytes, argMax(open_dtype_, last) AS open_dtype,
       argMax(open_algo_, last) AS open_algo, argMax(open_ns, last) AS open_ns
FROM (
    SELECT comm, rank, func, peer, started, done, min(ts_ns) AS first, max(ts_ns) AS last, uniqExact(ts_ns) AS looks,
           argMax(host, ts_ns) AS host_, max(enqueued) AS enqueued_, argMax(head_state, ts_ns) AS state_,
           argMax(ifNull(head_peer, -1), ts_ns) AS head_peer_,
           argMax(ifNull(toInt32(head_channel), -1), ts_ns) AS head_channel_,
           argMax(ifNull(toInt64(open_bytes), -1), ts_ns) AS open_bytes_,
           argMax(ifNull(toString(open_dtype), ''), ts_ns) AS open_dtype_,
           argMax(ifNull(toString(open_algo), ''), ts_ns) AS open_algo_,
           argMax(ifNull(oldest_open_ns, -1), ts_ns) AS open_ns
    FROM progress WHERE {_WHOSE} AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}}
    GROUP BY comm, rank, func, peer, started, done
) GROUP BY comm, rank, func, peer ORDER BY comm, rank, func, peer
"""
# Asked first in jobs of so many ranks: nearly every look finds that all of them move, and the lines cost far more.
_MANY = 1024
_MOVED = f"""
SELECT comm, rank, max(started) > min(started) OR max(done) > min(done) AS has_moved
FROM progress WHERE {_WHOSE} AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}} GROUP BY comm, rank, func, peer
"""
_HAPPENED = f"""
SELECT count() AS n FROM events
WHERE {OF_HOSTS} AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}} AND severity != 'info'
"""
# One rank stands for its communicator: all do the same. A line that comes round rarely gives the longer period.
_PACE = f"""
SELECT max(gap) AS period FROM (
    SELECT (max(enqueue_ns) - min(enqueue_ns)) / greatest(count() - 1, toInt64(max(seq)) - toInt64(min(seq))) AS gap
    FROM collectives WHERE {_WHOSE} AND rank = 0 AND enqueue_ns >= {{start:Int64}} AND enqueue_ns < {{end:Int64}}
    GROUP BY comm, func, peer HAVING count() > 3
    UNION ALL
    SELECT (max(first) - min(first)) / toInt64(max(done) - min(done)) AS gap FROM (
        SELECT comm, func, peer, done, min(ts_ns) AS first
        FROM progress WHERE {_WHOSE} AND rank = 0 AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}}
        GROUP BY comm, func, peer, done
    ) GROUP BY comm, func, peer HAVING max(done) - min(done) > 3
)
"""


def read_progress(store: Store, context: Context, options: HangOptions | None = None) -> ProgressFacts:
    """Return how far everybody has come and, where somebody stands still, what is known about it."""
    options = options or HangOptions()
    whose: Parameters = {"job": context.job, "attempt": context.attempt}
    end_ns = context.window.end_ns
    period_ns = context.period_ns or _learn_period(store, whose, end_ns)
    reach_ns = options.patience_ns(period_ns, NS_PER_S) + options.quiet_ns
    start_ns = min(context.window.start_ns, end_ns - reach_ns)
    if _all_move(store, context, end_ns - options.patience_ns(period_ns, NS_PER_S)):
        nobody = People(*(np.zeros(0, np.int64) for _ in range(3)))
        return ProgressFacts(Lines.none(), nobody, end_ns, period_ns, 0, all_move=True)
    rows = store.query(_LINES, {**whose, "start": start_ns, "end": end_ns})
    facts = replace(_build(rows, context.roster), period_ns=period_ns)
    if len(facts.lines) == 0:
        return facts
    facts = replace(facts, is_dump=context.roster.is_dump)
    if facts.interval_ns == 0 and not facts.is_dump:
        facts = replace(facts, lines=date_ends(store, facts.lines, {**whose, "start": start_ns, "end": end_ns}))
    if not find_standstill(facts, context.silent, options, is_told=True).is_hang:
        return facts
    return add_circumstances(store, facts, context)


def _all_move(store: Store, context: Context, since_ns: int) -> bool:
    """Return whether every rank of a large job moved in this time, and no event asks for a closer look.

    Rows must come at a rhythm for that: a recording that has two, at its ends, would tell that everybody moved.
    """
    roster = context.roster
    if len(roster) < _MANY or roster.is_dump:
        return False
    asked: Parameters = {
        "job": context.job,
        "attempt": context.attempt,
        "start": since_ns,
        "end": context.window.end_ns,
    }
    rows = store.query(_MOVED, asked)
    process = roster.find(_column(rows, "comm", np.uint64), _column(rows, "rank", np.int64))
    if rows.num_rows == 0 or (process == NOBODY).any():
        return False
    moves = np.zeros(len(roster), bool)
    moves[process[_column(rows, "has_moved", np.int64) > 0]] = True
    if not moves.all():
        return False
    happened = store.query(_HAPPENED, {**asked, "hosts": list_hosts(roster.hosts)})["n"][0].as_py()
    return int(happened) == 0


def _learn_period(store: Store, whose: Parameters, end_ns: int) -> int | None:
    found = store.query(_PACE, {**whose, "start": end_ns - _LEARN_NS, "end": end_ns})["period"][0].as_py()
    return round(found) if found else None  # no group at all is a maximum of 0


def _build(rows: pa.Table, roster: Roster) -> ProgressFacts:
    comm, rank = _column(rows, "comm", np.uint64), _column(rows, "rank", np.int64)
    process, people = _number(comm, rank, rows["host"], roster)
    texts = {name: np.array(rows[name].to_pylist(), object) for name in ("func", "state", "open_dtype", "open_algo")}
    names = ("peer", "enqueued", "started", "done", "since_ns", "seen_ns", "head_peer", "head_channel", "open_bytes")
    numbers = {name: _column(rows, name, np.int64) for name in (*names, "open_ns")}
    n, first_ns = _column(rows, "n", np.int64), _column(rows, "first_ns", np.int64)
    many = n > _FEW_ROWS
    gaps = (numbers["seen_ns"][many] - first_ns[many]) / (n[many] - 1)
    interval_ns = int(min(np.median(gaps), NS_PER_S)) if len(gaps) else 0  # rows come every second, or more often
    if interval_ns == 0:
        # A row or two cannot tell for how long; the operation that they show open can.
        once = (_column(rows, "same", np.int64) == 1) & (numbers["open_ns"] > 0)
        numbers["since_ns"] = np.where(once, np.minimum(numbers["open_ns"], numbers["since_ns"]), numbers["since_ns"])
    lines = Lines(process=process, comm=comm, rank=rank, **numbers, **texts)
    now_ns = int(numbers["seen_ns"].max(initial=0))
    return ProgressFacts(drop_unheard_of(lines), people, now_ns, None, interval_ns)


def _number(comm: np.ndarray, rank: np.ndarray, host: pa.ChunkedArray, roster: Roster) -> tuple[np.ndarray, People]:
    """Return the process of each line; a rank of which no communicator tells is a process of its own."""
    process = roster.find(comm, rank) if len(roster) else np.full(len(comm), NOBODY)
    strange = np.flatnonzero(process == NOBODY)
    members = np.stack([comm[strange].astype(np.int64), rank[strange]], axis=1)
    _, firsts, numbers = np.unique(members, axis=0, return_index=True, return_inverse=True)
    process[strange] = len(roster) + numbers.reshape(-1)
    hosts = np.array(host.take(pa.array(strange[firsts])).to_pylist(), object)
    world_rank = np.where(roster.world_rank_of >= 0, roster.world_rank_of, np.arange(len(roster)))
    return process, People(
        host_of=np.concatenate([roster.host_of, hosts]),
        gpu_of=np.concatenate([roster.gpu_of, np.full(len(hosts), -1)]),
        world_rank_of=np.concatenate([world_rank, rank[strange[firsts]]]),
    )


def _column(rows: pa.Table, name: str, kind: type[np.generic]) -> np.ndarray:
    return np.asarray(pc.fill_null(rows[name], 0)).astype(kind)
