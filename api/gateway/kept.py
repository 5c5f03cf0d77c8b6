"""Rows of segments that are not in the store yet, so that a batch need not be read a second time from the log.

The log is what counts: this is a copy, whole segments of it, and only as many as fit. What is not here, after a
restart or while the store is away, is read from the log.
"""

from collections.abc import Iterable, Mapping, Sequence

from api.gateway.checking import Rows
from api.gateway.log import Entry

Piece = Rows | Sequence[Entry]  # batches that follow each other: the rows of all of them, or as they came


class KeptRows:
    """Whole segments within a number of bytes; who calls it sees to it that one thread does so at a time."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: dict[int, list[Piece] | None] = {}  # by segment; None: not all of it could be kept
        self._sizes: dict[int, int] = {}

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def add(self, segment: int, piece: Piece) -> None:
        """Keep what was logged; a segment of which a piece finds no room is not kept at all."""
        pieces, size = self._pieces.setdefault(segment, []), size_of(piece)
        if pieces is None or self.size + size > self._max_bytes:
            self._pieces[segment] = None
            self._sizes.pop(segment, None)
            return
        pieces.append(piece)
        self._sizes[segment] = self._sizes.get(segment, 0) + size

    def get(self, segment: int) -> Iterable[Piece] | None:
        """Return all of a segment in order, or None when it must be read from the log."""
        return self._pieces.get(segment)

    def forget(self, segment: int) -> None:
        self._pieces.pop(segment, None)
        self._sizes.pop(segment, None)


def size_of(piece: Piece) -> int:
    """Return the bytes that a piece takes."""
    if isinstance(piece, Mapping):
        return sum(int(table.nbytes) for table in piece.values())
    return sum(len(entry.body) for entry in piece)
