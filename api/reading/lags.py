"""Who arrives late: by how much each rank joined its collectives after the first one, over time.

All ranks leave a collective together, so whoever was in it for the shortest time came last. The lag of a rank is
how much shorter it was in the operation than the one who waited longest: no clocks of two hosts are compared.
"""

import numpy as np
import pyarrow as pa
from pydantic import Field

from analyzer.roster import Roster
from analyzer.windows import Window
from api.reading.matrix import Seat, list_seats
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.verdict import Frozen

MOST_COLUMNS = 300  # more is finer than a screen

# Seconds are summed per rank before they are compared, since a rank's operations are counted where they end.
_LAGS = """
SELECT comm, rank, stretch, sum((longest - mean_ns) * n) / sum(n) / 1e6 AS lag_ms, sum(n) AS operations
FROM (SELECT *, max(mean_ns) OVER (PARTITION BY comm, func, size_class, stretch) AS longest
      FROM (SELECT comm, func, size_class, rank, intDiv(ts_ns - {start:Int64}, {length:Int64}) AS stretch,
                   sum(op_stats.n) AS n, sum(dur_sum_ns) / sum(op_stats.n) AS mean_ns
            FROM op_stats WHERE job = {job:String} AND attempt = {attempt:UInt16} AND func NOT IN ('Send', 'Recv')
                AND ts_ns >= {start:Int64} AND ts_ns < {end:Int64}
            GROUP BY comm, func, size_class, rank, stretch HAVING n > 0))
GROUP BY comm, rank, stretch
"""


class Lags(Frozen):
    """How late each rank came to its collectives, a row for each rank and a column for each stretch of time."""

    job: str
    attempt: int
    ranks: tuple[Seat, ...]
    times_ns: tuple[int, ...] = Field(description="begin of each column")
    column_ns: int = Field(description="length of a column")
    lag_ms: tuple[tuple[float | None, ...], ...] = Field(description="mean lag by rank and column; None: not known")


def read_lags(store: Store, job: str, attempt: int, roster: Roster, window: Window, columns: int = 60) -> Lags:
    """Return the arrival lags of a window in about as many columns; a column has whole seconds."""
    columns = min(max(columns, 1), MOST_COLUMNS)
    start_ns = window.start_ns // NS_PER_S * NS_PER_S
    seconds = -(-(window.end_ns - start_ns) // NS_PER_S)
    length_ns = -(-seconds // columns) * NS_PER_S
    asked = {"job": job, "attempt": attempt, "start": start_ns, "end": window.end_ns, "length": length_ns}
    count = -(-(window.end_ns - start_ns) // length_ns)
    table = _spread(store.query(_LAGS, asked), roster, count)
    return Lags(
        job=job,
        attempt=attempt,
        ranks=tuple(list_seats(roster)),
        times_ns=tuple(start_ns + number * length_ns for number in range(count)),
        column_ns=length_ns,
        lag_ms=tuple(tuple(None if lag != lag else lag for lag in row) for row in np.round(table, 4).tolist()),
    )


def _spread(rows: pa.Table, roster: Roster, columns: int) -> np.ndarray:
    """Return lags by process and column, NaN where nothing is known; communicators count by their operations."""
    process = roster.find(rows["comm"].to_numpy().astype(np.uint64), rows["rank"].to_numpy().astype(np.int64))
    column = rows["stretch"].to_numpy().astype(np.int64)
    known = (process >= 0) & (column >= 0) & (column < columns)
    cell = (process * columns + column)[known]
    weight = rows["operations"].to_numpy().astype(np.float64)[known]
    lag = rows["lag_ms"].to_numpy().astype(np.float64)[known]
    size = len(roster) * columns
    counts, sums = np.bincount(cell, weight, size), np.bincount(cell, lag * weight, size)
    means: np.ndarray = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
    return means.reshape(len(roster), columns)
