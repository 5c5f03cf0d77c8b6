"""Where the facts of a standstill come from; an evaluation of a job that moves costs one query over its window."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.hang.arguments import read_calls
from analyzer.hang.facts import (
    HangMemory,
    HangOptions,
    HostEvent,
    Lines,
    Pair,
    PairKey,
    People,
    ProgressFacts,
    drop_unknown,
    find_standstill,
)
from analyzer.hang.flow import read_steps
from analyzer.hang.rhythm import LEARN_NS, column_of, learn_period, read_computed
from analyzer.windows.columns import filled
from analyzer.windows.jobs import NOBODY, Roster, list_hosts
from analyzer.windows.silence import find_reports
from analyzer.windows.window import Context, End
from lockstep.clock import NS_PER_S
from lockstep.store.store import Parameters, Store
from lockstep.store.together import OF_HOSTS, WHOSE
from lockstep.topology import split_end

# In a job of thousands everybody waits to receive; their connections would be all there are.
_MOST_READERS = 1024
_LOOKBACK_NS = 600 * NS_PER_S  # NCCL's own watchdog ends a hang after ten minutes
_WHEN_AND_WHERE = f"ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}} AND {OF_HOSTS}"
_EVENTS = f"""
SELECT host, ts_ns, kind, component, message, rank, signal FROM events
WHERE {_WHEN_AND_WHERE} AND (severity != 'info' OR kind IN ('link_up', 'process_continued'))
ORDER BY ts_ns, host, kind, component, message
"""
_LAST_ROWS = f"""
SELECT host, max(ts_ns) AS last_ns FROM progress
WHERE job = {{job:String}} AND attempt = {{attempt:UInt16}} AND {_WHEN_AND_WHERE} GROUP BY host
"""
# A NIC that was up before and has no carrier now; those that nobody ever plugged in do not count.
_DOWN = f"""
SELECT host, nic, maxIf(ts_ns, up) AS since_ns FROM nic_counters WHERE {_WHEN_AND_WHERE}
GROUP BY host, nic HAVING argMax(up, ts_ns) = 0 AND max(up) = 1
"""
_DOWN_PORTS = """
SELECT switch, port, maxIf(ts_ns, up) AS since_ns FROM fabric_counters
WHERE switch IN {switches:Array(String)} AND ts_ns >= {start:Int64} AND ts_ns < {end:Int64}
GROUP BY switch, port HAVING argMax(up, ts_ns) = 0 AND max(up) = 1
"""
_PATHS = f"""
SELECT host, src_nic, sport,
       if(ifNull(dst, '') = '', dst_nic, concat(assumeNotNull(dst), '/', splitByChar('/', dst_nic)[-1])) AS dst_end,
       argMax(links, (seen_ns, confidence)) AS route
FROM paths WHERE {OF_HOSTS} AND seen_ns < {{end:Int64}} GROUP BY host, src_nic, dst_end, sport
"""
_PAIRS = """
SELECT comm AS comm_, rank AS rank_, peer AS peer_, channel AS channel_, direction, host AS host_,
       argMax(nic, (confidence, seen_ns)) AS nic_, any(transport) AS transport_,
       argMax(sport, (confidence, seen_ns)) AS sport_
FROM connections
WHERE job = {job:String} AND attempt = {attempt:UInt16} AND comm IN {comms:Array(UInt64)}
    AND (rank IN {ranks:Array(UInt32)} OR peer IN {ranks:Array(UInt32)}) AND channel IS NOT NULL
    AND (seen_ns IS NULL OR seen_ns < {end:Int64})
GROUP BY comm, rank, peer, channel, direction, host
"""
_NICS = """
SELECT host, groupUniqArray(64)(assumeNotNull(nic)) AS nics FROM connections
WHERE job = {job:String} AND attempt = {attempt:UInt16} AND nic IS NOT NULL AND transport IN ('ib', 'socket', 'ofi')
    AND (seen_ns IS NULL OR seen_ns < {end:Int64})
