"""What the store knows of wires: waits of both ends, both sides of single steps, and how far clocks are apart.

A connection has two ends, each told of by its own host. The sender knows how long it waited for the wire, the
receiver how long its GPU kept the buffer occupied; what is known of connections names NIC and source port of each
end, and the path catalogue the links that a source port leads over. CollNet and NVLS have no peer and never enter,
nor does what stays inside a host.

Cost: one row per communicator, function, size class, channel and pair of ranks leaves the store; the sums over
seconds and steps are its work.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from analyzer.clocks import HostClocks, read_clocks
from analyzer.context import Context
from analyzer.wires.inner import read_inner
from analyzer.wires.matching import LONGEST_NS, read_lags, read_steps
from lockstep.store.store import Store

_WHOSE = "job = {job:String} AND attempt = {attempt:UInt16}"
_STATS = (
    "SELECT comm, func, rank, peer, channel, direction, size_class, host, nic, transport, n, bytes, gpu_wait_ns, "
    "wire_ns, wire_max_ns, CAST(NULL AS Nullable(Int64)) AS flush_ns, ts_ns AS moment "
    f"FROM transfer_stats WHERE {_WHOSE} AND peer >= 0 "
    "AND ts_ns >= {start:Int64} AND ts_ns < {end:Int64}"
)
_TRANSFERS = (
    "SELECT comm, func, rank, peer, channel, direction, toUInt8(log2(greatest(bytes, 1))) AS size_class, host, nic, "
    "transport, 1 AS n, bytes, gpu_wait_ns, wire_ns, wire_ns AS wire_max_ns, flush_ns, last_ns AS moment "
    f"FROM transfers WHERE {_WHOSE} AND peer >= 0 "
    f"AND last_ns >= {{start:Int64}} AND last_ns < {{end:Int64}} AND first_ns >= {{start:Int64}} - {LONGEST_NS}"
)

# One row per side; Send on one is Recv on the other. A rank that moved to another host has rows from both: the newest
# host counts. The two sides are joined here and not in SQL, where a join costs several times what the sums do.
_SIDES = """
SELECT comm, if(func = 'Recv', 'Send', func) AS what, size_class, direction, toInt64(rank) AS near,
       toInt64(peer) AS far, channel, argMax(host, moment) AS side_host, max(nic) AS told_nic,
       max(transport) AS carrier, sum(n) AS transfers,
       sum(bytes) AS moved, sum(wire_ns) AS wire, max(wire_max_ns) AS wire_max, sum(gpu_wait_ns) AS gpu_wait,
       sum(flush_ns) AS flush
FROM (%(rows)s)
WHERE direction = 'recv' OR (wire_ns IS NOT NULL
    AND (transport IS NULL OR transport NOT IN ('p2p', 'shm', 'collnet', 'nvls')))
GROUP BY comm, what, size_class, direction, near, far, channel
ORDER BY comm, what, size_class, near, far, channel
"""
_KNOWN = f"""
SELECT host AS side_host, assumeNotNull(comm) AS comm, toInt64(assumeNotNull(rank)) AS near,
       toInt64(assumeNotNull(peer)) AS far, assumeNotNull(channel) AS channel, direction,
       argMax(nic, (confidence, seen_ns)) AS known_nic,
       argMax(sport, (confidence, seen_ns)) AS known_port,
       argMax(toNullable(connections.transport), (confidence, seen_ns)) AS known_carrier
FROM connections
WHERE {_WHOSE} AND comm IS NOT NULL AND rank IS NOT NULL AND peer IS NOT NULL AND channel IS NOT NULL
GROUP BY side_host, comm, near, far, channel, direction
"""
_STARVING = f"""
SELECT host, sum(flush_ns) / greatest(sum(steps), 1) AS step_flush_ns, sum(steps) AS flushed
FROM transfers
WHERE {_WHOSE} AND direction = 'recv' AND flush_ns IS NOT NULL
    AND last_ns >= {{start:Int64}} AND last_ns < {{end:Int64}} AND first_ns >= {{start:Int64}} - {LONGEST_NS}
GROUP BY host ORDER BY host
"""
_PATHS = """
SELECT host AS src_host, src_nic,
       if(dst IS NULL OR dst = '', splitByChar('/', dst_nic)[1], assumeNotNull(dst)) AS dst_host,
       if(position(dst_nic, '/') > 0, splitByChar('/', dst_nic)[2], dst_nic) AS far_nic, sport,
       argMax(links, (seen_ns, confidence)) AS way
