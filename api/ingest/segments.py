"""Rows of segments that are not in the store yet, so that a batch need not be read a second time from the log.

The log is what counts: this is a copy, whole segments of it, and only as many as fit. What is not here, after a
restart or while the store is away, is read from the log.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from api.ingest.checking import Rows, check_joined, join_rows
from api.ingest.log import Entry
from lockstep.batches import BatchName, Shape, read_batch
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME

Piece = Rows | Sequence[Entry]  # batches that follow each other: the rows of all of them, or as they came


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


_ROWS_PER_INSERT = 500_000
_NO_LIMIT = 1 << 40  # what is in the log was checked when it came in


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


def _rows_of(segment: Iterable[Piece]) -> Iterator[Rows]:
    """Yield the rows of all pieces; batches that were not read yet are read together as far as they follow."""
    for is_read, pieces in groupby(segment, lambda piece: isinstance(piece, Mapping)):
        if is_read:
            yield from (piece for piece in pieces if isinstance(piece, Mapping))
        else:
            yield _read([entry for piece in pieces if not isinstance(piece, Mapping) for entry in piece])


def _read(entries: Sequence[Entry]) -> Rows:
    joined = join_rows(read_batch(entry.body, _NO_LIMIT, _NO_LIMIT) for entry in entries)
    return {shape: check_joined(shape, rows) for shape, rows in joined.items()}
