"""Both sides of one step, and of one transfer: how long bytes were on their way, where waits do not tell.

On sockets a sender is done when the kernel took the bytes, so only sender and receiver together know how long they
took. Clocks of hosts differ; what is known of them is taken off, and `least_ns` shows how well that went: it is never
negative while clocks are right.
"""

import pyarrow as pa

from analyzer.clocks import HostClocks
from analyzer.context import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store

# Transfers are stored by their beginning, so without this bound a window would read all that a job ever sent. What
# takes longer than an hour ends by NCCL's watchdog, not by itself.
LONGEST_NS = 3_600 * NS_PER_S
# Steps are recorded of one operation in many (64 by default), so a look of a few seconds often holds none; this far
# back they are still about now. Longer, and a verdict would outlive the fault by more than it is worth.
_STEPS_BACK_NS = 30 * NS_PER_S
_STALL_NS = NS_PER_S // 2  # beyond TCP's first retransmissions and any scheduler
_STALLED_FOR_NS = 60 * NS_PER_S  # after which it is a hang's affair
_WHOSE = "job = {job:String} AND attempt = {attempt:UInt16}"

# How much later than told a step may have left: sums cannot be corrected afterwards, so they are made for each of
# these, in steps of about two, and the one that clocks allow is read off. Beyond, clocks say nothing about a step.
SLACKS_NS = tuple(round(value * 1e3) for value in (0, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4))

# For how long the wire was busy with one operation: while a step had been handed over, its buffer was posted and the
# step before it had come in and been read, but it had not arrived. What a late GPU or host does moves those moments,
# too, so it does not count, whoever waits for whom. A queue that paces and TCP's large segments let steps arrive in
# clumps, so only their sum is the wire's time; while the wire never runs dry, that is of the receiver's clock alone.
# Both clocks are put right by what is known of them. A thread that has to be woken first delays some operations,
# hence what two thirds of those of the window keep below: slow in more than a third is a wire that comes and goes.
# Where there are none in the window, the newest one before it.
_STEPS = f"""
WITH told AS (
    SELECT comm, if(func = 'Recv', 'Send', func) AS what, seq, replay, epoch, rank, peer, channel, direction, step,
           host, nic, sport, bytes,
           transform(host, {{hosts:Array(String)}}, {{offsets:Array(Int64)}}, toInt64(0)) AS ahead,
           toInt64(posted_ns) - ahead AS posted, toInt64(wire_ns) - ahead AS moved, toInt64(done_ns) - ahead AS done
    FROM step_samples WHERE {_WHOSE} AND peer >= 0
        AND done_ns >= {{start:Int64}} AND done_ns < {{end:Int64}}
), arrivals AS (
    SELECT *, greatest(posted, lagInFrame(moved, 1, toInt64(0)) OVER steps,
                       lagInFrame(done, 1, toInt64(0)) OVER steps) AS ready
    FROM told WHERE direction = 'recv'
    WINDOW steps AS (PARTITION BY comm, what, seq, replay, epoch, rank, peer, channel ORDER BY step
                     ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT comm, func, toUInt8(log2(moved_bytes)) AS size_class, src_rank, dst_rank, channel,
       argMax(sender, newest) AS src_host,
       argMax(receiver, newest) AS dst_host, max(sender_nic) AS src_nic, max(receiver_nic) AS dst_nic,
       max(port) AS sport, argMax(counted, newest) AS steps, argMax(moved_bytes, newest) AS bytes,
       if(countIf(newest >= {{fresh:Int64}}) > 0, sumIf(counted, newest >= {{fresh:Int64}}), steps) AS n,
       if(countIf(newest >= {{fresh:Int64}}) > 0, quantileExactForEachIf(0.65)(busy, newest >= {{fresh:Int64}}),
          argMax(busy, newest)) AS busy_ns, argMax(least, newest) AS least_ns, max(newest) AS newest_ns
FROM (
    SELECT comm, what AS func, departures.rank AS src_rank, departures.peer AS dst_rank, channel,
           any(departures.host) AS sender, any(arrivals.host) AS receiver,
           max(departures.nic) AS sender_nic, max(arrivals.nic) AS receiver_nic, max(departures.sport) AS port,
           count() AS counted, sum(departures.bytes) AS moved_bytes,
           sumForEach(arrayMap(slack -> greatest(arrivals.moved - greatest(departures.moved + slack, ready), 0),
                               {{slacks:Array(Int64)}})) AS busy,
           min(arrivals.moved - departures.moved) AS least, max(arrivals.moved) AS newest
    FROM (SELECT * FROM told WHERE direction = 'send') AS departures
    INNER JOIN arrivals USING (comm, what, seq, replay, epoch, channel, step)
    WHERE arrivals.rank = departures.peer AND arrivals.peer = departures.rank
    GROUP BY comm, what, seq, replay, epoch, departures.rank, departures.peer, channel
    HAVING moved_bytes > 0
)
GROUP BY comm, func, size_class, src_rank, dst_rank, channel
ORDER BY comm, func, size_class, src_rank, dst_rank, channel
"""

