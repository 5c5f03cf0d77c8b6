"""How far the data of open operations got: network steps that ended on each side of each connection, and when."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.context import Context
from analyzer.hangs.facts import NO_STEPS, Lines, ProgressFacts, StepCounts
from lockstep.clock import NS_PER_S
from lockstep.store.store import Parameters, Store

# Steps come in from the moment an operation begins; a hang that is older than this has been told of long ago.
_LOOK_BACK_NS = 600 * NS_PER_S
_MOST_ROWS = 4_000_000  # 65,536 ranks with 16 channels both ways, and one operation before: what fits into memory
_STEPS = f"""
SELECT comm, func, seq, rank, channel, peer, direction = 'send' AS sends, uniqExact(step) AS steps,
       max(done_ns) AS last_ns
FROM step_samples
WHERE job = {{job:String}} AND attempt = {{attempt:UInt16}} AND comm IN {{comms:Array(UInt64)}}
    AND seq IN {{seqs:Array(UInt64)}} AND peer >= 0 AND replay = 0
    AND posted_ns >= {{start:Int64}} AND posted_ns < {{end:Int64}}
GROUP BY comm, func, seq, rank, channel, peer, direction ORDER BY comm LIMIT {_MOST_ROWS}
"""
_NUMBERS = ("seq", "rank", "channel", "peer", "steps", "last_ns")
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
    numbers = {name: np.asarray(rows[name]).astype(np.int64) for name in _NUMBERS}
    return StepCounts(
        comm=np.asarray(rows["comm"]).astype(np.uint64),
        func=np.array(rows["func"].to_pylist(), object),
        sends=np.asarray(rows["sends"]).astype(bool),
        **numbers,
    )


def date_by_steps(facts: ProgressFacts) -> ProgressFacts:
    """Return the facts with lines that stand since the newest network step of their open operation ended.

    Over a slow wire a single operation may take longer than several steps of the job did before: while its data moves
    nothing hangs. Cost: O(lines + steps).
    """
    if len(facts.steps) == 0:
        return facts
    lines, moved_ns = facts.lines, _newest_steps(facts.lines, facts.steps)
    since_ns = np.maximum(lines.since_ns, np.minimum(moved_ns, lines.seen_ns))
    return replace(facts, lines=replace(lines, since_ns=since_ns))


def _newest_steps(lines: Lines, steps: StepCounts) -> np.ndarray:
    """Return by line when the newest step of its open operation ended on its rank; 0: none is known."""
    ended = _keyed(steps.comm, steps.func, steps.seq, steps.rank).append_column("last_ns", pa.array(steps.last_ns))
    newest = ended.group_by(_KEYS).aggregate([("last_ns", "max")])
    asked = _keyed(lines.comm, lines.func, lines.done, lines.rank)
    asked = asked.append_column("place", pa.array(np.arange(len(lines))))
    joined = asked.join(newest, _KEYS, join_type="left outer").sort_by("place")
    return np.asarray(pc.fill_null(joined["last_ns_max"], 0))


_KEYS = ["comm", "func", "seq", "rank"]


def _keyed(comm: np.ndarray, func: np.ndarray, seq: np.ndarray, rank: np.ndarray) -> pa.Table:
    return pa.table({"comm": comm, "func": func.astype(str), "seq": seq, "rank": rank})