GROUP BY host
"""


def add_circumstances(store: Store, facts: ProgressFacts, context: Context) -> ProgressFacts:
    """Return the facts together with everything that helps to explain a standstill."""
    end_ns = context.window.end_ns
    hosts = set(facts.people.host_of.tolist())
    span = context.parameters | {"start": end_ns - _LOOKBACK_NS, "hosts": list_hosts(hosts)}
    down, reports = store.query(_DOWN, span).to_pylist(), find_reports(store, hosts, end_ns - _LOOKBACK_NS)
    unseen = list_hosts(hosts - reports.keys())
    last_rows = store.query(_LAST_ROWS, span | {"hosts": unseen}).to_pylist() if unseen else []
    nics = store.query(_NICS, context.parameters).to_pylist()
    return replace(
        facts,
        events=tuple(HostEvent(**row) for row in store.query(_EVENTS, span).to_pylist()),
        down_links=_read_down_links(store, context, span),
        down_since_ns={End(row["host"], row["nic"]): row["since_ns"] for row in down},
        reports=reports,
        last_row_ns={row["host"]: row["last_ns"] for row in last_rows},
        pairs=_read_pairs(store, facts, context),
        nics={row["host"]: tuple(sorted(row["nics"])) for row in nics},
        steps=read_steps(store, facts.lines, context),
        calls=() if facts.is_dump else read_calls(store, facts.lines, context),
    )


def _read_pairs(store: Store, facts: ProgressFacts, context: Context) -> dict[PairKey, Pair]:
    """Return the connections of the ranks whose oldest step waits for the network."""
    lines = facts.lines
    waits = (lines.state == "wire") & (lines.head_peer >= 0)
    reads = np.isin(lines.state.astype(str), ("recv_wait", "recv_gpu_wait", "gpu_wait")) & (lines.head_peer >= 0)
    waits |= reads & (reads.sum() <= _MOST_READERS)
    if not waits.any():
        return {}
    comms, ranks = np.unique(lines.comm[waits]).tolist(), np.unique(lines.rank[waits]).tolist()
    rows = store.query(_PAIRS, context.parameters | {"comms": comms, "ranks": ranks}).to_pylist()
    return join_sides(rows, _read_paths(store, rows, context))


_PathKey = tuple[End, End, int | None]  # ends and source port


def _read_paths(store: Store, rows: list[dict[str, Any]], context: Context) -> dict[_PathKey, tuple[str, ...]]:
    """Return the links that probes found packets of these connections to take, where there are probes."""
    hosts = {row["host_"] for row in rows if row["direction"] == "send" and row["sport_"] is not None}
    if not hosts:
        return {}
    found = store.query(_PATHS, {"hosts": list_hosts(hosts), "end": context.window.end_ns}).to_pylist()
    return {
        (End(row["host"], row["src_nic"]), End(*row["dst_end"].partition("/")[::2]), row["sport"]): tuple(
            row["route"]
        )
        for row in found
    }


def join_sides(
    rows: list[dict[str, Any]], paths: dict[_PathKey, tuple[str, ...]] | None = None
) -> dict[PairKey, Pair]:
    """Return connections from what each of their sides told."""
    pairs: dict[PairKey, Pair] = {}
    ports: dict[PairKey, int | None] = {}
    for row in rows:
        end, is_send = End(row["host_"], row["nic_"]), row["direction"] == "send"
        src, dst = (row["rank_"], row["peer_"]) if is_send else (row["peer_"], row["rank_"])
        key = (row["comm_"], src, dst, row["channel_"])
        known = pairs.get(key, Pair(None, None, row["transport_"]))
        pairs[key] = replace(known, src=end) if is_send else replace(known, dst=end)
        if is_send:
            ports[key] = row["sport_"]
    return {key: replace(pair, path=_path_of(pair, ports.get(key), paths or {})) for key, pair in pairs.items()}


def _path_of(pair: Pair, sport: int | None, paths: dict[_PathKey, tuple[str, ...]]) -> tuple[str, ...]:
    return paths.get((pair.src, pair.dst, sport), ()) if pair.src and pair.dst else ()


def _read_down_links(store: Store, context: Context, span: Parameters) -> dict[str, int]:
    """Return the links between switches of which a port was up before and has no carrier now."""
    if context.topology is None:
        return {}
    switches = {switch.id for switch in context.topology.topology.switches}
    rows = store.query(_DOWN_PORTS, {**span, "switches": sorted(switches)}).to_pylist()
    links = context.topology.links_by_port
    found = [
        (links[row["switch"], row["port"]], row["since_ns"]) for row in rows if (row["switch"], row["port"]) in links
    ]
    return {link.id: ns for link, ns in found if {split_end(link.a)[0], split_end(link.b)[0]} <= switches}


_ENDS = f"""
SELECT /*ask,*/ comm, rank, func, peer, toInt64(max(seq)) AS last_seq,
       argMax(ifNull(end_ns, enqueue_ns), seq) AS ended_ns
