"""What a batch may say: one table of bounds, held against every row before it is logged.

A host's agent tells of what it saw on that host, now, by names that a person can read. What is beyond that is broken
or forged, and would cost everybody who reads it: an array as long as its largest rank, a window that never closes, a
terminal that obeys it.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.batches import Shape
from lockstep.clock import NS_PER_S
from lockstep.errors import BadBatch
from lockstep.tables import TABLE_BY_NAME, Column, columns_of
from lockstep.topology import lies_on

_MINUTE_NS = 60 * NS_PER_S
OWN_SOURCE = "gateway"  # of events: what we say ourselves, and nobody else


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
# Sentences that were read somewhere: whoever shows them cleans them (lockstep.words.clean).
_FREE_TEXT = frozenset({"message", "detail"})
_OF_PEERS = pa.array(["probe_silent", "probe_refused"])  # who was probed; no verdict rests on it
_RANKS = frozenset({"rank", "world_rank", "proxy_rank", "src_rank", "dst_rank", "peer", "head_peer"})
_UNREADABLE = re.compile(r"[^ \S]|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def check_bounds(name: str, rows: pa.Table, now_ns: int, fabric_hosts: Collection[str] = ()) -> None:
    """Raise BadBatch, with the row, for rows that no honest agent sends; some hosts may tell of the fabric, too."""
    for column in columns_of(TABLE_BY_NAME[name]).values():
        values = rows[column.name]
        if (row := _find_breach(column, values, now_ns)) is not None:
            raise BadBatch(f"{name}, row {row}: {column.name} {_say(column, values[row].as_py(), now_ns)}")
    if name == "comms":
        _check_sizes(rows)
    elif name == "events":
        _check_whose(rows, fabric_hosts)
    elif name == "fabric_counters" and (strange := set(pc.unique(rows["host"]).to_pylist()) - set(fabric_hosts)):
        problem = f"fabric_counters: {min(strange)} tells of switches, which needs a token of scope fabric"
        raise BadBatch(problem, slug="wrong-scope", status=403)


def _find_breach(column: Column, values: pa.ChunkedArray, now_ns: int) -> int | None:
    """Return the first row that is out of bounds."""
    if column.kind == "timestamp":
        return _first_above(values, now_ns + BOUNDS.ahead_ns)
    if column.name in _RANKS:
        return _first_above(values, BOUNDS.ranks - 1)
    if column.kind == "str" and column.name not in _FREE_TEXT and not _is_plain(values):
        bad = [text for text in pc.unique(values).to_pylist() if text is not None and not is_readable(text)]
        return pc.index(pc.is_in(values, pa.array(bad, values.type)), True).as_py() if bad else None
    return None


def _first_above(values: pa.ChunkedArray, most: int) -> int | None:
    largest = pc.max(values).as_py()
    return pc.index(pc.greater(values, most), True).as_py() if largest is not None and largest > most else None


def _is_plain(values: pa.ChunkedArray) -> bool:
    """Return whether all texts are short and of plain ASCII, by their bytes: nearly all are, and cost little."""
    for chunk in values.chunks:
        offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        if not len(chunk) or offsets[0] == offsets[-1]:
            continue
        letters = np.frombuffer(chunk.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
        if letters.min() < 0x20 or letters.max() >= 0x7F or np.diff(offsets).max() > BOUNDS.letters:
            return False
    return True


def is_readable(name: str) -> bool:
    """Return whether a name is short, and has nothing that could break a line or move a cursor.

    >>> [is_readable(name) for name in ("llama 3", "größe", "a\\nb", "\\x1b[2J", "a\\u202eb")]
    [True, True, False, False, False]
    """
    return len(name) <= BOUNDS.letters and not _UNREADABLE.search(name)


def _say(column: Column, value: int | str, now_ns: int) -> str:
    if column.kind == "timestamp":
        ahead_s = (int(value) - now_ns) / NS_PER_S
        return f"is {ahead_s:.0f} s ahead of the gateway, {BOUNDS.ahead_ns // NS_PER_S} are allowed: set its clock"
    if column.kind == "str":
        return f"{str(value)[:80]!r} is too long, or has control characters"
    return f"is {value}, and must be below {BOUNDS.ranks}"


def _check_sizes(rows: pa.Table) -> None:
    """Refuse a communicator that has not the rank that tells of it, or more hosts than ranks."""
    nranks = rows["nranks"]
    too_large = pc.greater(nranks, BOUNDS.ranks)
    no_member = pc.greater_equal(rows["rank"], nranks)
    too_many = pc.fill_null(pc.greater(rows["nnodes"], nranks), False)
    row = pc.index(pc.or_(pc.or_(too_large, no_member), too_many), True).as_py()
    if row >= 0:
        rank, size, nodes = (rows[name][row].as_py() for name in ("rank", "nranks", "nnodes"))
        raise BadBatch(f"comms, row {row}: rank {rank} of {size} on {nodes or 'some'} hosts cannot be")


def _check_whose(rows: pa.Table, fabric_hosts: Collection[str]) -> None:
    """Refuse what a host says of a part of another, or in our name."""
    if pc.any(pc.equal(rows["source"], OWN_SOURCE)).as_py():
        raise BadBatch(f"events: only the gateway itself is the source {OWN_SOURCE}")
    rows = rows.filter(pc.invert(pc.is_in(rows["kind"], _OF_PEERS)))
    told = rows.group_by(["host", "component"], use_threads=False).aggregate([])
    for host, component in zip(told["host"].to_pylist(), told["component"].to_pylist(), strict=True):
        if host not in fabric_hosts and not lies_on(component, host):
            raise BadBatch(f"events: {host} tells of {component[:80]!r}, which is not its own", slug="wrong-host")


@dataclass
class Tally:
    """Counts what hosts tell of, minute by minute; one thread does so."""

    _minute: int = 0
    _seen: dict[tuple[str, str], set[object]] = field(default_factory=dict)  # by host and what is counted

    def count(self, rows: Mapping[Shape, pa.Table], now_ns: int) -> dict[str, BadBatch]:
        """Return the hosts that tell of too many jobs or communicators, and how to say so."""
        if now_ns // _MINUTE_NS != self._minute:
            self._minute, self._seen = now_ns // _MINUTE_NS, {}
        over, told_before = {}, set(self._seen)
        for host, what, subject in _subjects_of(rows):
            seen, most = self._seen.setdefault((host, what), set()), getattr(BOUNDS, what)
            if len(seen) < most:
                seen.add(subject)
            elif subject not in seen:
                # Taken in another minute, unless it is too much by itself: agents drop what has status 400.
                status = 429 if (host, what) in told_before else 400
                problem = f"{host} tells of more than {most} {what} in a minute"
                over[host] = BadBatch(problem, slug="too-many", status=status)
        return over


def _subjects_of(rows: Mapping[Shape, pa.Table]) -> Iterator[tuple[str, str, object]]:
    for shape, table in rows.items():
        wanted = {"comms": ["host", "job", "attempt", "comm"]}.get(shape.table, ["host", "job"])
        if not TABLE_BY_NAME[shape.table].has_job:
            continue
        found = table.select(wanted).group_by(wanted, use_threads=False).aggregate([])
        for host, *subject in zip(*(found[name].to_pylist() for name in wanted), strict=True):
            yield host, "jobs", subject[0]
            if len(subject) > 1:
                yield host, "comms", tuple(subject)
