"""What of a segment goes into the store: rows that are kept beside the log, as far as their host may tell of them.

Rows are kept so that a batch need not be read a second time. The log is what counts: they are a copy, whole segments
of it, and only as many as fit. What is not here, after a restart or while the store is away, is read from the log.

Rows of a rank go into the store from the host that claimed it first, so that no host speaks for another's. A second
claim is not stored; an event tells of it, and no verdict about that job is sure any more. Ranks that nobody has
claimed (their host lost the row that did) are let through: to the analyzer they lie on the host that told of them. A
job that starts again makes new communicators.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from api.ingest.checking import OWN_SOURCE, Rows, check_joined, join_rows
from api.ingest.log import Entry
from lockstep.arrow import rows_of
from lockstep.batches import BatchName, Shape, read_batch
from lockstep.clock import NS_PER_S
from lockstep.records import CLAIMED_TWICE, Event
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME, columns_of
from lockstep.topology import host_name

Piece = Rows | Sequence[Entry]  # batches that follow each other: the rows of all of them, or as they came

_ROWS_PER_INSERT = 500_000
_NO_LIMIT = 1 << 40  # what is in the log was checked when it came in

_CLAIMED = """
SELECT host, job, attempt, comm, rank FROM comms FINAL
WHERE job IN {jobs:Array(String)} AND comm IN {comms:Array(UInt64)}
"""
_SEAT = ("job", "attempt", "comm", "rank")
_SEATED = tuple(
    name for name in TABLE_BY_NAME if {*_SEAT, "host"} <= columns_of(TABLE_BY_NAME[name]).keys() and name != "comms"
)
_ASK_AGAIN_NS = 10 * NS_PER_S  # another gateway may have taken the claim meanwhile
_MOST_ASKED = 10_000  # communicators at once; others are asked for with the next rows
_MOST = 4_000_000  # seats in memory, 64 MB; then all are forgotten and asked for again


class KeptRows:
    """Whole segments within a number of bytes; who calls it sees to it that one thread does so at a time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: dict[int, list[Piece] | None] = {}  # by segment; None: not all of it could be kept
        self._sizes: dict[int, int] = {}
        self._names: dict[int, list[BatchName]] = {}

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def add(self, segment: int, piece: Piece, names: Iterable[BatchName]) -> None:
        """Keep what was logged of these batches; a segment of which a piece finds no room is not kept at all."""
        pieces, size = self._pieces.setdefault(segment, []), size_of(piece)
        if pieces is None or self.size + size > self._max_bytes:
            self._pieces[segment] = None
            self._drop(segment)
            return
        pieces.append(piece)
        self._names.setdefault(segment, []).extend(names)
        self._sizes[segment] = self._sizes.get(segment, 0) + size

    def get(self, segment: int) -> Iterable[Piece] | None:
        """Return all of a segment in order, or None when it must be read from the log."""
        return self._pieces.get(segment)

    def names(self, segment: int) -> list[BatchName]:
        """Return which batches a segment that is kept holds."""
        return self._names.get(segment, [])

    def forget(self, segment: int) -> None:
        self._pieces.pop(segment, None)
        self._drop(segment)

    def _drop(self, segment: int) -> None:
        self._sizes.pop(segment, None)
        self._names.pop(segment, None)


def size_of(piece: Piece) -> int:
    """Return the bytes that a piece takes."""
    if isinstance(piece, Mapping):
        return sum(int(table.nbytes) for table in piece.values())
    return sum(len(entry.body) for entry in piece)


class Insert(NamedTuple):
    """Rows of one table; its number is 0 unless there are more than one insert takes."""

    table: str
    number: int
    rows: pa.Table