FROM collectives
WHERE {WHOSE} AND seq_valid
    AND enqueue_ns >= {{start:Int64}} AND enqueue_ns < {{end:Int64}}
GROUP BY /*ask,*/ comm, rank, func, peer
"""
_KEYS = ["comm", "rank", "func", "peer"]


def date_ends(store: Store, lines: Lines, whose: Parameters) -> Lines:
    """Return the lines, standing since their last operation ended where its row is there. Cost: O(lines)."""
    ends = store.query(_ENDS, whose)
    seq, end_ns = _match(lines, ends)
    matches = (seq + 1 == lines.done) & (end_ns > 0)
    moved_ns = np.maximum(end_ns, lines.open_ns)  # what is open was begun after it
    return replace(lines, since_ns=np.where(matches, np.minimum(lines.since_ns, moved_ns), lines.since_ns))


def _match(lines: Lines, ends: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return number and end of the newest finished operation of each line, -2 and -1 where there is none."""
    columns = {"comm": lines.comm, "rank": lines.rank, "func": lines.func.astype(str), "peer": lines.peer}
    asked = pa.table({**columns, "index": np.arange(len(lines))})
    known = pa.table(
        {name: ends[name].cast(asked.schema.field(name).type) for name in _KEYS}
        | {name: ends[name].cast(pa.int64()) for name in ("last_seq", "ended_ns")}
    )
    joined = asked.join(known, _KEYS, join_type="left outer").sort_by("index")
    return filled(joined["last_seq"], -2), filled(joined["ended_ns"], -1)


_OLDEST_NS = 28 * NS_PER_S  # that a job may be without any rhythm: then it is as patient as with one of that length
_YOUNGEST_NS = NS_PER_S  # less is what clocks of hosts differ by, and what a job needs to set itself up
_FEW_ROWS = 3  # a recording has a row or two at its beginning and one at its end; they tell of no rhythm

