"""When a line ended its last operation, where rows of progress are too few to tell.

A recording has a row at its beginning and one at its end. Whoever has nothing open there may have ended its last
operation at any moment between the two, and only the row of that operation says when.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.hangs.facts import Lines
from lockstep.store.store import Parameters, Store

_ENDS = """
SELECT comm, rank, func, peer, toInt64(max(seq)) AS last_seq,
       argMax(ifNull(end_ns, enqueue_ns), seq) AS ended_ns
FROM collectives
WHERE job = {job:String} AND attempt = {attempt:UInt16} AND seq_valid
    AND enqueue_ns >= {start:Int64} AND enqueue_ns < {end:Int64}
GROUP BY comm, rank, func, peer
"""
_KEYS = ["comm", "rank", "func", "peer"]


def date_ends(store: Store, lines: Lines, whose: Parameters) -> Lines:
    """Return the lines, standing since their last operation ended where its row is there. Cost: O(lines)."""
    ends = store.query(_ENDS, whose)
    seq, end_ns = _match(lines, ends)
    told = (seq + 1 == lines.done) & (end_ns > 0)
    moved_ns = np.maximum(end_ns, lines.open_ns)  # what is open was begun after it
    return replace(lines, since_ns=np.where(told, np.minimum(lines.since_ns, moved_ns), lines.since_ns))


def _match(lines: Lines, ends: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return number and end of the newest finished operation of each line, -2 and -1 where there is none."""
    columns = {"comm": lines.comm, "rank": lines.rank, "func": lines.func.astype(str), "peer": lines.peer}
    asked = pa.table({**columns, "place": np.arange(len(lines))})
    known = pa.table(
        {name: ends[name].cast(asked.schema.field(name).type) for name in _KEYS}
        | {name: ends[name].cast(pa.int64()) for name in ("last_seq", "ended_ns")}
    )
    joined = asked.join(known, _KEYS, join_type="left outer").sort_by("place")
    return np.asarray(pc.fill_null(joined["last_seq"], -2)), np.asarray(pc.fill_null(joined["ended_ns"], -1))
