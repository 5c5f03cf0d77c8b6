"""The delay matrix of a job: what a MiB takes from each rank to each other, over one stretch of time.

The store sums rows by communicator and pair of ranks; here pairs become places among the job's ranks. Columns stay
columns up to the JSON text, because a thousand ranks have tens of thousands of cells.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pydantic import Field

from analyzer.windows.jobs import Roster
from analyzer.windows.window import Window
from api.sharing import TtlCache
from api.views.ranks import Closed, find_closed, newest_attempt, rank_numbers
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import NotPresent
from lockstep.store.store import Store
from lockstep.verdict import Frozen

UNIT = "ms/MiB"
_MS_PER_MIB = (1 << 20) / 1e6  # times ns per byte
_RAW_NS = 600 * NS_PER_S  # beyond, the roll-up by minute answers: seconds may be gone by then
_MINUTE_NS = 60 * NS_PER_S

_WHOSE = "job = {job:String} AND attempt = {attempt:UInt16} AND direction = 'send' AND peer >= 0"
_SUMS = "comm, rank, peer, sum(wire_ns) AS wire, sum(bytes) AS moved"
_SOURCES = {
    "transfer_stats": "ts_ns >= {start:Int64} AND ts_ns < {end:Int64} AND wire_ns IS NOT NULL",
    "transfers": "first_ns >= {start:Int64} AND first_ns < {end:Int64} AND wire_ns IS NOT NULL",
    "wire_minutes": f"minute >= intDiv({{start:Int64}}, {_MINUTE_NS}) AND minute * {_MINUTE_NS} < {{end:Int64}} "
    "AND wire_ns IS NOT NULL",
}


class Seat(Frozen):
    """A rank and where it runs."""

    rank: int
    host: str
    gpu: int | None = None

    @property
    def place(self) -> str:
        """Host and GPU, as people write them."""
        return self.host if self.gpu is None else f"{self.host}/{self.gpu}"


class Cells(Frozen):
    """The cells that are known, as parallel columns."""

    src: tuple[int, ...] = Field(description="places of the senders in `ranks`")
    dst: tuple[int, ...] = Field(description="places of the receivers in `ranks`")
    ms: tuple[float, ...] = Field(description="delays in the unit of the matrix")


class Matrix(Frozen):
    """The delay matrix of a job, or of one of its communicators."""

    job: str
    attempt: int
    comm: str | None = Field(None, description="id in decimal; None: all communicators together")
    from_ns: int
    to_ns: int
    ranks: tuple[Seat, ...]
    cells: Cells
    usual_ms: float | None = Field(None, description="median of all cells; None: there are none")
    unit: str = UNIT
    silent: tuple[str, ...] = Field((), description="hosts that said nothing: their cells are missing, not fine")


@dataclass(frozen=True)
class Pairs:
    """The cells of a matrix as arrays: places of both ranks in the roster, and the delay in ms per MiB."""

    src: np.ndarray
    dst: np.ndarray
    ms: np.ndarray


def read_matrix(
    store: Store,
    job: str,
    attempt: int,
    roster: Roster,
    window: Window,
    comm: int | None = None,
    silent: frozenset[str] = frozenset(),
) -> Matrix:
    """Return the delay matrix of a window; with a communicator, of its ranks alone."""
    pairs = read_pairs(store, job, attempt, roster, window, comm)
    seats = list_seats(roster)
    if comm is not None:
        pairs, seats = _narrow(pairs, seats, roster, comm)
    return Matrix(
        job=job,
        attempt=attempt,
        comm=None if comm is None else str(comm),
        from_ns=window.start_ns,
        to_ns=window.end_ns,
        ranks=tuple(seats),
        cells=Cells(src=pairs.src.tolist(), dst=pairs.dst.tolist(), ms=np.round(pairs.ms, 6).tolist()),
        usual_ms=round(float(np.median(pairs.ms)), 6) if len(pairs.ms) else None,
        silent=tuple(sorted(silent)),
    )


def read_pairs(
    store: Store, job: str, attempt: int, roster: Roster, window: Window, comm: int | None = None
) -> Pairs:
    """Return the delays between the processes of a roster, summed over communicators, channels and sizes."""
    asked = {"job": job, "attempt": attempt, "start": window.start_ns, "end": window.end_ns, "comm": comm or 0}
    is_long = window.end_ns - window.start_ns > _RAW_NS
    for table in ("wire_minutes",) if is_long else ("transfer_stats", "transfers"):
        rows = store.query(_select(table, comm), asked)
        if rows.num_rows:
            break
    return _add_up(rows, roster)


def list_seats(roster: Roster) -> list[Seat]:
    """Return the ranks of a job in the order of its roster."""
    gpus = (gpu if gpu >= 0 else None for gpu in roster.gpu_of.tolist())
    seats = zip(rank_numbers(roster).tolist(), roster.host_of.tolist(), gpus, strict=True)
    return [Seat(rank=rank, host=host, gpu=gpu) for rank, host, gpu in seats]


def _select(table: str, comm: int | None) -> str:
    which = " AND comm = {comm:UInt64}" if comm is not None else ""
    return f"SELECT {_SUMS} FROM {table} WHERE {_WHOSE} AND {_SOURCES[table]}{which} GROUP BY comm, rank, peer"


def _add_up(rows: pa.Table, roster: Roster) -> Pairs:
    comm = rows["comm"].to_numpy().astype(np.uint64)
    src, dst = (roster.find(comm, rows[name].to_numpy().astype(np.int64)) for name in ("rank", "peer"))
    wire, moved = (rows[name].to_numpy().astype(np.float64) for name in ("wire", "moved"))
    known = (src >= 0) & (dst >= 0) & (moved > 0)
    key, group = np.unique(src[known] * len(roster) + dst[known], return_inverse=True)
    sums = [np.bincount(group.reshape(-1), weights=column[known], minlength=len(key)) for column in (wire, moved)]
    near, far = np.divmod(key, max(len(roster), 1))
    return Pairs(near, far, sums[0] / sums[1] * _MS_PER_MIB)


def _narrow(pairs: Pairs, seats: list[Seat], roster: Roster, comm: int) -> tuple[Pairs, list[Seat]]:
    """Return the matrix of the ranks of one communicator alone, in the order of their ranks there."""
    if np.uint64(comm) not in roster.comms:
        raise NotPresent(f"the job has no communicator {comm}")
    members = roster.members(comm)
    index = np.full(len(roster), -1, np.int64)
    index[members] = np.arange(len(members))
    return Pairs(index[pairs.src], index[pairs.dst], pairs.ms), [seats[number] for number in members.tolist()]


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


def read_lags(store: Store, job: str, attempt: int, roster: Roster, window: Window, columns: int) -> Lags:
    """Return the arrival lags of a window in about as many columns; a column has whole seconds."""
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


_KEPT = 64  # matrices; one of 1,024 ranks takes some hundred kilobytes
_FRESH_S = 1.0  # windows end with a whole second, so a newer one is not there before
_STALE_S = 10.0  # how old a matrix may be that is shown while the next one is being built


@dataclass(frozen=True)
class Shown:
    """A matrix and how it travels."""

    matrix: Matrix
    body: bytes  # JSON
    etag: str  # another one for another window


class MatrixCache:
    """The newest delay matrix of each job, built once per closed window however many ask for it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._newest: TtlCache[Shown] = TtlCache(clock, fresh_s=_FRESH_S, stale_s=_STALE_S, size=_KEPT)
        self._built: OrderedDict[Hashable, Shown] = OrderedDict()  # by job, attempt, communicator and window

    def show(self, job: str, attempt: int | None = None, comm: int | None = None) -> Shown:
        """Return the matrix of the job's last closed window; NotPresent where nothing is known of it."""
        return self._newest.get((job, attempt, comm), lambda: self._build(job, attempt, comm))

    def find_fresh(self, job: str, attempt: int | None = None, comm: int | None = None) -> Shown | None:
        """Return the matrix where it is so young that there can be no newer one; asks nobody."""
        return self._newest.find_fresh((job, attempt, comm))

    def _build(self, job: str, attempt: int | None, comm: int | None) -> Shown:
        number = newest_attempt(self._store, job, attempt)
        closed = find_closed(self._store, job, number, self._clock.now_ns())
        key = (job, number, comm, closed.window.end_ns)
        self._built[key] = shown = self._built.pop(key, None) or self._read(closed, comm)
        while len(self._built) > _KEPT:
            self._built.popitem(last=False)
        return shown

    def _read(self, closed: Closed, comm: int | None) -> Shown:
        matrix = read_matrix(
            self._store, closed.job, closed.attempt, closed.roster, closed.window, comm, closed.silent
        )
        etag = f'"{closed.attempt}-{closed.window.start_ns}-{closed.window.end_ns}-{comm or 0}"'
        return Shown(matrix, matrix.model_dump_json().encode(), etag)
