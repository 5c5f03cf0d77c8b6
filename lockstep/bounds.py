"""What rows may say: one table of bounds, which collectors keep to and the gateway holds against every row.

A host's agent tells of what it saw on that host, now, by names that a person can read. What is beyond that is broken
or forged, and would cost everybody who reads it: an array as long as its largest rank, a window that never closes, a
terminal that obeys it. A collector leaves such rows out, so that a process cannot have all of its host refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME, Column, columns_of


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest that is taken; each is far from what honest hosts send."""

    ahead_ns: int = 3_600 * NS_PER_S  # of our clock: more than clocks of a site disagree
    ranks: int = 1 << 20  # of a communicator: ten times the largest cluster that we know of
    letters: int = 1_024  # of a name
    jobs: int = 256  # that a host tells of in a minute: more than it can cut its GPUs into (MIG: 56)
    comms: int = 16_384  # that a host makes in a minute: 16 ranks that make a thousand each
    boots: int = 64  # of an agent whose numbers are remembered; one that restarts all the time needs the last few
    notices: int = 50_000  # subjects of intake that are remembered: what is forgotten may be stored twice
    statements: int = 5_000  # of one intake request: each is an entry of the log
    subjects: int = 2_000  # of one intake request: an alert for each host of a large cluster


BOUNDS = Bounds()
# Sentences that were read somewhere: whoever shows them cleans them (cli.setup).
_FREE_TEXT = frozenset({"message", "detail"})
_RANKS = frozenset({"rank", "world_rank", "proxy_rank", "src_rank", "dst_rank", "peer", "head_peer"})


def keep_within(name: str, rows: pa.Table, now_ns: int) -> pa.Table:
    """Return the rows of a table without those that are out of bounds."""
    for mask, _, _ in _find_breaches(name, rows, now_ns):
        return keep_within(name, rows.filter(pc.invert(mask)), now_ns)
    return rows


def find_breach(name: str, rows: pa.Table, now_ns: int) -> str | None:
    """Return the first row that is out of bounds, in words, or None."""
    for mask, column, problem in _find_breaches(name, rows, now_ns):
        row = pc.index(mask, True).as_py()
        return f"{name}, row {row}: {column} is {rows[column][row].as_py()!r:.80}, {problem}"
    return None


def is_readable(name: str) -> bool:
    """Return whether a name is short, and has nothing that could break a line or move a cursor.

    >>> [is_readable(name) for name in ("llama 3", "größe", "a\\nb", "\\x1b[2J", "a\\u202eb")]
    [True, True, False, False, False]
    """
    return len(name) <= BOUNDS.letters and name.isprintable()


def _find_breaches(name: str, rows: pa.Table, now_ns: int) -> Iterator[tuple[pa.ChunkedArray, str, str]]:
    """Yield which rows are out of a bound, by which column, and what it may be."""
    latest_ns = now_ns + BOUNDS.ahead_ns
    for column in columns_of(TABLE_BY_NAME[name]).values():
        values = rows[column.name]
        if column.kind == "timestamp" and _largest(values) > latest_ns:
            problem = f"more than an hour ahead of {now_ns}: set the clock"
            yield pc.fill_null(pc.greater(values, latest_ns), False), column.name, problem
        elif column.name in _RANKS and _largest(values) >= BOUNDS.ranks:
            problem = f"and must be below {BOUNDS.ranks}"
            yield pc.fill_null(pc.greater_equal(values, BOUNDS.ranks), False), column.name, problem
        elif _is_name(column) and not _are_plain(values) and (bad := _find_unreadable(values)):
            yield pc.is_in(values, pa.array(bad, values.type)), column.name, "too long, or with control characters"
    if name == "comms":
        yield from _find_impossible(rows)


def _find_impossible(rows: pa.Table) -> Iterator[tuple[pa.ChunkedArray, str, str]]:
    """Yield communicators that have not the rank that tells of them, or more hosts than ranks."""
    nranks = rows["nranks"]
    for column, mask in (
        ("nranks", pc.greater(nranks, BOUNDS.ranks)),
        ("rank", pc.greater_equal(rows["rank"], nranks)),
        ("nnodes", pc.fill_null(pc.greater(rows["nnodes"], nranks), False)),
    ):
        if pc.any(mask).as_py():
            yield mask, column, "which a communicator of its size cannot have"


def _largest(values: pa.ChunkedArray) -> int:
    largest = pc.max(values).as_py()
    return -1 if largest is None else int(largest)


def _is_name(column: Column) -> bool:
    return column.kind == "str" and column.name not in _FREE_TEXT


def _are_plain(texts: pa.ChunkedArray) -> bool:
    """Return whether all texts are short and of plain ASCII, by their bytes: nearly all are, and cost little."""
    for chunk in filter(len, texts.chunks):
        _, offsets, data = chunk.buffers()
        ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        letters = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
        is_plain = not len(letters) or (letters.min() >= 0x20 and letters.max() < 0x7F)
        if not is_plain or np.diff(ends).max() > BOUNDS.letters:
            return False
    return True


def _find_unreadable(texts: pa.ChunkedArray) -> list[str]:
    return [text for text in pc.unique(texts).to_pylist() if text is not None and not is_readable(text)]