# Nothing begins or ends while a rank stands still, though its host may enqueue more: those two counts make a state.
# Where nobody would see it begin or end, what its host enqueues is all that tells whether it moves.
_LINES = f"""
SELECT /*ask,*/ comm, rank, func, peer, argMax(host_, last) AS host, argMax(enqueued_, last) AS enqueued,
       argMax(started, last) AS started, argMax(done, last) AS done, argMax(first, last) AS since_ns,
       max(last) AS seen_ns, min(first) AS first_ns, min(lines.done) AS first_done, sum(reads) AS n,
       argMax(reads, last) AS same,
       argMax(state_, last) AS state,
       argMax(head_peer_, last) AS head_peer, argMax(head_channel_, last) AS head_channel,
       argMax(open_bytes_, last) AS open_bytes, argMax(open_dtype_, last) AS open_dtype,
       argMax(open_algo_, last) AS open_algo, argMax(open_ns, last) AS open_ns, argMax(untimed_, last) AS untimed
FROM (
    SELECT /*ask,*/ comm, rank, func, peer, started, done, min(ts_ns) AS first, max(ts_ns) AS last,
           uniqExact(ts_ns) AS reads, argMax(host, ts_ns) AS host_, max(enqueued) AS enqueued_,
           argMax(head_state, ts_ns) AS state_,
           argMax(ifNull(head_peer, -1), ts_ns) AS head_peer_,
           argMax(ifNull(toInt32(head_channel), -1), ts_ns) AS head_channel_,
           argMax(ifNull(toInt64(open_bytes), -1), ts_ns) AS open_bytes_,
           argMax(ifNull(toString(open_dtype), ''), ts_ns) AS open_dtype_,
           argMax(ifNull(toString(open_algo), ''), ts_ns) AS open_algo_,
           argMax(ifNull(oldest_open_ns, -1), ts_ns) AS open_ns, toUInt8(ifNull(progress.untimed, false)) AS untimed_
    FROM progress WHERE {WHOSE} AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}}
    GROUP BY /*ask,*/ comm, rank, func, peer, started, done, untimed_, if(untimed_, enqueued, 0)
) AS lines GROUP BY /*ask,*/ comm, rank, func, peer ORDER BY comm, rank, func, peer
"""
# Asked first in jobs of so many ranks: nearly always all of them move, and the lines cost far more.
_MANY = 1024
_MOVED = f"""
SELECT comm, rank, max(started) > min(started) OR max(done) > min(done) AS has_moved
FROM progress WHERE {WHOSE} AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}} GROUP BY comm, rank, func, peer
"""
_COUNT_EVENTS = f"""
SELECT count() AS n FROM events
WHERE {OF_HOSTS} AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}} AND severity != 'info'
"""


def read_progress(
    store: Store, context: Context, memory: HangMemory | None = None, options: HangOptions | None = None
) -> ProgressFacts:
    """Return how far everybody has come and, where somebody stands still, what is known about it.

    A standstill may have begun at any time since the evaluation before, after which some may have been left out.
    """
    options = options or HangOptions()
    end_ns = context.window.end_ns
    period_ns = context.period_ns or learn_period(store, context)
    patience_ns = options.patience_ns(period_ns, NS_PER_S)
    if _all_move(store, context, end_ns - patience_ns):
        nobody = People(*(np.zeros(0, np.int64) for _ in range(3)))
        return ProgressFacts(Lines.none(), nobody, end_ns, period_ns, 0, all_move=True)
    reach_ns = max(patience_ns + options.quiet_ns, end_ns - context.window.start_ns)
    facts = _read_lines(store, context, reach_ns)
    facts = replace(facts, period_ns=period_ns or facts.period_ns)
    if len(facts.lines) == 0 or not find_standstill(facts, context.silent, options, has_event=True).is_hang:
        return facts
    if (needs_ns := patience_ns + _find_missed(memory, end_ns)) > reach_ns:
        facts, reach_ns = replace(_read_lines(store, context, needs_ns), period_ns=facts.period_ns), needs_ns
    if facts.interval_ns and not facts.is_dump:
        facts = _with_pauses(store, facts, context, options, reach_ns)
    return add_circumstances(store, facts, context)


def _find_missed(memory: HangMemory | None, end_ns: int) -> int:
    """Return for how long nobody has looked at a job that moved then."""
    if memory is None or memory.until_ns is None or memory.since_ns is not None:
        return 0
    return min(end_ns - memory.until_ns, LEARN_NS)


def _read_lines(store: Store, context: Context, reach_ns: int) -> ProgressFacts:
    """Return how far everybody has come, as rows of so long before the window's end tell it."""
    asked = context.parameters | {"start": context.window.end_ns - reach_ns}
    facts = replace(_build(store.query(_LINES, asked), context.roster), is_dump=context.roster.is_dump)
    if len(facts.lines) and facts.interval_ns == 0 and not facts.is_dump:
        facts = replace(facts, lines=date_ends(store, facts.lines, asked))
    return facts


