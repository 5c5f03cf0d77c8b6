"""The last minutes of every process in full, kept as records rather than as rows: packed, and folded when requested.

A record has 64 bytes and few of them differ from one to the next, so they are kept as 64 planes of bytes, compressed.
What a request brings are the rows that were not sent before: operations outside of the share that was in force.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from collector.nccl.aggregator import Aggregator, ForeignJoiner
from collector.nccl.budget import WHOLE_SHARE
from collector.nccl.communicators import Origin
from collector.nccl.draining import Records, Slots
from collector.nccl.header import Identity
from collector.nccl.host_aggregator import HostAggregator
from collector.nccl.ledger import Ledger
from collector.nccl.ringfile import Live, RingFile
from collector.nccl.snapshot import Reading
from lockstep import wire
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.wire import Table

MOST_MINUTES = 10
_LEVELS = {"operations": wire.OPERATIONS, "transfers": wire.TRANSFERS, "steps": wire.STEPS}
_MOST_REMEMBERED = 1_024


@dataclass(frozen=True)
class Target:
    """Processes of a job: all, or those of some ranks."""

    job: str
    ranks: frozenset[int] | None

    def means(self, job: str, rank: int | None) -> bool:
        return job == self.job and (self.ranks is None or rank in self.ranks)


@dataclass(frozen=True)
class Detail:
    """How much the plugin shall see."""

    level: int
    share: int  # of operations whose steps are recorded, of 65,536


@dataclass(frozen=True)
class RankDetail:
    target: Target
    detail: Detail


@dataclass(frozen=True)
class MinutesRequest:
    id: str
    target: Target
    duration_ns: int
    expires_ns: int


def wanted_detail(requests: Iterable[RankDetail], usual: Detail, job: str, rank: int | None) -> Detail:
    """Return the most that is requested a process, and never less than what it does by itself."""
    meant = [usual, *(request.detail for request in requests if request.target.means(job, rank))]
    return Detail(max(each.level for each in meant), max(each.share for each in meant))


def read_details(requests: Sequence[DetailRequest], now_ns: int) -> list[RankDetail]:
    """Return the requests for detail that are in force; what makes no sense is none."""
    alive = (request for request in requests if request.kind == "detail" and request.expires_ns > now_ns)
    return [read for request in alive if (read := _read_detail(request))]


def allowed_level(requests: Sequence[DetailRequest], job: str, attempt: int) -> int:
    """Return the most that a job may record because of what it pays; the server decides for all of its ranks."""
    ours = (request.details for request in requests if request.kind == "lower")
    levels = (_LEVELS.get(str(of["level"])) for of in ours if (of.get("job"), of.get("attempt")) == (job, attempt))
    return min((level for level in levels if level is not None), default=wire.TRACE)


class MinutesRequests:
    """Hands out each detail request for the last minutes once, however often it is repeated."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}  # when each expires

    def new(self, requests: Sequence[DetailRequest], now_ns: int) -> list[MinutesRequest]:
        """Return the detail requests that have not come before."""
        self._done = {known: end_ns for known, end_ns in self._done.items() if end_ns > now_ns}
        alive = [request for request in requests if request.kind == "last_minutes" and request.expires_ns > now_ns]
        fresh = [request for request in alive if request.id not in self._done][: _MOST_REMEMBERED - len(self._done)]
        self._done |= {request.id: request.expires_ns for request in fresh}
        return [read for request in fresh if (read := _read_minutes(request))]


def _read_detail(request: DetailRequest) -> RankDetail | None:
    target, share = _target(request), request.details.get("share", 1.0)
    level = _LEVELS.get(str(request.details.get("level")))
    if target is None or level is None or not _is_number(share) or not 0 <= share <= 1:
        return None
    return RankDetail(target, Detail(level, round(share * WHOLE_SHARE)))


def _read_minutes(request: DetailRequest) -> MinutesRequest | None:
    target, minutes = _target(request), request.details.get("minutes", MOST_MINUTES)
    if target is None or not _is_number(minutes) or not 0 < minutes <= MOST_MINUTES:
        return None
    return MinutesRequest(request.id, target, round(minutes * 60 * NS_PER_S), request.expires_ns)


def _target(request: DetailRequest) -> Target | None:
    job, ranks = request.details.get("job"), request.details.get("ranks")
    if not isinstance(job, str):
        return None
    if ranks is None:
        return Target(job, None)
    is_list = isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks)
    return Target(job, frozenset(ranks)) if is_list else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
    aggregator: Aggregator | None = None  # of the last detail request
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

    def replay(self, request: MinutesRequest, now_ns: int) -> "Replay":
        """Return what a request is about and no request had before, oldest first; from now on it counts as sent."""
        chosen = [
            piece
            for piece in self._pieces
            if not piece.is_sent
            and piece.now_ns >= now_ns - request.duration_ns
            and request.target.means(piece.process.origin.job, piece.process.ring.identity.world_rank)
        ]
        for piece in chosen:
            piece.is_sent = True
        return Replay(chosen, request.expires_ns)

    def _make_room(self, now_ns: int) -> None:
        while self._pieces and (self.bytes > self._limit or self._pieces[0].now_ns < now_ns - KEPT_NS):
            oldest = self._pieces.popleft()
            self.bytes -= oldest.bytes
            if oldest.now_ns >= now_ns - KEPT_NS:
                self.dropped += oldest.count


class Replay:
    """Folds the pieces of one detail request again, one at a time."""

    def __init__(self, pieces: list[_Piece], expires_ns: int) -> None:
        self.pieces, self.expires_ns = deque(pieces), expires_ns
        self._owners: dict[int, tuple[Aggregator, Identity]] = {}
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
        last = piece.process.last
        assert last, "a process with pieces has a reading"
        live, records = Live(operations=piece.open), Records(piece.unpack(), most_comms=last.records.most_comms)
        reading = replace(last, live=live, records=records, level=piece.level)
        aggregator = self._continue(piece)
        if piece.is_last:
            aggregator.finish(reading, piece.now_ns, died=True, share=piece.share)
        else:
            aggregator.fold(reading, piece.now_ns, piece.share)
        self._owners[id(piece.process)] = aggregator, reading.identity
        self._ledgers[id(piece.process)] = piece.process.ledger
        self._joiner.join(aggregator.host.foreign, list(self._owners.values()), piece.now_ns)

    def _continue(self, piece: _Piece) -> Aggregator:
        """Return a folder that has seen the piece before this one, or else a new one."""
        process = piece.process
        if process.aggregator is None or process.folded != piece.number - 1:
            process.aggregator = Aggregator(process.origin, HostAggregator(process.ledger, keeps_rest=True))
        process.folded = piece.number
        return process.aggregator
