"""How far the data of open operations got: network steps that ended on each side of each connection."""

import numpy as np

from analyzer.context import Context
from analyzer.hangs.facts import NO_STEPS, Lines, StepCounts
from lockstep.clock import NS_PER_S
from lockstep.store.store import Parameters, Store

# Steps come in from the moment an operation begins; a hang that is older than this has been told of long ago.
_LOOK_BACK_NS = 600 * NS_PER_S
_MOST_ROWS = 4_000_000  # 65,536 ranks with 16 channels both ways, and one operation before: what fits into memory
_STEPS = f"""
SELECT comm, func, seq, rank, channel, peer, direction = 'send' AS sends, uniqExact(step) AS steps
FROM step_samples
WHERE job = {{job:String}} AND attempt = {{attempt:UInt16}} AND comm IN {{comms:Array(UInt64)}}
    AND seq IN {{seqs:Array(UInt64)}} AND peer >= 0 AND replay = 0
    AND posted_ns >= {{start:Int64}} AND posted_ns < {{end:Int64}}
GROUP BY comm, func, seq, rank, channel, peer, direction ORDER BY comm LIMIT {_MOST_ROWS}
"""
EARLIER = 2  # operations before the open one whose steps tell whether every operation is recorded


def read_steps(store: Store, lines: Lines, context: Context) -> StepCounts:
    """Return the steps of the operations that somebody is inside of, where steps are recorded at all."""
    inside = lines.started > lines.done
    if not inside.any():
        return NO_STEPS
    done = np.unique(lines.done[inside])
    seqs = np.unique(np.maximum(done[:, None] - np.arange(EARLIER + 1), 0))
    end_ns = context.window.end_ns
    wanted: Parameters = {"job": context.job, "attempt": context.attempt, "start": end_ns - _LOOK_BACK_NS}
    wanted = {**wanted, "end": end_ns, "comms": np.unique(lines.comm[inside]).tolist(), "seqs": seqs.tolist()}
    rows = store.query(_STEPS, wanted)
    if rows.num_rows == 0:
        return NO_STEPS
    numbers = {name: np.asarray(rows[name]).astype(np.int64) for name in ("seq", "rank", "channel", "peer", "steps")}
    return StepCounts(
        comm=np.asarray(rows["comm"]).astype(np.uint64),
        func=np.array(rows["func"].to_pylist(), object),
        sends=np.asarray(rows["sends"]).astype(bool),
        **numbers,
    )
