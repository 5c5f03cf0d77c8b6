"""Which NVLink is slow: communicators inside one host have no proxy steps, but their kernels take time.

Of all ranks of an operation, the one that comes last waits for nobody: its duration, the shortest, is what the data
needed. Groups of equal size that do the same operation on other hosts need the same, and so did this one before.
Which GPU of the group it is, durations cannot tell, since the others wait for it; its counters can.

Cost: O(groups log groups); the store reduces the operations.
"""

import numpy as np
import pyarrow as pa

from analyzer.context import Context
from analyzer.wires.columns import as_floats, keys_of, kinds_of
from analyzer.wires.judging import Delays, WireOptions, judge_delays
from analyzer.wires.matrix import InnerGroup, InnerMatrix
from analyzer.wires.memory import WireMemory
from lockstep.store.store import Store

_WHOSE = "job = {job:String} AND attempt = {attempt:UInt16}"
_DURATIONS = f"""
WITH inner_comms AS (
    SELECT comm, any(host) AS place, count() AS members, any(nranks) AS size FROM comms FINAL WHERE {_WHOSE}
    GROUP BY comm HAVING uniqExact(host) = 1 AND members > 1 AND members = size
), operations AS (
    SELECT comm, func, seq, replay, count() AS seen, any(bytes) AS moved,
           min(toInt64(end_ns) - toInt64(start_ns)) AS fastest
    FROM collectives
    WHERE {_WHOSE} AND comm IN (SELECT comm FROM inner_comms) AND peer < 0 AND algo NOT LIKE 'NVLS%'
        AND start_ns IS NOT NULL AND end_ns >= {{start:Int64}} AND end_ns < {{end:Int64}}
        AND enqueue_ns >= {{start:Int64}} - {{longest:Int64}}
    GROUP BY comm, func, seq, replay
)
SELECT comm, func, toUInt8(log2(greatest(moved, 1))) AS size_class, any(place) AS host, any(size) AS ranks,
       count() AS n, avg(moved) AS bytes, quantileExact(0.5)(fastest) AS fastest_ns
FROM operations INNER JOIN inner_comms USING (comm)
WHERE seen = size AND fastest > 0 AND moved > 0
GROUP BY comm, func, size_class
ORDER BY comm, func, size_class
"""
# Operations are stored by when they were enqueued; what takes longer than this before it ends is a hang's affair.
_LONGEST_NS = 60_000_000_000


def read_inner(store: Store, context: Context) -> pa.Table:
    """Return how long the fastest rank of each host-internal communicator took per operation, by kind."""
    return store.query(
        _DURATIONS,
        {
            "job": context.job,
            "attempt": context.attempt,
            "start": context.window.start_ns,
            "end": context.window.end_ns,
            "longest": _LONGEST_NS,
        },
    )


def judge_inner(
    rows: pa.Table, memory: WireMemory, context: Context, options: WireOptions
) -> tuple[InnerMatrix | None, WireMemory]:
    """Return how slow each group inside a host is, None when there is nothing to compare, and what is remembered."""
    comm = rows["comm"].to_numpy().astype(np.uint64)
    if len(np.unique(comm)) < options.min_wires:
        return None, memory
    comms, place = np.unique(comm, return_inverse=True)
    size, times = as_floats(rows["bytes"]), as_floats(rows["n"])
    duration = as_floats(rows["fastest_ns"]) / size
    delays = Delays(
        place=place.reshape(-1),
        kind=kinds_of(rows, ("func", "size_class", "ranks")),
        key=keys_of(rows, "inner", ("comm", "size_class")),
        bytes=size * times,
        n=times,
        ns_per_byte=duration,
        least=np.zeros(rows.num_rows),
        sharers=np.ones(rows.num_rows),
        ring=place.reshape(-1),
        rivals=place.reshape(-1),
        follows=np.zeros(rows.num_rows, bool),
        raw_ns_per_byte=duration,
        is_net=np.zeros(rows.num_rows, bool),
        decides=np.zeros(rows.num_rows, bool),
    )
    window_ns = context.window.end_ns - context.window.start_ns
    score = judge_delays(delays, memory.recall(delays.key), len(comms), window_ns, options)
    calm = ~score.wary[delays.place]
    memory = memory.learn(delays.key[calm], np.log(delays.ns_per_byte[calm]))
    groups = _groups(comms, rows, comm, context)
    return InnerMatrix(groups, score.ratio, score.sigmas, score.hot), memory


def _groups(comms: np.ndarray, rows: pa.Table, comm: np.ndarray, context: Context) -> tuple[InnerGroup, ...]:
    _, first = np.unique(comm, return_index=True)
    hosts = rows["host"].take(pa.array(first)).to_pylist()
    return tuple(InnerGroup(host, _gpus(int(number), context)) for number, host in zip(comms, hosts, strict=True))


def _gpus(comm: int, context: Context) -> tuple[int, ...]:
    gpus = context.roster.gpu_of[context.roster.members(comm)]
    return tuple(sorted({int(gpu) for gpu in gpus if gpu >= 0}))
