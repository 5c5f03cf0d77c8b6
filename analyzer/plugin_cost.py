"""Which jobs pay more for their detail than they may: decided for a job as a whole, carried out by its collectors.

All ranks go without detail for the same few operations and compare (nccl_plugin/governor.c), so each measures the
same job, with noise of its own. One rank of thousands is wrong now and then; more than half of them are not.
"""

from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store

_RECENT_NS = 30 * NS_PER_S  # rows of a rank that lives come every ten seconds
_LASTS_NS = 60 * NS_PER_S  # a collector carries it out at once, and keeps to it
_BELOW = {"steps": "transfers", "transfers": "operations"}

_DEAR = """
SELECT job, attempt, arraySort(groupUniqArray(host)) AS hosts, groupUniqArrayIf(recorded, is_dear) AS levels
FROM (SELECT job, attempt, host, pid, argMax(dear, ts_ns) AS is_dear, argMax(level, ts_ns) AS recorded
      FROM plugins WHERE ts_ns >= {since:Int64} AND ts_ns <= {now:Int64} GROUP BY job, attempt, host, pid)
GROUP BY job, attempt HAVING countIf(is_dear) * 2 > count()
"""


def lower_dear_jobs(store: Store, now_ns: int) -> list[DetailRequest]:
    """Return requests to all hosts of the jobs that pay too much: to record one level less, on every rank."""
    found = store.query(_DEAR, {"since": max(now_ns - _RECENT_NS, 0), "now": now_ns}).to_pylist()
    lower = [(row, below) for row in found if (below := _below_all(row["levels"]))]
    return [
        DetailRequest(
            id=f"{row['job']}/{row['attempt']}/lower/{host}/{below}",
            host=host,
            kind="lower",
            details={"job": row["job"], "attempt": row["attempt"], "level": below},
            expires_ns=now_ns + _LASTS_NS,
        )
        for row, below in lower
        for host in row["hosts"]
    ]


def _below_all(levels: list[str]) -> str | None:
    """Return the level below the lowest that costs too much; None: operations alone are never given up."""
    return min((_BELOW[level] for level in levels if level in _BELOW), default=None)  # as the alphabet has them
