"""Which clocks can be compared, and how well: each host's offset from the others, with a bound on its error.

A host tells its own offset (`clocks`: from PTP, NTP, or two-way probes that the collector made). What was told is
then held against what cannot be: no rank ends an AllReduce, AllGather or ReduceScatter before the last rank has begun
it, so

    start on a - offset of a  <=  end on b - offset of b

for every two hosts of an operation. A host that breaks this has a clock that jumped or a bound that was too bold; its
error is widened by as much as it takes. Round-trip times of probes alone say nothing about offsets.

Cost: O(hosts) per operation that is looked at.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import OF_HOSTS, WHOSE

# A reading is good for this long: quartz drifts by up to 50 ppm, 6 ms in two minutes, as much as NTP's own error.
_GOOD_FOR_NS = 120 * NS_PER_S
_DRIFT = 50e-6  # of a free running clock; what a reading's age adds to its error
_MOST_OPERATIONS = 200  # of a window; a jump shows in all that come after it

_READINGS = f"""
SELECT /*ask,*/ host, argMin(offset_ns, (error_ns, -ts_ns)) AS best_offset_ns, min(error_ns) AS best_error_ns,
       argMin(ts_ns, (error_ns, -ts_ns)) AS read_ns
FROM clocks WHERE {OF_HOSTS}
    AND ts_ns >= {{since:Int64}} AND ts_ns < {{until:Int64}}
GROUP BY /*ask,*/ host ORDER BY host
"""
_OPERATIONS = f"""
SELECT /*ask,*/ comm, func, seq, replay, host, max(start_ns) AS last_start_ns, min(end_ns) AS first_end_ns
FROM collectives
WHERE {WHOSE} AND seq_valid AND start_ns IS NOT NULL AND end_ns IS NOT NULL
    AND func IN ('AllReduce', 'AllGather', 'ReduceScatter') AND clock != 'none'
    AND enqueue_ns >= {{start:Int64}} AND enqueue_ns < {{end:Int64}}
    AND (/*ask,*/ comm, func, seq, replay) IN (
        SELECT /*ask,*/ comm, func, seq, replay FROM collectives
        WHERE {WHOSE} AND seq_valid
            AND enqueue_ns >= {{start:Int64}} AND enqueue_ns < {{end:Int64}}
        GROUP BY /*ask,*/ comm, func, seq, replay HAVING uniqExact(host) > 1
        ORDER BY cityHash64(comm, func, seq, replay) LIMIT {{most:UInt32}} /*BY ask*/)
GROUP BY /*ask,*/ comm, func, seq, replay, host
ORDER BY comm, func, seq, replay, host
"""


@dataclass(frozen=True)
class HostClocks:
    """What is known of the clocks of hosts; arrays are parallel to `hosts`."""

    hosts: tuple[str, ...] = ()  # sorted
    offset_ns: np.ndarray = field(
        default_factory=lambda: np.zeros(0, np.int64)
    )  # clock of the host minus the common reference
    error_ns: np.ndarray = field(default_factory=lambda: np.zeros(0))  # bound on the error of the offset

    def errors_of(self, hosts: np.ndarray) -> np.ndarray:
        """Return the bound on each host's error; infinite where its clock told nothing."""
        if not self.hosts:
            return np.full(len(hosts), np.inf)
        known = np.array(self.hosts, dtype=object)
        index = np.minimum(np.searchsorted(known, hosts), len(known) - 1)
        return np.where(known[index] == hosts, self.error_ns[index], np.inf)


def read_clocks(store: Store, context: Context) -> HostClocks:
    """Return the clocks of a job's hosts as they told them, with errors widened where operations contradict."""
    start_ns, end_ns = context.window.start_ns, context.window.end_ns
    since = {"hosts": context.host_list, "since": start_ns - _GOOD_FOR_NS, "until": end_ns}
    clocks = clocks_from(store.query(_READINGS, since), end_ns)
    if not clocks.hosts:
        return clocks
    return widen_errors(clocks, store.query(_OPERATIONS, context.parameters | {"most": _MOST_OPERATIONS}))


def clocks_from(readings: pa.Table, now_ns: int) -> HostClocks:
    """Return the clocks that one row per host tells of, each the older the less sure."""
    age_ns = np.maximum(now_ns - readings["read_ns"].to_numpy().astype(np.int64), 0)
    return HostClocks(
        hosts=tuple(readings["host"].to_pylist()),
        offset_ns=readings["best_offset_ns"].to_numpy().astype(np.int64),
        error_ns=readings["best_error_ns"].to_numpy().astype(np.float64) + age_ns * _DRIFT,
    )


def widen_errors(clocks: HostClocks, operations: pa.Table) -> HostClocks:
    """Return the clocks with errors under which no operation ends somewhere before it has begun everywhere.

    `operations` has a row per operation and host: the last start and the first end among its ranks.
    """
    names = np.array(operations["host"].to_pylist(), dtype=object)
    known = np.isin(names, np.array(clocks.hosts, dtype=object))
    rows = operations.filter(pa.array(known))
    if rows.num_rows == 0:
        return clocks
    index = np.searchsorted(np.array(clocks.hosts, dtype=object), names[known])
    start, end = (
        rows[name].to_numpy().astype(np.int64) - clocks.offset_ns[index] for name in ("last_start_ns", "first_end_ns")
    )
    latest, earliest = _per_operation(rows, start, end)
    widened = clocks.error_ns.copy()
    # Against all others of its operation: the host that is wrong is wrong in many, the others in these only.
    for contradiction in (start - earliest, latest - end):
        np.maximum.at(widened, index, contradiction.astype(np.float64))
    return replace(clocks, error_ns=widened)


def _per_operation(rows: pa.Table, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the latest start and the earliest end of each row's operation."""
    keys = rows.select(["comm", "func", "seq", "replay"])
    encoded = [np.asarray(keys[name].combine_chunks().dictionary_encode().indices) for name in keys.column_names]
    _, operation = np.unique(np.stack(encoded, axis=1), axis=0, return_inverse=True)
    operation = operation.reshape(-1)
    latest = np.full(operation.max() + 1, np.iinfo(np.int64).min)
    earliest = np.full(operation.max() + 1, np.iinfo(np.int64).max)
    np.maximum.at(latest, operation, start)
    np.minimum.at(earliest, operation, end)
    return latest[operation], earliest[operation]