# What is still under way when the sender has handed over the last of a transfer: on sockets all transfers tell it,
# where steps are recorded of few. Not the wire's is what the receiver's GPU held up, nor can it be more than the
# receiver waited for data. NCCL keeps at most eight steps under way, so that many bytes may rightly be. One transfer
# that stalls counts as much as it cost, however many others do not.
_LAGS = f"""
WITH told AS (
    SELECT comm, if(func = 'Recv', 'Send', func) AS what, seq, replay, epoch, rank, peer, channel, direction, host,
           nic, sport, bytes, gpu_wait_ns, peer_wait_ns, toInt64(first_ns) - toInt64(last_ns) + last AS first,
           least(greatest(steps, 1), 8) AS open, bytes / greatest(steps, 1) * open AS under_way,
           toInt64(last_ns) - transform(host, {{hosts:Array(String)}}, {{offsets:Array(Int64)}}, toInt64(0)) AS last
    FROM transfers
    WHERE {_WHOSE} AND peer >= 0 AND (transport IS NULL OR transport = 'socket')
        AND last_ns >= {{start:Int64}} - if(direction = 'send', {_STALLED_FOR_NS}, 0) AND last_ns < {{end:Int64}}
        AND first_ns >= {{start:Int64}} - {LONGEST_NS}
), matched AS (
    SELECT comm, what, channel, departures.rank AS src_rank, departures.peer AS dst_rank,
           departures.host AS sender, arrivals.host AS receiver, departures.nic AS sender_nic,
           arrivals.nic AS receiver_nic, departures.sport AS port, departures.bytes AS moved,
           departures.open AS open, departures.under_way AS under_way, arrivals.last AS arrived,
           arrivals.last - departures.last AS after,
           least(after - arrivals.gpu_wait_ns, arrivals.peer_wait_ns) AS lag,
           greatest(arrivals.first - departures.first, 0) AS absent
    FROM (SELECT * FROM told WHERE direction = 'send') AS departures
    INNER JOIN (SELECT * FROM told WHERE direction = 'recv' AND gpu_wait_ns IS NOT NULL AND peer_wait_ns IS NOT NULL)
        AS arrivals USING (comm, what, seq, replay, epoch, channel)
    WHERE arrivals.rank = departures.peer AND arrivals.peer = departures.rank
)
SELECT comm, what AS func, toUInt8(log2(greatest(moved, 1))) AS size_class, src_rank, dst_rank, channel,
       any(sender) AS src_host, any(receiver) AS dst_host, max(sender_nic) AS src_nic, max(receiver_nic) AS dst_nic,
       max(port) AS sport, count() AS n, max(open) AS steps, avg(under_way) AS bytes,
       greatest(quantileExact(0.5)(lag), toInt64(sumIf(lag, lag > {_STALL_NS}) / count())) AS transit_ns,
       min(after) AS least_ns, avg(absent) AS absent_ns, max(arrived) AS newest_ns
FROM matched
GROUP BY comm, what, size_class, src_rank, dst_rank, channel
ORDER BY comm, func, size_class, src_rank, dst_rank, channel
"""


def read_steps(store: Store, context: Context, clocks: HostClocks) -> pa.Table:
    """Return how long sampled operations kept wires busy, per communicator, function, size, channel and ranks."""
    window = context.window
    back_ns = max(_STEPS_BACK_NS, window.end_ns - window.start_ns)
    moments = {"fresh": window.start_ns, "start": window.end_ns - back_ns, "slacks": list(SLACKS_NS)}
    return store.query(_STEPS, _parameters(context, clocks) | moments)


def read_lags(store: Store, context: Context, clocks: HostClocks) -> pa.Table:
    """Return what was under way at the ends of transfers over sockets, in rows of the same shape."""
    return store.query(_LAGS, _parameters(context, clocks))


def _parameters(context: Context, clocks: HostClocks) -> dict[str, object]:
    return {
        "job": context.job,
        "attempt": context.attempt,
        "start": context.window.start_ns,
        "end": context.window.end_ns,
        "hosts": list(clocks.hosts),
        "offsets": clocks.offset_ns.tolist(),
    }