def inserts_of(
    segment: Iterable[Piece], admit: Callable[[dict[str, pa.Table]], Mapping[str, pa.Table]] = lambda tables: tables
) -> Iterator[Insert]:
    """Yield the parts of a segment, as far as they are admitted.

    The same batches give the same rows in the same parts, whatever pieces they come in, which is what lets a token
    stand for a part: by table, then by the first batch of each shape, then in the order of the log.
    """
    shapes: dict[Shape, list[pa.Table]] = {}
    for rows in _rows_of(segment):
        for shape, table in rows.items():
            shapes.setdefault(shape, []).append(table)
    tables: dict[str, list[pa.Table]] = {}
    for shape, pieces in shapes.items():
        tables.setdefault(shape.table, []).extend(pieces)
    joined = {name: pa.concat_tables(pieces) for name, pieces in sorted(tables.items())}
    for name, whole in sorted(admit(joined).items()):
        for number, begin in enumerate(range(0, whole.num_rows, _ROWS_PER_INSERT)):
            yield Insert(name, number, whole.slice(begin, _ROWS_PER_INSERT))


def insert_all(parts: Iterable[Insert], store: Store, pool: Executor, name: str) -> int:
    """Insert the parts of a segment side by side and return their rows; tokens begin with the segment's name."""

    def insert(part: Insert) -> int:
        store.insert(TABLE_BY_NAME[part.table], part.rows, f"{name}/{part.table}/{part.number}")
        return int(part.rows.num_rows)

    inserts: list[Future[int]] = []
    try:
        for part in parts:
            inserts.append(pool.submit(insert, part))  # noqa: PERF401  # a list of what was begun
    finally:
        wait(inserts)  # whatever fails: the next try must not meet this one
    return sum(each.result() for each in inserts)


class RankClaims:
    """Holders by seat: a job's attempt, a communicator and a rank, as one random number each; for one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seats, self._holders = np.zeros(0, np.uint64), np.zeros(0, np.uint64)  # sorted by seat
        self._asked_ns: dict[int, int] = {}  # by communicator
        self._told: set[tuple[str, int]] = set()  # hosts and communicators of which an event told
        self._factors = [np.uint64(secrets.randbits(64) | 1) for _ in _SEAT]  # nobody finds two seats that are alike

    def admit(self, tables: Mapping[str, pa.Table], now_ns: int) -> tuple[dict[str, pa.Table], int]:
        """Return the rows that count, with an event for each host that claims a rank of another; and how many do not.

        Raises StoreAway while the store cannot say who held a rank before.
        """
        kept = dict(tables)
        seats = {name: self._seats_of(tables[name]) for name in ("comms", *_SEATED) if name in tables}
        for name in seats:
            self._learn(tables[name], seats[name], now_ns)
        for name in seats:  # claims first
            if name == "comms":
                self._add(seats[name], _codes(tables[name]["host"]))
            kept[name], others = self._split(tables[name], seats[name])
            if name == "comms":
                kept |= self._tell(kept, others, now_ns)
        return kept, sum(tables[name].num_rows - kept[name].num_rows for name in seats)

    def tell_again(self) -> None:
        """Forget what events told: they may not have been stored."""
        self._told = set()

    def _tell(self, kept: Mapping[str, pa.Table], seconds: pa.Table, now_ns: int) -> dict[str, pa.Table]:
        """Return the events with one more for each host and communicator in which it claimed a rank of another."""
        by = ["host", "job", "attempt", "comm"]
        found = seconds.group_by(by, use_threads=False).aggregate([("rank", "min")]).to_pylist()
        new = [row for row in found if (row["host"], row["comm"]) not in self._told]
        if not new:
            return {}
        self._told |= {(row["host"], row["comm"]) for row in new}
        events = rows_of(TABLE_BY_NAME["events"], [_event(row, now_ns) for row in new])
        return {"events": pa.concat_tables([kept["events"], events]) if "events" in kept else events}

    def _split(self, rows: pa.Table, seats: np.ndarray) -> tuple[pa.Table, pa.Table]:
        """Return the rows whose hosts hold what they speak of, or nobody does, and all others."""
        holders, known = self._find(seats)
        foreign = known & (holders != _codes(rows["host"])) & np.asarray(pc.is_valid(rows["comm"]))
        return (
            (rows.filter(pa.array(~foreign)), rows.filter(pa.array(foreign))) if foreign.any() else (rows, rows[:0])
        )

    def _learn(self, rows: pa.Table, seats: np.ndarray, now_ns: int) -> None:
        """Ask the store who holds the seats that nobody here has claimed."""
        _, known = self._find(seats)
        if known.all():
            return
        unknown = rows.select(["job", "comm"]).filter(pa.array(~known))
        comms = [comm for comm in pc.unique(unknown["comm"]).to_pylist() if comm is not None]
        asked = [comm for comm in comms if now_ns - self._asked_ns.get(comm, 0) > _ASK_AGAIN_NS][:_MOST_ASKED]
        if asked:
            jobs = pc.unique(unknown["job"]).to_pylist()
            found = self._store.query(_CLAIMED, {"jobs": jobs, "comms": asked})
            self._add(self._seats_of(found), _codes(found["host"]))
            self._asked_ns |= dict.fromkeys(asked, now_ns)

    def _add(self, seats: np.ndarray, hosts: np.ndarray) -> None:
        """Take seats that nobody holds; of several hosts that want one, the first in the log has it."""
        if max(len(self._seats), len(self._asked_ns), len(self._told)) > _MOST:
            self._seats, self._holders = self._seats[:0], self._holders[:0]
            self._asked_ns, self._told = {}, set()
        _, known = self._find(seats)
        new, first = np.unique(seats[~known], return_index=True)
        at = np.searchsorted(self._seats, new)
        self._seats = np.insert(self._seats, at, new)
        self._holders = np.insert(self._holders, at, hosts[~known][first])

    def _find(self, seats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return who holds each seat, and whether anybody does."""
        if not len(self._seats):
            return np.zeros(len(seats), np.uint64), np.zeros(len(seats), bool)
        at = np.minimum(np.searchsorted(self._seats, seats), len(self._seats) - 1)
        return self._holders[at], self._seats[at] == seats

    def _seats_of(self, rows: pa.Table) -> np.ndarray:
        numbers = (np.asarray(pc.fill_null(rows[name], 0)).astype(np.uint64) for name in _SEAT[1:])
        columns = [_codes(rows["job"]), *numbers]
        seats = np.zeros(rows.num_rows, np.uint64)
        for column, factor in zip(columns, self._factors, strict=True):
            seats = (seats ^ column) * factor
            seats ^= seats >> np.uint64(29)
        return seats


