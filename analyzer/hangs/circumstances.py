"""What else is known when a job stands still: events, silent hosts, NICs without carrier, connections that wait."""

from dataclasses import replace
from typing import Any

import numpy as np

from analyzer.context import Context, End
from analyzer.hangs.facts import Happening, ProgressFacts, Wire, WireKey
from analyzer.hangs.traffic import read_steps
from analyzer.hosts import OF_HOSTS, list_hosts
from lockstep.clock import NS_PER_S
from lockstep.store.store import Parameters, Store

# In a job of thousands everybody waits to receive; their connections would be all there are.
_MOST_READERS = 1024
_LOOK_BACK_NS = 600 * NS_PER_S  # NCCL's own watchdog ends a hang after ten minutes
_WHEN_AND_WHERE = f"ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}} AND {OF_HOSTS}"
_EVENTS = f"""
SELECT host, ts_ns, kind, component, message FROM events
WHERE {_WHEN_AND_WHERE} AND (severity != 'info' OR kind IN ('link_up', 'process_continued'))
ORDER BY ts_ns, host, kind, component, message
"""
_HEARD = f"SELECT host, max(watermark_ns) AS heard_ns FROM agents WHERE {_WHEN_AND_WHERE} GROUP BY host"
_LAST_ROWS = f"""
SELECT host, max(ts_ns) AS last_ns FROM progress
WHERE job = {{job:String}} AND attempt = {{attempt:UInt16}} AND {_WHEN_AND_WHERE} GROUP BY host
"""
# A NIC that was up before and has no carrier now; those that nobody ever plugged in do not count.
_DOWN = f"""
SELECT host, nic, maxIf(ts_ns, up) AS since_ns FROM nic_counters WHERE {_WHEN_AND_WHERE}
GROUP BY host, nic HAVING argMax(up, ts_ns) = 0 AND max(up) = 1
"""
_WIRES = """
SELECT comm AS comm_, rank AS rank_, peer AS peer_, channel AS channel_, direction, host AS host_,
       argMax(nic, (confidence, seen_ns)) AS nic_, any(transport) AS transport_
FROM connections
WHERE job = {job:String} AND attempt = {attempt:UInt16} AND comm IN {comms:Array(UInt64)}
    AND (rank IN {ranks:Array(UInt32)} OR peer IN {ranks:Array(UInt32)}) AND channel IS NOT NULL
    AND (seen_ns IS NULL OR seen_ns < {end:Int64})
GROUP BY comm, rank, peer, channel, direction, host
"""
# Not every source of connections tells channels; a host that uses a single NIC for all of them needs none.
_ONLY_NICS = """
SELECT host, any(nic) AS only FROM connections
WHERE job = {job:String} AND attempt = {attempt:UInt16} AND nic IS NOT NULL AND transport IN ('ib', 'socket', 'ofi')
    AND (seen_ns IS NULL OR seen_ns < {end:Int64})
GROUP BY host HAVING uniqExact(nic) = 1
"""


def add_circumstances(store: Store, facts: ProgressFacts, context: Context) -> ProgressFacts:
    """Return the facts together with everything that helps to explain a standstill."""
    end_ns = context.window.end_ns
    hosts = set(facts.people.host_of.tolist())
    span: Parameters = {"start": end_ns - _LOOK_BACK_NS, "end": end_ns, "hosts": list_hosts(hosts)}
    down, heard = store.query(_DOWN, span).to_pylist(), store.query(_HEARD, span).to_pylist()
    heard_ns = {row["host"]: row["heard_ns"] for row in heard}
    return replace(
        facts,
        happenings=tuple(Happening(**row) for row in store.query(_EVENTS, span).to_pylist()),
        down_since_ns={End(row["host"], row["nic"]): row["since_ns"] for row in down},
        heard_ns=heard_ns,
        last_row_ns=_read_last_rows(store, {**span, "hosts": list_hosts(hosts - heard_ns.keys())}, context),
        wires=_read_wires(store, facts, context),
        only_nic=_read_only_nics(store, context),
        steps=read_steps(store, facts.lines, context),
    )


def _read_last_rows(store: Store, span: Parameters, context: Context) -> dict[str, int]:
    whose: Parameters = {"job": context.job, "attempt": context.attempt, **span}
    found = store.query(_LAST_ROWS, whose).to_pylist() if span["hosts"] else []
    return {row["host"]: row["last_ns"] for row in found}


def _read_only_nics(store: Store, context: Context) -> dict[str, str]:
    whose: Parameters = {"job": context.job, "attempt": context.attempt, "end": context.window.end_ns}
    return {row["host"]: row["only"] for row in store.query(_ONLY_NICS, whose).to_pylist()}


def _read_wires(store: Store, facts: ProgressFacts, context: Context) -> dict[WireKey, Wire]:
    """Return the connections of the ranks whose oldest step waits for the network."""
    lines = facts.lines
    waits = (lines.state == "wire") & (lines.head_peer >= 0)
    reads = np.isin(lines.state.astype(str), ("recv_wait", "recv_gpu_wait", "gpu_wait")) & (lines.head_peer >= 0)
    waits |= reads & (reads.sum() <= _MOST_READERS)
    if not waits.any():
        return {}
    wanted: Parameters = {"job": context.job, "attempt": context.attempt, "end": context.window.end_ns}
    comms, ranks = np.unique(lines.comm[waits]).tolist(), np.unique(lines.rank[waits]).tolist()
    rows = store.query(_WIRES, {**wanted, "comms": comms, "ranks": ranks}).to_pylist()
    return join_sides(rows)


def join_sides(rows: list[dict[str, Any]]) -> dict[WireKey, Wire]:
    """Return connections from what each of their sides told."""
    wires: dict[WireKey, Wire] = {}
    for row in rows:
        end, is_send = End(row["host_"], row["nic_"]), row["direction"] == "send"
        src, dst = (row["rank_"], row["peer_"]) if is_send else (row["peer_"], row["rank_"])
        key = (row["comm_"], src, dst, row["channel_"])
        known = wires.get(key, Wire(None, None, row["transport_"]))
        wires[key] = replace(known, src=end) if is_send else replace(known, dst=end)
    return wires
