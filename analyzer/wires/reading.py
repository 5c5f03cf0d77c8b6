"""What the store knows of wires: waits of both ends, both sides of single steps, and how far clocks are apart.

A connection has two ends, each told of by its own host. The sender knows how long it waited for the wire, the
receiver how long its GPU kept the buffer occupied; what is known of connections names NIC and source port of each
end, and the path catalogue the links that a source port leads over. CollNet and NVLS have no peer and never enter,
nor does what stays inside a host.

Cost: one row per communicator, function, size class, channel and pair of ranks leaves the store; the sums over
seconds and steps are its work.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.clocks import HostClocks, read_clocks
from analyzer.context import Context
from analyzer.hosts import OF_HOSTS, list_hosts
from analyzer.windows import Window
from analyzer.wires.columns import keys_of
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

# One row for both sides; Send on one is Recv on the other, and the sender's part decides whether there is a row. Of a
# rank that moved to another host there are rows from both: the newest host counts.
_WAITS = """
SELECT comm, if(func = 'Recv', 'Send', func) AS what, size_class,
       if(sends, toInt64(rank), toInt64(peer)) AS src_rank, if(sends, toInt64(peer), toInt64(rank)) AS dst_rank,
       channel, argMaxIf(host, moment, sends) AS src_host, nullIf(argMaxIf(host, moment, NOT sends), '') AS dst_host,
       maxIf(nic, sends) AS told_src_nic, maxIf(nic, NOT sends) AS told_dst_nic, maxIf(transport, sends) AS carrier,
       sumIf(n, sends) AS transfers, sumIf(bytes, sends) AS moved, sumIf(wire_ns, sends) AS wire,
       maxIf(wire_max_ns, sends) AS wire_max, sumIf(gpu_wait_ns, NOT sends) AS recv_gpu_ns,
       sumIf(flush_ns, NOT sends) AS flush, sumIf(n, NOT sends) AS received
FROM (SELECT *, direction = 'send' AS sends FROM (%(rows)s))
WHERE NOT sends OR (wire_ns IS NOT NULL
    AND (transport IS NULL OR transport NOT IN ('p2p', 'shm', 'collnet', 'nvls')))
GROUP BY comm, what, size_class, src_rank, dst_rank, channel HAVING moved > 0
ORDER BY comm, what, size_class, src_rank, dst_rank, channel
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
_PATHS = f"""
SELECT host AS src_host, src_nic,
       if(dst IS NULL OR dst = '', splitByChar('/', dst_nic)[1], assumeNotNull(dst)) AS dst_host,
       if(position(dst_nic, '/') > 0, splitByChar('/', dst_nic)[2], dst_nic) AS far_nic, sport,
       argMax(links, (seen_ns < {{then:Int64}}, if(seen_ns < {{then:Int64}}, seen_ns, -seen_ns), confidence)) AS way
FROM paths WHERE {OF_HOSTS}
GROUP BY src_host, src_nic, dst_host, far_nic, sport
ORDER BY src_host, src_nic, dst_host, far_nic, sport
"""


# Columns by what they are called from here on, where that differs: in SQL such a name would be taken for the column
# that it is made of.
_NAMES = {
    "what": "func",
    "transfers": "n",
    "moved": "bytes",
    "wire": "wire_ns",
    "wire_max": "wire_max_ns",
    "flush": "flush_ns",
    "known_port": "sport",
}
_ORDER = ("comm", "what", "size_class", "src_rank", "dst_rank", "channel")
CONNECTION = ("comm", "src_rank", "dst_rank", "channel")
_ENDS = ("src_nic", "dst_nic", "sport")
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
    told = store.query(_WAITS % {"rows": _STATS}, parameters)
    if told.num_rows == 0:
        told = store.query(_WAITS % {"rows": _TRANSFERS}, parameters)
    whose = {name: parameters[name] for name in ("job", "attempt")}
    waits = add_known(told, store.query(_KNOWN, whose))
    clocks, steps, lags = HostClocks(), _NOTHING, _NOTHING
    if needs_transits(waits):
        clocks = read_clocks(store, context)
        steps = name_ends(read_steps(store, context, clocks), waits)
        lags = name_ends(read_lags(store, context, clocks), waits)
    return WireFacts(
        waits=waits,
        steps=steps,
        lags=lags,
        flushes=store.query(_STARVING, parameters),
        paths=store.query(_PATHS, {"hosts": list_hosts(context.roster.hosts), "then": _middle(context.window)}),
        inner=read_inner(store, context),
        clocks=clocks,
    )


def _middle(window: Window) -> int:
    """Return the moment whose paths count: a connection that was moved since was elsewhere then."""
    return (window.start_ns + window.end_ns) // 2


def needs_transits(waits: pa.Table) -> bool:
    """Return whether some wire's own waits do not tell how long it takes."""
    return set(waits["transport"].to_pylist()) != {ACKNOWLEDGED}


def add_known(told: pa.Table, known: pa.Table) -> pa.Table:
    """Return the waits with NICs, ports and transport: as their rows tell them, else as is known of connections."""
    sends, receives = (known.filter(pc.equal(known["direction"], way)) for way in ("send", "recv"))
    waits = told.join(
        sends.drop_columns(["direction"]),
        ["comm", "src_rank", "dst_rank", "channel", "src_host"],
        ["comm", "near", "far", "channel", "side_host"],
    ).join(
        receives.select(["comm", "near", "far", "channel", "side_host", "known_nic"]),
        ["comm", "dst_rank", "src_rank", "channel", "dst_host"],
        ["comm", "near", "far", "channel", "side_host"],
        right_suffix="_there",
    )
    waits = waits.append_column("src_nic", pc.coalesce(waits["told_src_nic"], waits["known_nic"]))
    waits = waits.append_column("dst_nic", pc.coalesce(waits["told_dst_nic"], waits["known_nic_there"]))
    waits = waits.append_column("transport", pc.coalesce(waits["carrier"], waits["known_carrier"]))
    waits = waits.sort_by([(name, "ascending") for name in _ORDER])
    return waits.rename_columns([_NAMES.get(name, name) for name in waits.column_names])


def name_ends(rows: pa.Table, waits: pa.Table) -> pa.Table:
    """Return the rows with NICs and ports, where they tell none, as the waits of the same connections have them.

    Else a connection would be two wires: one between NICs and one between hosts.
    """
    keys, of = (keys_of(table, "connection", CONNECTION) for table in (waits, rows))
    known, first = np.unique(keys, return_index=True)
    place = np.minimum(np.searchsorted(known, of), max(len(known) - 1, 0))
    is_known = known[place] == of if len(known) else np.zeros(len(of), bool)
    wanted = pa.array(first[place] if len(known) else place, mask=~is_known)
    for name in _ENDS:
        better = waits[name].take(wanted).cast(rows[name].type)
        rows = rows.set_column(rows.column_names.index(name), name, pc.coalesce(rows[name], better))
    return rows
