"""Which rows tell anything of a pair: those that were measured, of operations that cost something."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.delay_matrix.ends import as_floats, is_equal, keys_of, kinds_of
from analyzer.delay_matrix.reading import ACKNOWLEDGED, CONNECTION

_TRIFLE = 0.01  # of the time and of the bytes of all: what has less of both costs nothing, however long a byte takes


def sift_waits(waits: pa.Table) -> pa.Table:
    """Return the rows that tell a delay worth the name.

    Zero shows a coarse clock, not a fast wire. Where bytes wait in a kernel's buffer, a receiver that says nothing
    may be what they wait for.
    """
    measured = (as_floats(waits["bytes"]) > 0) & (as_floats(waits["wire_ns"]) > 0)
    present = np.asarray(waits["recv_gpu_ns"].is_valid())
    told = waits.filter(pa.array(measured & (present | is_equal(waits["transport"], ACKNOWLEDGED))))
    return _without_trifles(told, as_floats(told["wire_ns"]), as_floats(told["bytes"]))


def sift_steps(steps: pa.Table) -> pa.Table:
    """Return the rows of operations that keep their wires busy."""
    if not steps.num_rows:
        return steps
    times, busy_ns = as_floats(steps["operations"]), as_floats(pc.list_element(steps["busy_ns"], 0))
    return _without_trifles(steps, busy_ns * times, as_floats(steps["bytes"]) * times)


def sift_lags(lags: pa.Table, steps: pa.Table) -> pa.Table:
    """Return the rows of transfers of which much is under way at their end.

    Receives from several ranks that one channel makes at once end together, with the last of them: whose bytes came
    late, their ends do not tell, and steps do.
    """
    if not lags.num_rows:
        return lags
    lags = _without_watched_groups(lags, steps) if steps.num_rows else lags
    times, lag_ns = as_floats(lags["n"]), np.maximum(as_floats(lags["transit_ns"]), 0.0)
    return _without_trifles(lags, lag_ns * times, as_floats(lags["bytes"]) * times)


def _without_watched_groups(lags: pa.Table, steps: pa.Table) -> pa.Table:
    receiver = kinds_of(lags, ("comm", "channel", "dst_rank"))
    connection, watched = (keys_of(rows, "connection", CONNECTION) for rows in (lags, steps))
    senders = np.bincount(receiver[np.unique(connection, return_index=True)[1]], minlength=int(receiver.max()) + 1)
    is_grouped = is_equal(lags["func"], "Send") & (senders[receiver] > 1)
    return lags.filter(pa.array(~(is_grouped & np.isin(connection, watched))))


def _without_trifles(rows: pa.Table, took_ns: np.ndarray, size: np.ndarray) -> pa.Table:
    """Return the rows of functions and sizes that take time, or carry bytes, worth the name.

    A loss of four bytes that ranks add up takes microseconds a byte, over pairs that carry nothing else: what is
    usual of those, and how much it differs, would be what all others are judged by.
    """
    if not rows.num_rows:
        return rows
    kind = kinds_of(rows, ("func", "size_class"))
    shares = [np.bincount(kind, weights=part)[kind] / max(float(part.sum()), 1.0) for part in (took_ns, size)]
    return rows.filter(pa.array(np.maximum(*shares) >= _TRIFLE))
