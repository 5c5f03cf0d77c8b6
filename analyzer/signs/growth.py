"""Which counters grew as they do not elsewhere: each against its own past and its peers."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.context import Context
from lockstep.clock import NS_PER_S

# Switch ports are read every ten seconds, so that a look of a few seconds may hold no reading at all.
SLACK_NS = 15 * NS_PER_S
BACK_NS = 75 * NS_PER_S  # from here to SLACK_NS before the look is what was usual
_LEAST = 10  # what grows by less is a hiccup of a healthy link
_TIMES_BEFORE = 3.0  # a counter that runs at the same pace since long says nothing new
_TIMES_PEERS = 10.0  # what grows everywhere is how this fabric works, not a fault
_FEWEST_PEERS = 4  # fewer, and the median is one of the suspects itself


@dataclass(frozen=True)
class Growth:
    """What one counter did on each port, GPU or host, in parallel arrays."""

    now: np.ndarray  # by how much it grew in the look, and shortly before
    strength: np.ndarray  # 0: as everywhere; 0.5: more than elsewhere; 1: more than elsewhere, and than before


def moments(context: Context) -> dict[str, int]:
    """Return the parameters of a query for readings: where usual ends and now begins, and both outer ends."""
    start = context.window.start_ns
    return {"back": start - BACK_NS, "turn": start - SLACK_NS, "end": context.window.end_ns}


def grown_sql(counter: str, name: str) -> str:
    """Return the two columns of a query in which a counter is read; `name` is what they are called after.

    The growth now counts from the last reading before it, where there is one. A counter that begins anew, as after a
    reboot, has not grown.
    """
    earlier, later = "ts_ns < {turn:Int64}", "ts_ns >= {turn:Int64}"
    last, last_before = f"argMax({counter}, ts_ns)", f"argMaxIf({counter}, ts_ns, {earlier})"
    first_now, first = f"argMinIf({counter}, ts_ns, {later})", f"argMinIf({counter}, ts_ns, {earlier})"
    since = f"if(countIf({earlier}) > 0, {last_before}, {first_now})"
    return (
        f"toInt64(ifNull({last}, 0)) - toInt64(ifNull({since}, 0)) AS {name}_now, "
        f"toInt64(ifNull({last_before}, 0)) - toInt64(ifNull({first}, 0)) AS {name}_before"
    )


SPANS_SQL = (
    "greatest(max(ts_ns) - maxIf(ts_ns, ts_ns < {turn:Int64}), 0) AS now_ns, "
    "maxIf(ts_ns, ts_ns < {turn:Int64}) - minIf(ts_ns, ts_ns < {turn:Int64}) AS before_ns, "
    "countIf(ts_ns < {turn:Int64}) AS readings_before"
)


def read_growth(rows: pa.Table, name: str) -> Growth:
    """Return how a counter grew in each row, as `grown_sql` and `SPANS_SQL` asked for it."""
    now, before = (np.maximum(_numbers(rows, f"{name}_{when}"), 0.0) for when in ("now", "before"))
    now_ns, before_ns = _numbers(rows, "now_ns"), _numbers(rows, "before_ns")
    usual = np.divide(before * now_ns, before_ns, out=np.zeros(len(now)), where=before_ns > 0)
    is_new = (_numbers(rows, "readings_before") > 1) & (now > _TIMES_BEFORE * usual + _LEAST)
    peers = float(np.median(now)) if len(now) >= _FEWEST_PEERS else 0.0
    stands_out = (now >= _LEAST) & (now > _TIMES_PEERS * peers)
    return Growth(now, np.where(stands_out, np.where(is_new, 1.0, 0.5), 0.0))


def _numbers(rows: pa.Table, column: str) -> np.ndarray:
    numbers: np.ndarray = np.asarray(pc.fill_null(rows[column], 0)).astype(np.float64)
    return numbers
