"""What of a segment goes into the store in one insert each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from api.gateway.checking import Rows, check_joined, join_rows
from api.gateway.kept import Piece
from api.gateway.log import Entry
from lockstep.batches import Shape, read_batch

_ROWS_PER_INSERT = 500_000
_NO_LIMIT = 1 << 40  # what is in the log was checked when it came in


class Part(NamedTuple):
    """Rows of one table; its number is 0 unless there are more than one insert takes."""

    table: str
    number: int
    rows: pa.Table


def parts_of(segment: Iterable[Piece]) -> Iterator[Part]:
    """Yield the parts of a segment.

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
    for name, pieces in sorted(tables.items()):
        whole = pa.concat_tables(pieces)
        for number, begin in enumerate(range(0, whole.num_rows, _ROWS_PER_INSERT)):
            yield Part(name, number, whole.slice(begin, _ROWS_PER_INSERT))


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
