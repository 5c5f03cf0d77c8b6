"""The last minutes of every process in full, kept as records rather than as rows: packed, and folded when wished for.

A record has 64 bytes and few of them differ from one to the next, so they are kept as 64 planes of bytes, compressed.
What a wish brings are the rows that were not sent before: operations outside of the share that was in force.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from collector.rings.foreign import ForeignJoiner
from collector.rings.wishes import MOST_MINUTES, MinutesWish, Target
from lockstep import wire
from lockstep.clock import NS_PER_S
from lockstep.rings.draining import Slots
from lockstep.rings.folding import Folder, Reading
from lockstep.rings.identity import Identity
from lockstep.rings.ledger import Ledger
from lockstep.rings.live import PLACED_ROW, Live
from lockstep.rings.origin import Origin
from lockstep.rings.ringfile import RingFile
from lockstep.wire import Table

KEPT_NS = MOST_MINUTES * 60 * NS_PER_S
_CODEC = pa.Codec("zstd", compression_level=1)
_OVERHEAD_BYTES = 700  # of a piece in memory beside its records


@dataclass
class KeptProcess:
    """What it takes to fold a process's records again."""

    ring: RingFile  # may be closed by then
    origin: Origin
    last: Reading | None = None  # its clock and communicators are good for older records too
    pieces: int = 0
    ledger: Ledger = field(default_factory=lambda: Ledger(counts=False))  # all of it was counted before
    folder: Folder | None = None  # of the last wish
    folded: int = 0  # pieces up to this one went through it


@dataclass
class _Piece:
    process: KeptProcess
    number: int  # among those of its process
    now_ns: int
    share: int
    level: int
    packed: bytes
    count: int
    open: Table = field(repr=False)
    is_last: bool  # its process has ended
    is_sent: bool = False

    @property
    def bytes(self) -> int:
        return len(self.packed) + self.open.nbytes + _OVERHEAD_BYTES

    def unpack(self) -> Slots:
        width = wire.RECORD.itemsize
        raw = _CODEC.decompress(self.packed, self.count * width)
        planes = np.frombuffer(raw, np.uint8).reshape(width, self.count)
        return np.ascontiguousarray(planes.T)


class KeptDetail:
    """Keeps readings up to a limit on bytes and on age, the oldest going first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._pieces: deque[_Piece] = deque()
        self.bytes = 0
        self.dropped = 0  # records that went before their time, because the limit was reached, since the beginning

    def keep(self, process: KeptProcess, reading: Reading, now_ns: int, share: int, is_last: bool = False) -> None:
        """Keep what a reading brought; the last one when the process has ended."""
        slots = reading.records.slots
        kinds = slots.view(wire.RECORD)["kind"].reshape(-1)
        order = np.argsort(kinds, kind="stable")  # alike beside alike
        slots = slots[order[: np.count_nonzero(kinds != wire.KIND_CALLBACK)]]  # callbacks have the last number
        process.last, process.pieces = reading, process.pieces + 1
        packed = _CODEC.compress(np.ascontiguousarray(slots.T), asbytes=True)
        live = reading.live.operations
        piece = _Piece(process, process.pieces, now_ns, share, reading.level, packed, len(slots), live, is_last)
        self._pieces.append(piece)
        self.bytes += piece.bytes
        self._make_room(now_ns)

    def replay(self, wish: MinutesWish, now_ns: int) -> "Replay":
        """Return what a wish is about and no wish had before, oldest first; from now on it counts as sent."""
        chosen = [
            piece
            for piece in self._pieces
            if not piece.is_sent and piece.now_ns >= now_ns - wish.span_ns and _is_meant(piece.process, wish.target)
        ]
        for piece in chosen:
            piece.is_sent = True
        return Replay(chosen, wish.expires_ns)

    def _make_room(self, now_ns: int) -> None:
        while self._pieces and (self.bytes > self._limit or self._pieces[0].now_ns < now_ns - KEPT_NS):
            oldest = self._pieces.popleft()
            self.bytes -= oldest.bytes
            if oldest.now_ns >= now_ns - KEPT_NS:
                self.dropped += oldest.count


class Replay:
    """Folds the pieces of one wish again, one at a time."""

    def __init__(self, pieces: list[_Piece], expires_ns: int) -> None:
        self.pieces, self.expires_ns = deque(pieces), expires_ns
        self._owners: dict[int, tuple[Folder, Identity]] = {}
        self._ledgers: dict[int, Ledger] = {}
        self._joiner = ForeignJoiner()

    def take(self, rows: float) -> list[Mapping[str, pa.Table]]:
        """Return rows of further pieces, until there are as many as wanted or none are left."""
        taken: list[Mapping[str, pa.Table]] = []
        while rows > 0 and self.pieces:
            self._fold(self.pieces.popleft())
            made = [ledger.rows() for ledger in self._ledgers.values()]  # also of others, for whom it did something
            rows -= sum(table.num_rows for tables in made for table in tables.values())
            taken += made
        return taken

    def _fold(self, piece: _Piece) -> None:
        folder, reading = self._continue(piece), _reading_of(piece)
        if piece.is_last:
            folder.finish(reading, piece.now_ns, died=True, share=piece.share)
        else:
            folder.fold(reading, piece.now_ns, piece.share)
        self._owners[id(piece.process)] = folder, reading.identity
        self._ledgers[id(piece.process)] = piece.process.ledger
        self._joiner.join([folder], list(self._owners.values()), piece.now_ns)

    def _continue(self, piece: _Piece) -> Folder:
        """Return a folder that has seen the piece before this one, or else a new one."""
        process = piece.process
        if process.folder is None or process.folded != piece.number - 1:
            process.folder = Folder(process.origin, process.ledger, keeps_rest=True)
        process.folded = piece.number
        return process.folder


def _reading_of(piece: _Piece) -> Reading:
    last = piece.process.last
    if last is None:
        raise AssertionError("a process with pieces has a reading")
    live = Live(np.empty(0, PLACED_ROW), piece.open, np.empty(0, wire.TRANSFER))
    records = piece.process.ring.sort(piece.unpack())
    return Reading(last.identity, last.clock, last.communicators, live, records, piece.level)


def _is_meant(process: KeptProcess, target: Target) -> bool:
    return target.means(process.origin.job, process.ring.identity.world_rank)