def _with_pauses(
    store: Store, facts: ProgressFacts, context: Context, options: HangOptions, looked_ns: int
) -> ProgressFacts:
    """Return the facts with how long a healthy job pauses; where that is longer, it was looked back too little."""
    learnt_ns = learn_period(store, context) if context.period_ns else None
    period_ns, computed_ns = max(facts.period_ns or 0, learnt_ns or 0) or None, read_computed(store, context)
    needs_ns = max(options.patience_ns(period_ns, NS_PER_S), round(options.computed_share * computed_ns))
    if needs_ns + options.quiet_ns > looked_ns:
        facts = _read_lines(store, context, needs_ns + options.quiet_ns)
    return replace(facts, period_ns=period_ns, computed_ns=computed_ns)


def _all_move(store: Store, context: Context, since_ns: int) -> bool:
    """Return whether every rank of a large job moved in this time, and no event asks for a closer look.

    Rows must come at a rhythm for that: a recording that has two, at its ends, would tell that everybody moved.
    """
    roster = context.roster
    if len(roster) < _MANY or roster.is_dump:
        return False
    asked = context.parameters | {"start": since_ns}
    rows = store.query(_MOVED, asked)
    process = roster.find(column_of(rows, "comm", np.uint64), column_of(rows, "rank", np.int64))
    if rows.num_rows == 0 or (process == NOBODY).any():
        return False
    moves = np.zeros(len(roster), bool)
    moves[process[column_of(rows, "has_moved", np.int64) > 0]] = True
    if not moves.all():
        return False
    return int(store.query(_COUNT_EVENTS, asked | {"hosts": context.host_list})["n"][0].as_py()) == 0


def _build(rows: pa.Table, roster: Roster) -> ProgressFacts:
    comm, rank = column_of(rows, "comm", np.uint64), column_of(rows, "rank", np.int64)
    process, people = _number(comm, rank, rows["host"], roster)
    texts = {name: np.array(rows[name].to_pylist(), object) for name in ("func", "state", "open_dtype", "open_algo")}
    names = ("peer", "enqueued", "started", "done", "since_ns", "seen_ns", "head_peer", "head_channel", "open_bytes")
    numbers = {name: column_of(rows, name, np.int64) for name in (*names, "open_ns")}
    n, first_ns = column_of(rows, "n", np.int64), column_of(rows, "first_ns", np.int64)
    many = n > _FEW_ROWS
    gaps = (numbers["seen_ns"][many] - first_ns[many]) / (n[many] - 1)
    interval_ns = int(min(np.median(gaps), NS_PER_S)) if len(gaps) else 0  # rows come every second, or more often
    if interval_ns == 0:
        # A row or two cannot tell for how long; the operation that they show open can.
        once = (column_of(rows, "same", np.int64) == 1) & (numbers["open_ns"] > 0)
        numbers["since_ns"] = np.where(once, np.minimum(numbers["open_ns"], numbers["since_ns"]), numbers["since_ns"])
    lines = Lines(process, comm, rank, **numbers, **texts, untimed=column_of(rows, "untimed", np.bool_))
    now_ns = int(numbers["seen_ns"].max(initial=0))
    has_ended = numbers["done"] > column_of(rows, "first_done", np.int64)
    # All that was seen of a job that ended something stands for its first step.
    age_ns = int(numbers["since_ns"].max() - first_ns.min()) if has_ended.any() and has_ended.mean() >= 0.5 else 0
    period_ns = min(age_ns, _OLDEST_NS) if age_ns >= _YOUNGEST_NS else None
    return ProgressFacts(drop_unknown(lines), people, now_ns, period_ns, interval_ns)


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
