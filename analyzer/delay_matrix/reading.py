"""What the store knows of pairs: waits of both ends, both sides of single steps, and how far clocks are apart.

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

from analyzer.delay_matrix.clocks import HostClocks, read_clocks
from analyzer.delay_matrix.ends import find_rows, keys_of
from analyzer.delay_matrix.inner import read_inner
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import OF_HOSTS, WHOSE

# Transfers are stored by their beginning, so without this bound a window would read all that a job ever sent. What
# takes longer than an hour ends by NCCL's watchdog, not by itself.
LONGEST_NS = 3_600 * NS_PER_S
# Steps are recorded of one operation in many (64 by default): an evaluation of a few seconds often holds none; this
# far back they are still about now. Longer, and a verdict would outlive the fault by more than it is worth.
_STEPS_BACK_NS = 30 * NS_PER_S
_STALL_NS = NS_PER_S // 2  # beyond TCP's first retransmissions and any scheduler
_STALLED_FOR_NS = 60 * NS_PER_S  # after which it is a hang's affair
_FEWEST = 2  # operations in which a pair's busy time is looked at: one alone has no interval


# How much later than told a step may have left: sums cannot be corrected afterwards, so they are made for each of
# these, in steps of about two, and the one that clocks allow is read off. Beyond, clocks say nothing about a step.
SLACKS_NS = tuple(round(value * 1e3) for value in (0, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4))

# For how long the wire was busy with one operation: while a step had been handed over, its buffer was posted and the
# step before it had come in and been read, but it had not arrived. What a late GPU or host does moves those moments,
# too, so it does not count, whoever waits for whom. A queue that paces and TCP's large segments let steps arrive in
# clumps, so only their sum is the pair's time; while the wire never runs dry, that is of the receiver's clock alone.
# Both clocks are put right by what is known of them. A thread that has to be woken first delays some operations,
# hence what two thirds of those of the window keep below: slow in more than a third is a pair that comes and goes.
# Of two or fewer it is the newest one's; where one is in the window, the one before tells how much less it may be.
_STEPS = f"""
WITH told AS (
    SELECT /*ask,*/ comm, if(func = 'Recv', 'Send', func) AS what, seq, replay, epoch, rank, peer, channel,
           direction, step, host, nic, sport, bytes,
           transform(host, {{hosts:Array(String)}}, {{offsets:Array(Int64)}}, toInt64(0)) AS ahead,
           toInt64(posted_ns) - ahead AS posted, toInt64(wire_ns) - ahead AS moved, toInt64(done_ns) - ahead AS done
    FROM step_samples WHERE {WHOSE} AND peer >= 0
        AND done_ns >= {{start:Int64}} AND done_ns < {{end:Int64}}
), arrivals AS (
    SELECT *, greatest(posted, lagInFrame(moved, 1, toInt64(0)) OVER steps,
                       lagInFrame(done, 1, toInt64(0)) OVER steps) AS ready
    FROM told WHERE direction = 'recv'
    WINDOW steps AS (PARTITION BY /*ask,*/ comm, what, seq, replay, epoch, rank, peer, channel ORDER BY step
                     ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT /*ask,*/ comm, func, size_class, src_rank, dst_rank, channel, argMax(sender, newest) AS src_host,
       argMax(receiver, newest) AS dst_host, max(sender_nic) AS src_nic, max(receiver_nic) AS dst_nic,
       max(port) AS sport, argMax(counted, newest) AS steps, argMax(moved_bytes, newest) AS bytes,
       sum(counted) AS n, count() AS operations,
       if(operations > {_FEWEST}, quantileExactForEach(0.65)(busy), argMax(busy, newest)) AS busy_ns,
       multiIf(operations > {_FEWEST}, stddevSamp(busy[1]) / sqrt(operations),
               operations > 1, (argMax(busy[1], newest) - min(busy[1])) / 2, NULL) AS error_ns,
       argMax(least, newest) AS least_ns, median(paced) AS pace, min(newest) AS oldest_ns, max(newest) AS newest_ns
FROM (
    SELECT *, toUInt8(log2(moved_bytes)) AS size_class,
           row_number() OVER (PARTITION BY /*ask,*/ comm, func, size_class, src_rank, dst_rank, channel
                              ORDER BY newest DESC) AS age
    FROM (
        SELECT /*ask,*/ comm, what AS func, departures.rank AS src_rank, departures.peer AS dst_rank, channel,
               any(departures.host) AS sender, any(arrivals.host) AS receiver,
               max(departures.nic) AS sender_nic, max(arrivals.nic) AS receiver_nic, max(departures.sport) AS port,
               count() AS counted, sum(departures.bytes) AS moved_bytes,
               sumForEach(arrayMap(slack -> greatest(arrivals.moved - greatest(departures.moved + slack, ready), 0),
                                   CAST({list(SLACKS_NS)} AS Array(Int64)))) AS busy,
               min(arrivals.moved - departures.moved) AS least, max(arrivals.moved) AS newest,
               (newest - min(arrivals.moved)) / moved_bytes AS paced
        FROM (SELECT * FROM told WHERE direction = 'send') AS departures
        INNER JOIN arrivals USING (/*ask,*/ comm, what, seq, replay, epoch, channel, step)
        WHERE arrivals.rank = departures.peer AND arrivals.peer = departures.rank
        GROUP BY /*ask,*/ comm, what, seq, replay, epoch, departures.rank, departures.peer, channel
        HAVING moved_bytes > 0
    )
)
WHERE newest >= {{fresh:Int64}} OR age <= {_FEWEST}
GROUP BY /*ask,*/ comm, func, size_class, src_rank, dst_rank, channel
ORDER BY comm, func, size_class, src_rank, dst_rank, channel
"""

# What is still under way when the sender has handed over the last of a transfer: on sockets all transfers tell it,
# where steps are recorded of few. Not the pair's is what the receiver's GPU held up, nor can it be more than the
# receiver waited for data. NCCL keeps at most eight steps under way, so that many bytes may rightly be. One transfer
# that stalls counts as much as it cost, however many others do not.
_LAGS = f"""
WITH told AS (
    SELECT /*ask,*/ comm, if(func = 'Recv', 'Send', func) AS what, seq, replay, epoch, rank, peer, channel,
           direction, host, nic, sport, bytes, gpu_wait_ns, peer_wait_ns,
           toInt64(first_ns) - toInt64(last_ns) + last AS first,
           least(greatest(steps, 1), 8) AS open, bytes / greatest(steps, 1) * open AS under_way,
           toInt64(last_ns) - transform(host, {{hosts:Array(String)}}, {{offsets:Array(Int64)}}, toInt64(0)) AS last
    FROM transfers
    WHERE {WHOSE} AND peer >= 0 AND (transport IS NULL OR transport = 'socket')
        AND last_ns >= {{start:Int64}} - if(direction = 'send', {_STALLED_FOR_NS}, 0) AND last_ns < {{end:Int64}}
        AND first_ns >= {{start:Int64}} - {LONGEST_NS}
), matched AS (
    SELECT /*ask,*/ comm, what, channel, departures.rank AS src_rank, departures.peer AS dst_rank,
           departures.host AS sender, arrivals.host AS receiver, departures.nic AS sender_nic,
           arrivals.nic AS receiver_nic, departures.sport AS port, departures.bytes AS moved,
           departures.open AS open, departures.under_way AS under_way, arrivals.last AS arrived,
           arrivals.last - departures.last AS after,
           least(after - arrivals.gpu_wait_ns, arrivals.peer_wait_ns) AS lag,
           greatest(arrivals.first - departures.first, 0) AS absent, departures.last - departures.first AS lasted
    FROM (SELECT * FROM told WHERE direction = 'send') AS departures
    INNER JOIN (SELECT * FROM told WHERE direction = 'recv' AND gpu_wait_ns IS NOT NULL AND peer_wait_ns IS NOT NULL)
        AS arrivals USING (/*ask,*/ comm, what, seq, replay, epoch, channel)
    WHERE arrivals.rank = departures.peer AND arrivals.peer = departures.rank
)
SELECT /*ask,*/ comm, what AS func, toUInt8(log2(greatest(moved, 1))) AS size_class, src_rank, dst_rank, channel,
       any(sender) AS src_host, any(receiver) AS dst_host, max(sender_nic) AS src_nic, max(receiver_nic) AS dst_nic,
       max(port) AS sport, count() AS n, max(open) AS steps, avg(under_way) AS bytes,
       greatest(quantileExact(0.5)(lag), toInt64(sumIf(lag, lag > {_STALL_NS}) / count())) AS transit_ns,
       n AS operations, if(n > 1, stddevSamp(lag) / sqrt(n), NULL) AS error_ns,
       min(after) AS least_ns, avg(absent) AS absent_ns,
       median(lasted / greatest(moved, 1)) AS pace, max(arrived) AS newest_ns
FROM matched
GROUP BY /*ask,*/ comm, what, size_class, src_rank, dst_rank, channel
ORDER BY comm, func, size_class, src_rank, dst_rank, channel
"""


def read_steps(store: Store, context: Context, clocks: HostClocks) -> pa.Table:
    """Return how long sampled operations kept wires busy, per communicator, function, size, channel and ranks."""
    window = context.window
    back_ns = max(_STEPS_BACK_NS, window.end_ns - window.start_ns)
    timestamps = {"fresh": window.start_ns, "start": window.end_ns - back_ns}
    return store.query(_STEPS, _parameters(context, clocks) | timestamps)


def read_lags(store: Store, context: Context, clocks: HostClocks) -> pa.Table:
    """Return what was under way at the ends of transfers over sockets, in rows of the same shape."""
    return store.query(_LAGS, _parameters(context, clocks))


def _parameters(context: Context, clocks: HostClocks) -> dict[str, object]:
    return context.parameters | {"hosts": list(clocks.hosts), "offsets": clocks.offset_ns.tolist()}


_STATS = (
    "SELECT /*ask,*/ comm, func, rank, peer, channel, direction, size_class, host, nic, transport, n, bytes, "
    "gpu_wait_ns, wire_ns, wire_max_ns, ts_ns AS moment "
    f"FROM transfer_stats WHERE {WHOSE} AND peer >= 0 "
    "AND ts_ns >= {start:Int64} AND ts_ns < {end:Int64}"
)
_TRANSFERS = (
    "SELECT /*ask,*/ comm, func, rank, peer, channel, direction, toUInt8(log2(greatest(bytes, 1))) AS size_class, "
    "host, nic, transport, 1 AS n, bytes, gpu_wait_ns, wire_ns, wire_ns AS wire_max_ns, last_ns AS moment "
    f"FROM transfers WHERE {WHOSE} AND peer >= 0 "
    f"AND last_ns >= {{start:Int64}} AND last_ns < {{end:Int64}} AND first_ns >= {{start:Int64}} - {LONGEST_NS}"
)

# One row for both sides; Send on one is Recv on the other, and the sender's part decides whether there is a row. Of a
# rank that moved to another host there are rows from both: the newest host counts. How far the sum of wire times may
# be off by chance follows from how unevenly it falls on the sender's rows, each held against what its bytes take.
_WAITS = """
SELECT /*ask,*/ comm, if(func = 'Recv', 'Send', func) AS what, size_class,
       if(sends, toInt64(rank), toInt64(peer)) AS src_rank, if(sends, toInt64(peer), toInt64(rank)) AS dst_rank,
       channel, argMaxIf(host, moment, sends) AS src_host, nullIf(argMaxIf(host, moment, NOT sends), '') AS dst_host,
       maxIf(nic, sends) AS row_src_nic, maxIf(nic, NOT sends) AS row_dst_nic, maxIf(transport, sends) AS carrier,
       sumIf(n, sends) AS transfers, sumIf(bytes, sends) AS moved, sumIf(wire_ns, sends) AS wire,
       maxIf(wire_max_ns, sends) AS wire_max, sumIf(gpu_wait_ns, NOT sends) AS recv_gpu_ns,
       countIf(sends) AS operations, wire / moved AS usual, sumIf(pow(wire_ns, 2) / n, sends)
           - 2 * usual * sumIf(toFloat64(wire_ns) * bytes / n, sends)
           + usual * usual * sumIf(pow(bytes, 2) / n, sends) AS scatter,
       if(operations > 1, sqrt(transfers * greatest(scatter, 0) / (operations - 1)), NULL) AS error_ns
FROM (SELECT *, direction = 'send' AS sends FROM (%(rows)s))
WHERE NOT sends OR (wire_ns IS NOT NULL
    AND (transport IS NULL OR transport NOT IN ('p2p', 'shm', 'collnet', 'nvls')))
GROUP BY /*ask,*/ comm, what, size_class, src_rank, dst_rank, channel HAVING moved > 0
ORDER BY comm, what, size_class, src_rank, dst_rank, channel
"""
# Without transfers, as in what other tools record, sends and receives tell themselves: both sides of one end at once,
# and whoever comes last waits for nobody, so the side that takes less time tells what the wire took. No clocks are
# compared and no numbers of operations, which such tools count from anywhere; a GPU or host that is late makes the
# other side wait. The error of a median is 1.25 times that of a mean, and quartiles are 1.35 deviations apart.
_SENDS = f"""
WITH sides AS (
    SELECT /*ask,*/ comm, func = 'Send' AS sends, if(sends, toInt64(rank), toInt64(peer)) AS src_rank,
           if(sends, toInt64(peer), toInt64(rank)) AS dst_rank, toUInt8(log2(collectives.bytes)) AS size_class,
           argMax(host, end_ns) AS side_host, count() AS times, sum(collectives.bytes) AS sum_bytes,
           quantilesExact(0.25, 0.5, 0.75)(toInt64(end_ns) - toInt64(start_ns)) AS took
    FROM collectives
    WHERE {WHOSE} AND func IN ('Send', 'Recv') AND peer >= 0 AND collectives.bytes > 0 AND start_ns IS NOT NULL
        AND end_ns >= {{start:Int64}} AND end_ns < {{end:Int64}} AND enqueue_ns >= {{start:Int64}} - {LONGEST_NS}
    GROUP BY /*ask,*/ comm, sends, src_rank, dst_rank, size_class
)
SELECT /*ask,*/ comm, 'Send' AS what, size_class, src_rank, dst_rank, toUInt16(0) AS channel,
       anyIf(side_host, sends) AS src_host, anyIf(side_host, NOT sends) AS dst_host,
       CAST(NULL AS Nullable(String)) AS row_src_nic, CAST(NULL AS Nullable(String)) AS row_dst_nic,
       CAST(NULL AS Nullable(String)) AS carrier, argMin(times, took[2]) AS transfers,
       argMin(sum_bytes, took[2]) AS moved, toInt64(min(took[2]) * transfers) AS wire, wire AS wire_max,
       toInt64(0) AS recv_gpu_ns, transfers AS operations,
       if(operations > 1, 1.25 / 1.35 * argMin(took[3] - took[1], took[2]) * sqrt(operations), NULL) AS error_ns
FROM sides
GROUP BY /*ask,*/ comm, size_class, src_rank, dst_rank HAVING count() = 2
ORDER BY comm, size_class, src_rank, dst_rank
"""
# Which sighting counts: the surest, and of those the newest, as one number, because the engine compares tuples value
# by value. A confidence is not negative, so its bits sort as it does.
_SURENESS = (
    "bitOr(bitShiftLeft(toUInt128(reinterpretAsUInt64(confidence)), 64), toUInt128(ifNull(toUInt64(seen_ns) + 1, 0)))"
)
_KNOWN = f"""
SELECT /*ask,*/ host AS side_host, assumeNotNull(comm) AS comm, toInt64(assumeNotNull(rank)) AS near,
       toInt64(assumeNotNull(peer)) AS far, assumeNotNull(channel) AS channel, direction,
       argMax(nic, {_SURENESS}) AS known_nic, argMax(sport, {_SURENESS}) AS known_port,
       argMax(toNullable(connections.transport), {_SURENESS}) AS known_carrier
FROM connections
WHERE {WHOSE} AND comm IS NOT NULL AND rank IS NOT NULL AND peer IS NOT NULL AND channel IS NOT NULL
GROUP BY /*ask,*/ side_host, comm, near, far, channel, direction
"""
_PATHS = f"""
SELECT /*ask,*/ host AS src_host, src_nic,
       if(dst IS NULL OR dst = '', splitByChar('/', dst_nic)[1], assumeNotNull(dst)) AS dst_host,
       if(position(dst_nic, '/') > 0, splitByChar('/', dst_nic)[2], dst_nic) AS far_nic, sport,
       argMax(links, (seen_ns < {{then:Int64}}, if(seen_ns < {{then:Int64}}, seen_ns, -seen_ns), confidence)) AS route
FROM paths WHERE {OF_HOSTS}
GROUP BY /*ask,*/ src_host, src_nic, dst_host, far_nic, sport
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
}
CONNECTION = ("comm", "src_rank", "dst_rank", "channel")
_BACKWARDS = ("comm", "dst_rank", "src_rank", "channel")  # as the receiving side tells it
_ENDS = ("src_nic", "dst_nic", "sport")
_NOTHING = pa.table({})
ACKNOWLEDGED = "ib"  # the transport whose wire time ends when the other side has the bytes


@dataclass(frozen=True)
class PairFacts:
    """What the store knows of a job's wires in a window."""

    waits: pa.Table  # a row per communicator, function, size class, channel and pair of ranks
    steps: pa.Table  # likewise, from both sides of single steps, out of a longer time
    lags: pa.Table  # likewise, from the ends of whole transfers
    paths: pa.Table  # src_host, src_nic, dst_host, far_nic, sport, route
    inner: pa.Table  # durations of communicators inside one host
    clocks: HostClocks
    are_durations: bool = False  # waits are those of sends and receives, of the side that waited for nobody


def read_pairs(store: Store, context: Context) -> PairFacts:
    """Return what the store knows of a job's wires: statistics, else complete transfers, else sends and receives."""
    parameters, window = context.parameters, context.window
    rows = store.query(_WAITS % {"rows": _STATS}, parameters)
    if rows.num_rows == 0:
        rows = store.query(_WAITS % {"rows": _TRANSFERS}, parameters)
    are_durations = rows.num_rows == 0 and (sends := store.query(_SENDS, parameters)).num_rows > 0
    rows = sends if are_durations else rows
    waits = add_known(rows, store.query(_KNOWN, parameters))
    clocks, steps, lags = HostClocks(), _NOTHING, _NOTHING
    if needs_transits(waits) and not are_durations:
        clocks = read_clocks(store, context)
        steps = name_ends(read_steps(store, context, clocks), waits)
        lags = name_ends(read_lags(store, context, clocks), waits)
    return PairFacts(
        waits=waits,
        steps=steps,
        lags=lags,
        # A connection that was moved since was elsewhere in the middle of the window.
        paths=store.query(_PATHS, {"hosts": context.host_list, "then": (window.start_ns + window.end_ns) // 2}),
        inner=read_inner(store, context),
        clocks=clocks,
        are_durations=are_durations,
    )


def needs_transits(waits: pa.Table) -> bool:
    """Return whether some pair's own waits do not tell how long it takes."""
    return bool(waits["transport"].unique().to_pylist() != [ACKNOWLEDGED])


def add_known(rows: pa.Table, known: pa.Table) -> pa.Table:
    """Return the waits with NICs, ports and transport: as their rows tell them, else as is known of connections."""
    sends, receives = (known.filter(pc.equal(known["direction"], direction)) for direction in ("send", "recv"))
    near = find_rows(_sides_of(sends), keys_of(rows, "side", CONNECTION, "src_host"))
    there = find_rows(_sides_of(receives), keys_of(rows, "side", _BACKWARDS, "dst_host"))
    columns = {
        "src_nic": pc.coalesce(rows["row_src_nic"], sends["known_nic"].take(near)),
        "dst_nic": pc.coalesce(rows["row_dst_nic"], receives["known_nic"].take(there)),
        "transport": pc.coalesce(rows["carrier"], sends["known_carrier"].take(near)),
        "sport": sends["known_port"].take(near),
    }
    for name, column in columns.items():
        rows = rows.append_column(name, column)
    return rows.rename_columns([_NAMES.get(name, name) for name in rows.column_names])


def _sides_of(known: pa.Table) -> np.ndarray:
    return keys_of(known, "side", ("comm", "near", "far", "channel"), "side_host")


def name_ends(rows: pa.Table, waits: pa.Table) -> pa.Table:
    """Return the rows with NICs and ports, where they tell none, as the waits of the same connections have them.

    Else a connection would be two pairs: one between NICs and one between hosts.
    """
    wanted = find_rows(*(keys_of(table, "connection", CONNECTION) for table in (waits, rows)))
    for name in _ENDS:
        better = waits[name].take(wanted).cast(rows[name].type)
        rows = rows.set_column(rows.column_names.index(name), name, pc.coalesce(rows[name], better))
    return rows
