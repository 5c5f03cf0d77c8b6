"""At what rhythm a job moves, where nobody told its steps: how long it may stand before that is a standstill."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.windows.columns import filled
from analyzer.windows.jobs import NOBODY
from analyzer.windows.window import Context
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.store.together import WHOSE

LEARN_NS = 120 * NS_PER_S  # how far back the pace of a job is learnt from, when nobody told it

# One rank stands for its communicator: all do the same. A line that comes round rarely gives the longer period, and
# where several operations follow one another in a step, the pauses between those do; the longest was a checkpoint,
# or of fewer than eight operations told one by one the only pause between two steps. A line that rested for more than
# two of its rounds while others went on was of the job's beginning, and comes round no more.
_GAPS = """
    arrayReverseSort(arrayMap((apart, count) -> apart / greatest(count, 1),
        arrayPopFront(arrayDifference(arrayMap(each -> toInt64(each.1), told))),
        arrayPopFront(arrayDifference(arrayMap(each -> toInt64(each.2), told))))) AS gaps,
    gaps[2 - (is_told AND length(gaps) < 8) + intDiv(length(gaps), 32)] AS gap
"""
_PACE = f"""
SELECT /*ask,*/ arrayMax(arrayMap(each -> if(newest - each.2 <= 2 * each.1, each.1, 0), rounds)) AS period FROM (
SELECT /*ask,*/ groupArray((gap, told[-1].1)) AS rounds, max(told[-1].1) AS newest FROM (
    SELECT /*ask,*/ true AS is_told, arraySort(groupArray((enqueue_ns, seq))) AS told, {_GAPS}
    FROM collectives WHERE {WHOSE} AND rank = 0 AND enqueue_ns >= {{start:Int64}} AND enqueue_ns < {{end:Int64}}
        AND (end_ns < {{end:Int64}} OR collectives.untimed)
    GROUP BY /*ask,*/ comm, func, peer HAVING count() > 3
    UNION ALL
    SELECT /*ask,*/ false AS is_told, arraySort(groupArray((first, done))) AS told, {_GAPS} FROM (
        SELECT /*ask,*/ comm, func, peer, done, min(ts_ns) AS first
        FROM progress WHERE {WHOSE} AND rank = 0 AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}}
        GROUP BY /*ask,*/ comm, func, peer, done
    ) GROUP BY /*ask,*/ comm, func, peer HAVING max(done) - min(done) > 3 AND count() > 3
) /*GROUP BY ask*/)
"""
# When each line ended what it ended last, and began what it is inside of.
_ENDED = f"""
SELECT /*ask,*/ comm, rank, argMax(first, (done, -toInt64(started))) AS ended_ns,
       argMax(first, (done, started)) AS begun_ns, argMax(started, (done, started)) > max(done) AS is_inside
FROM (
    SELECT /*ask,*/ comm, rank, func, peer, started, done, min(ts_ns) AS first
    FROM progress WHERE {WHOSE} AND ts_ns >= {{start:Int64}} AND ts_ns < {{end:Int64}}
    GROUP BY /*ask,*/ comm, rank, func, peer, started, done
) GROUP BY /*ask,*/ comm, rank, func, peer
"""


def learn_period(store: Store, context: Context) -> int | None:
    """Return how long a healthy job may be without moving, learnt from its operations; None: too few are known."""
    asked = context.parameters | {"start": context.window.end_ns - LEARN_NS}
    found = pc.max(store.query(_PACE, asked)["period"]).as_py()
    return round(found) if found else None  # no group at all is a maximum of 0


def read_computed(store: Store, context: Context) -> int:
    """Return for how long those who are inside of an operation had nothing under way before it, in the median."""
    rows = store.query(_ENDED, context.parameters | {"start": context.window.end_ns - LEARN_NS})
    process = context.roster.find(column_of(rows, "comm", np.uint64), column_of(rows, "rank", np.int64))
    known = process != NOBODY
    ended_ns = np.full(len(context.roster), -1, np.int64)
    np.maximum.at(ended_ns, process[known], column_of(rows, "ended_ns", np.int64)[known])
    inside = known & (column_of(rows, "is_inside", np.int64) > 0)
    computed = column_of(rows, "begun_ns", np.int64)[inside] - ended_ns[process[inside]]
    return int(np.median(computed)) if len(computed) else 0


def column_of(rows: pa.Table, name: str, kind: type[np.generic]) -> np.ndarray:
    """Return a column of a kind, zero where nothing is told."""
    return filled(rows[name], 0).astype(kind)