def _rows_of(segment: Iterable[Piece]) -> Iterator[Rows]:
    """Yield the rows of all pieces; batches that were not read yet are read together as far as they follow."""
    for is_read, pieces in groupby(segment, lambda piece: isinstance(piece, Mapping)):
        if is_read:
            yield from (piece for piece in pieces if isinstance(piece, Mapping))
        else:
            entries = [entry for piece in pieces if not isinstance(piece, Mapping) for entry in piece]
            joined = join_rows(read_batch(entry.body, _NO_LIMIT, _NO_LIMIT) for entry in entries)
            yield {shape: check_joined(shape, rows) for shape, rows in joined.items()}


def _codes(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a number for each text, another in each process."""
    if not len(texts):
        return np.zeros(0, np.uint64)
    coded = texts.combine_chunks().dictionary_encode()
    codes = np.array([hash(text) & (2**64 - 1) for text in coded.dictionary.to_pylist()], np.uint64)
    taken: np.ndarray = codes[np.asarray(coded.indices)]
    return taken


def _event(row: Mapping[str, Any], now_ns: int) -> Event:  # Any: columns of comms
    who = f"rank {row['rank_min']} of communicator {row['comm']:016x} of job {row['job']}"
    return Event(
        host=row["host"],
        ts_ns=now_ns,
        source=OWN_SOURCE,
        kind=CLAIMED_TWICE,
        component=host_name(row["host"]),
        severity="warning",
        message=f"{row['host']} claims {who}, which another host holds: its rows are not counted",
        detail=json.dumps({"job": row["job"], "attempt": row["attempt"]}),
    )