FROM paths WHERE host IN {hosts:Array(String)}
GROUP BY src_host, src_nic, dst_host, far_nic, sport
ORDER BY src_host, src_nic, dst_host, far_nic, sport
"""


_JOINED = ("comm", "what", "size_class", "near", "far", "channel")
_OF_RECEIVER = ("side_host", "nic", "gpu_wait", "flush", "transfers")
# Columns of the joined sides by what they are called from here on.
_WAITS = {
    "comm": "comm",
    "func": "what",
    "size_class": "size_class",
    "src_rank": "near",
    "dst_rank": "far",
    "channel": "channel",
    "src_host": "side_host",
    "dst_host": "far_side_host",
    "src_nic": "nic",
    "dst_nic": "far_nic",
    "transport": "transport",
    "sport": "known_port",
    "n": "transfers",
    "bytes": "moved",
    "wire_ns": "wire",
    "wire_max_ns": "wire_max",
    "recv_gpu_ns": "far_gpu_wait",
    "flush_ns": "far_flush",
    "received": "far_transfers",
}
_NOTHING = pa.table({})
ACKNOWLEDGED = "ib"  # the transport whose wire time ends when the other side has the bytes


@dataclass(frozen=True)
class WireFacts:
    """What the store knows of a job's wires in a window."""

    waits: pa.Table  # a row per communicator, function, size class, channel and pair of ranks
    steps: pa.Table  # likewise, from both sides of single steps, out of a longer time
    lags: pa.Table  # likewise, from the ends of whole transfers
    flushes: pa.Table  # host, step_flush_ns, flushed steps
    paths: pa.Table  # src_host, src_nic, dst_host, far_nic, sport, way
    inner: pa.Table  # durations of communicators inside one host
    clocks: HostClocks


def read_wires(store: Store, context: Context) -> WireFacts:
    """Return what the store knows of a job's wires; statistics where there are any, else complete transfers."""
    parameters = {
        "job": context.job,
        "attempt": context.attempt,
        "start": context.window.start_ns,
        "end": context.window.end_ns,
    }
    sides = store.query(_SIDES % {"rows": _STATS}, parameters)
    if sides.num_rows == 0:
        sides = store.query(_SIDES % {"rows": _TRANSFERS}, parameters)
    whose = {name: parameters[name] for name in ("job", "attempt")}
    waits = join_sides(sides, store.query(_KNOWN, whose))
    clocks, steps, lags = HostClocks(), _NOTHING, _NOTHING
    if needs_transits(waits):
        clocks = read_clocks(store, context)
        steps, lags = read_steps(store, context, clocks), read_lags(store, context, clocks)
    return WireFacts(
        waits=waits,
        steps=steps,
        lags=lags,
        flushes=store.query(_STARVING, parameters),
        paths=store.query(_PATHS, {"hosts": sorted(context.roster.hosts)}),
        inner=read_inner(store, context),
        clocks=clocks,
    )


def needs_transits(waits: pa.Table) -> bool:
    """Return whether some wire's own waits do not tell how long it takes."""
    return set(waits["transport"].to_pylist()) != {ACKNOWLEDGED}


def join_sides(sides: pa.Table, known: pa.Table) -> pa.Table:
    """Return a row per sender's side with what its receiver told, and NICs and ports as connections know them.

    The sender's row decides; the receiver's joins where it is there.
    """
    sides = _with_known(sides, known)
    is_send = pc.equal(sides["direction"], "send")
    sends, receives = sides.filter(is_send), sides.filter(pc.invert(is_send))
    sends = sends.filter(pc.greater(sends["moved"], 0))
    far = receives.select(["comm", "what", "size_class", "far", "near", "channel", *_OF_RECEIVER])
    far = far.rename_columns([*_JOINED, *(f"far_{name}" for name in _OF_RECEIVER)])
    joined = sends.join(far, list(_JOINED), join_type="left outer").sort_by([(name, "ascending") for name in _JOINED])
    return pa.table({name: joined[source] for name, source in _WAITS.items()})


def _with_known(sides: pa.Table, known: pa.Table) -> pa.Table:
    """Return the sides with NIC and transport as their rows tell them, else as is known of their connections."""
    keys = ["comm", "near", "far", "channel", "direction", "side_host"]
    joined = sides.join(known, keys, join_type="left outer")
    joined = joined.append_column("nic", pc.coalesce(joined["told_nic"], joined["known_nic"]))
    return joined.append_column("transport", pc.coalesce(joined["carrier"], joined["known_carrier"]))
