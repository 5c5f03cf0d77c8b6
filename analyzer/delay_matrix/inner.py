"""How slow each group of GPUs inside a host is: by how long operations take that never leave it.

A communicator whose ranks are all on one host moves its bytes over NVLink or PCIe. The fastest rank of an operation
came last and waited for nobody: its time stands for the links, held against groups of as many ranks on other hosts.
"""

import numpy as np
import pyarrow as pa

from analyzer.delay_matrix.delays import Delays, PairOptions
from analyzer.delay_matrix.ends import as_errors, as_floats, keys_of, kinds_of
from analyzer.delay_matrix.judging import judge_delays
from analyzer.delay_matrix.matrix import InnerGroup, InnerMatrix, PairMemory
from analyzer.windows.window import Context
from lockstep.store.store import Store
from lockstep.store.together import WHOSE

_DURATIONS = f"""
WITH inner_comms AS (
    SELECT /*ask,*/ comm, any(host) AS on_host, count() AS members, any(nranks) AS size FROM comms FINAL WHERE {WHOSE}
    GROUP BY /*ask,*/ comm HAVING uniqExact(host) = 1 AND members > 1 AND members = size
), operations AS (
    SELECT /*ask,*/ comm, func, seq, replay, count() AS seen, any(bytes) AS moved,
           min(toInt64(end_ns) - toInt64(start_ns)) AS fastest
    FROM collectives
    WHERE {WHOSE} AND (/*ask,*/ comm) IN (SELECT /*ask,*/ comm FROM inner_comms)
        AND peer < 0 AND algo NOT LIKE 'NVLS%' AND start_ns IS NOT NULL
        AND end_ns >= {{start:Int64}} AND end_ns < {{end:Int64}}
        AND enqueue_ns >= {{start:Int64}} - {{longest:Int64}}
    GROUP BY /*ask,*/ comm, func, seq, replay
)
SELECT /*ask,*/ comm, func, toUInt8(log2(greatest(moved, 1))) AS size_class, any(on_host) AS host, any(size) AS ranks,
       count() AS n, avg(moved) AS bytes, quantileExact(0.5)(fastest) AS fastest_ns,
       if(n > 1, stddevSamp(fastest) / sqrt(n), NULL) AS error_ns
FROM operations INNER JOIN inner_comms USING (/*ask,*/ comm)
WHERE seen = size AND fastest > 0 AND moved > 0
GROUP BY /*ask,*/ comm, func, size_class
ORDER BY comm, func, size_class
"""
# Operations are stored by when they were enqueued; what takes longer than this before it ends is a hang's affair.
_LONGEST_NS = 60_000_000_000


def read_inner(store: Store, context: Context) -> pa.Table:
    """Return how long the fastest rank of each host-internal communicator took per operation, by kind."""
    return store.query(_DURATIONS, context.parameters | {"longest": _LONGEST_NS})


def judge_inner(
    rows: pa.Table, memory: PairMemory, context: Context, options: PairOptions
) -> tuple[InnerMatrix | None, PairMemory]:
    """Return how slow each group inside a host is, None when there is nothing to compare, and what is remembered."""
    comm = rows["comm"].to_numpy().astype(np.uint64)
    if len(np.unique(comm)) < options.min_pairs:
        return None, memory
    comms, index = np.unique(comm, return_inverse=True)
    size, times = as_floats(rows["bytes"]), as_floats(rows["n"])
    duration, nowhere = as_floats(rows["fastest_ns"]) / size, np.zeros(rows.num_rows, bool)
    delays = Delays(
        index=index.reshape(-1),
        kind=kinds_of(rows, ("func", "size_class", "ranks")),
        kind_key=keys_of(rows, "inner", ("size_class", "ranks")),
        key=keys_of(rows, "inner", ("comm", "size_class")),
        bytes=size * times,
        operation=index.reshape(-1),
        operations=times,
        ns_per_byte=duration,
        error=as_errors(rows) / size,
        least=np.zeros(rows.num_rows),
        sharers=np.ones(rows.num_rows),
        crowd=np.ones(rows.num_rows),
        flows=np.ones(rows.num_rows),
        ring=index.reshape(-1),
        rivals=index.reshape(-1),
        follows=nowhere,
        raw_ns_per_byte=duration,
        is_net=nowhere,
        decides=nowhere,
        is_new=~nowhere,
    )
    window_ns = context.window.end_ns - context.window.start_ns
    score = judge_delays(delays, memory.recall(delays.key), len(comms), window_ns, options)
    calm = ~score.wary[delays.index]
    memory = memory.learn(delays.key[calm], np.log(delays.ns_per_byte[calm]))
    hosts = rows["host"].take(pa.array(np.unique(comm, return_index=True)[1])).to_pylist()
    groups = tuple(InnerGroup(host, _gpus(int(number), context)) for number, host in zip(comms, hosts, strict=True))
    return InnerMatrix(groups, score.ratio, score.sigmas, score.slow), memory


def _gpus(comm: int, context: Context) -> tuple[int, ...]:
    gpus = context.roster.gpu_of[context.roster.members(comm)]
    return tuple(sorted({int(gpu) for gpu in gpus if gpu >= 0}))
