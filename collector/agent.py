"""The agent of one host: every source on its own schedule, batches when they are due, sent until acknowledged."""

import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pyarrow as pa
import structlog

from collector.shipping import Batch, BatchQueue, Checkpoints, Destination, Shipper
from collector.sources.source import Reading, Source
from lockstep import __version__
from lockstep.allocation import keep_freed_memory
from lockstep.arrow import rows_of, schema_of
from lockstep.batches import DetailRequest, encode_batch
from lockstep.bounds import keep_within
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import BadRows, NotPresent
from lockstep.records import Agent as Heartbeat
from lockstep.records import PluginHealth
from lockstep.tables import TABLE_BY_NAME

_PATIENCE_S, _PATIENCE_PERIODS = 10.0, 3.0
# Who is read less often than looks are taken tells of states (connections, clocks) rather than of what happens: if
# windows waited for it, every fault would be told so many seconds later.
_LONGEST_PERIOD_S = 2.0
_SHORTEST_ALIGNED_S = 1.0
# Soon after the end of a window can be known, and not all hosts of a fleet at one instant; what they send within a
# second is one insert.
_EARLIEST_S, _SPREAD_S = 0.1, 0.6
MOST_ROWS = 200_000  # kept while nobody packs, because a disk hangs: some 30 MB, and minutes of a busy host


@dataclass(frozen=True)
class Gathered:
    """Rows for one batch, and the state of the sources when they had given exactly these."""

    tables: Mapping[str, pa.Table]
    checkpoints: Checkpoints
    # Every source that is read all the time has given all that is older; None: none has said anything yet.
    watermark_ns: int | None
    stalled: Mapping[str, int]  # sources that give nothing any more, and up to when each has given all


@dataclass(frozen=True)
class _Watermark:
    ts_ns: int
    good_until_ns: int  # monotonic
    is_waited_for: bool


class Gathering:
    """Rows of all sources, put down by their threads and taken up by the one that packs."""

    def __init__(self, checkpoints: Checkpoints, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._pieces: dict[str, list[pa.Table]] = {}
        self._rows = 0
        self._watermarks: dict[str, _Watermark] = {}
        self._checkpoints = dict(checkpoints)
        self.dropped_rows = 0
        self.refused_rows = 0  # of these, because too many were kept
        self.plugin_cost_ns: int | None = None
        self.is_due = threading.Event()  # something was put down that somebody waits for

    def expect(self, source: str, now_ns: int, period_s: float) -> None:
        """Begin to count how long a source takes that has given nothing yet."""
        with self._guard:
            self._watermarks.setdefault(source, _Watermark(now_ns, self._good_until_ns(period_s), False))

    def _good_until_ns(self, period_s: float) -> int:
        return self._clock.monotonic_ns() + int(max(_PATIENCE_S, _PATIENCE_PERIODS * period_s) * NS_PER_S)

    def put(self, source: str, reading: Reading, period_s: float) -> None:
        """Add a reading; BadRows when a table of it would spoil the batch for all the others.

        A source that gives nothing for several of its periods, because it fails or hangs, is not waited for: windows
        of all jobs of the host would stay open for as long as one card does not answer. It is told to be stalled.
        Nor is one waited for that is read seldom.
        """
        for name, rows in reading.tables.items():
            if rows.schema != schema_of(TABLE_BY_NAME[name]):
                raise BadRows("has another schema than its table", table=name)
        count = sum(rows.num_rows for rows in reading.tables.values())
        with self._guard:
            if self._rows + count > MOST_ROWS:
                self.dropped_rows += count
                self.refused_rows += count
            else:
                self._rows += count
                for name, rows in reading.tables.items():
                    self._pieces.setdefault(name, []).append(rows)
            good_until_ns, is_waited_for = self._good_until_ns(period_s), period_s <= _LONGEST_PERIOD_S
            self._watermarks[source] = _Watermark(reading.watermark_ns, good_until_ns, is_waited_for)
            if reading.checkpoint is not None:
                self._checkpoints[source] = reading.checkpoint
            self.dropped_rows += reading.dropped
            if reading.plugin_cost_ns is not None:
                self.plugin_cost_ns = (self.plugin_cost_ns or 0) + reading.plugin_cost_ns
        if reading.is_urgent:
            self.is_due.set()

    def forget(self, source: str) -> None:
        """Expect nothing of a source that rests."""
        with self._guard:
            self._watermarks.pop(source, None)

    def take(self) -> Gathered:
        self.is_due.clear()
        with self._guard:
            pieces, self._pieces, self._rows = self._pieces, {}, 0
            checkpoints, now_ns = dict(self._checkpoints), self._clock.monotonic_ns()
            marks = dict(self._watermarks)
        stalled = {name: mark.ts_ns for name, mark in marks.items() if now_ns > mark.good_until_ns}
        current = (mark.ts_ns for name, mark in marks.items() if mark.is_waited_for and name not in stalled)
        tables = {name: pa.concat_tables(rows) for name, rows in pieces.items()}
        return Gathered(tables, checkpoints, min(current, default=None), stalled)


_log = structlog.get_logger("collector")

_RETRY_S = 60.0  # for what was not there: drivers are loaded late, and cards are hot-plugged


@dataclass(frozen=True)
class Health:
    """How a source has done so far."""

    reads: int = 0
    failures: int = 0
    rows: int = 0
    dropped: int = 0
    folded: int = 0
    last_s: float = 0.0  # how long the last read took
    cpu_s: float = 0.0  # CPU time of all reads, in the source's own thread
    lost: Mapping[str, int] = field(default_factory=dict)  # by reason
    plugins: Sequence[PluginHealth] = ()  # of the host's ranks
    is_present: bool = True
    is_well: bool = True
    reading_since_ns: int | None = None  # monotonic; a read that hangs is seen by it


class Follower:
    """Reads one source until it is stopped; `health` may be looked at from any thread."""

    def __init__(
        self,
        source: Source,
        gathering: Gathering,
        requests: Callable[[], tuple[DetailRequest, ...]],
        clock: Clock,
        offset_s: float = 0.0,
    ) -> None:
        """`offset_s` is how long after whole periods of the clock it reads, beside what the source needs."""
        self.source, self._offset_ns = source, round((offset_s + source.delay_s) * NS_PER_S)
        self.health = Health()
        self._gathering, self._detail_requests, self._clock = gathering, requests, clock
        self._fault: str | None = None

    def resume(self, checkpoint: bytes) -> None:
        """Have the source go on where an earlier agent stopped; one of another release may not understand it."""
        try:
            self.source.resume(checkpoint)
        except Exception as error:  # noqa: BLE001  # whatever it makes of it, beginning anew is always possible
            _log.warning("source begins anew", source=self.source.name, error=f"{type(error).__name__}: {error}")

    def follow(self, stop: threading.Event) -> None:
        """Read again and again, then let the source go."""
        while not stop.is_set():
            begin_ns, begin_cpu_s = self._clock.monotonic_ns(), time.thread_time()
            self.health = replace(self.health, reading_since_ns=begin_ns)
            pause_s = self._read_once()
            spent_s = (self._clock.monotonic_ns() - begin_ns) / NS_PER_S
            cpu_s = self.health.cpu_s + time.thread_time() - begin_cpu_s
            self.health = replace(self.health, last_s=spent_s, cpu_s=cpu_s, reading_since_ns=None)
            self._clock.wait(stop, self._rest_s(pause_s, spent_s))
        try:
            self.source.close()
        except Exception as error:  # noqa: BLE001  # it is the end anyway
            _log.warning("source did not close", source=self.source.name, error=str(error))

    def _rest_s(self, pause_s: float, spent_s: float) -> float:
        """Return how long to wait after a reading that took so long.

        What windows wait for is read at the same moments on all hosts. A window closes when the last of them has read
        beyond its end, and ranks that wait for one another are better disturbed together than one after the other.
        """
        if not _SHORTEST_ALIGNED_S <= pause_s <= _LONGEST_PERIOD_S:
            return max(pause_s - spent_s, 0.0)
        period_ns = round(pause_s * NS_PER_S)
        since_ns = (self._clock.now_ns() - self._offset_ns) % period_ns
        return (period_ns - since_ns) / NS_PER_S

    def _read_once(self) -> float:
        """Read, and return how long to wait before the next time."""
        try:
            reading = self._read()
            self._gathering.put(self.source.name, reading, self.source.period_s)
        except NotPresent as absence:
            self._rest(str(absence))
            return _RETRY_S
        except Exception as error:  # noqa: BLE001  # whatever a source does, the others go on
            self._fail(f"{type(error).__name__}: {error}")
        else:
            self._succeed(reading)
        return self.source.period_s

    def _read(self) -> Reading:
        now_ns = self._clock.now_ns()
        self._gathering.expect(self.source.name, now_ns, self.source.period_s)
        requests = tuple(request for request in self._detail_requests() if request.expires_ns > now_ns)
        return self.source.read(now_ns, requests)

    def _succeed(self, reading: Reading) -> None:
        self._fault = None
        health = self.health
        self.health = replace(
            health,
            reads=health.reads + 1,
            rows=health.rows + sum(rows.num_rows for rows in reading.tables.values()),
            dropped=health.dropped + reading.dropped,
            lost=Counter(health.lost) + Counter(reading.lost or {self.source.name: reading.dropped}),
            plugins=health.plugins if reading.plugins is None else reading.plugins,
            folded=health.folded + reading.folded,
            is_present=True,
            is_well=True,
        )

    def _fail(self, fault: str) -> None:
        """Say it when it changes, not each time round."""
        if fault != self._fault:
            _log.warning("source failed", source=self.source.name, error=fault)
        self._fault = fault
        health = self.health
        self.health = replace(health, reads=health.reads + 1, failures=health.failures + 1, is_well=False)

    def _rest(self, reason: str) -> None:
        if self.health.is_present:
            _log.info("source has nothing to read here", source=self.source.name, reason=reason)
        self._gathering.forget(self.source.name)
        self.health = replace(self.health, is_present=False, is_well=True)


# What ranks recorded is packed as soon as it was read, and all else with it; longer than between two such readings.
_BATCH_PERIOD_S = 2.5
_LAST_READ_S = 5.0  # how long the end waits for a source that hangs; it may hang in the kernel for ever


def offset_of(host: str) -> float:
    """Return how many seconds after whole periods of the clock a host reads."""
    return _EARLIEST_S + _SPREAD_S * zlib.crc32(host.encode()) / 2**32


class CollectorAgent:
    """Reads the sources of one host and ships what they give; `start` and `close` frame its life."""

    def __init__(
        self,
        host: str,
        sources: Sequence[Source],
        queue: BatchQueue,
        destination: Destination,
        clock: Clock,
        checkpoints: Checkpoints = MappingProxyType({}),
    ) -> None:
        """`checkpoints` are those of the last batch that an earlier agent of this host kept."""
        self._host, self._clock = host, clock
        self._queue, self._destination = queue, destination
        self._boot = uuid.uuid4().hex
        self._number = 0
        self._unsound_rows = 0  # that said what cannot be: a broken ring file, or a forged one
        self._gathering = Gathering(checkpoints, clock)
        self.shipper = Shipper(host, queue, destination, clock)
        self.followers = [
            Follower(source, self._gathering, lambda: self.shipper.requests, clock, offset_of(host))
            for source in sources
        ]
        for follower in self.followers:
            if follower.source.name in checkpoints:
                follower.resume(checkpoints[follower.source.name])
        self._stop = threading.Event()
        self._readers = [
            threading.Thread(
                target=follower.follow, args=(self._stop,), name=f"{host}-{follower.source.name}", daemon=True
            )
            for follower in self.followers
        ]
        self._senders = [
            threading.Thread(target=self._pack, name=f"{host}-pack"),
            threading.Thread(target=self.shipper.ship, args=(self._stop,), name=f"{host}-ship"),
        ]

    @property
    def dropped_rows(self) -> int:
        """Rows lost since the start, by sources that could not keep up or because too much waited."""
        return self._queue.dropped_rows + self._gathering.dropped_rows + self._unsound_rows

    @property
    def lost(self) -> dict[str, int]:
        """What was lost since the start, by reason: sources tell theirs, the rest is ours."""
        ours = Counter(queue=self._queue.dropped_rows, memory=self._gathering.refused_rows)
        return dict(sum((Counter(follower.health.lost) for follower in self.followers), ours))

    @property
    def waiting_bytes(self) -> int:
        return self._queue.bytes

    def start(self) -> None:
        keep_freed_memory()
        for thread in self._readers + self._senders:
            thread.start()

    def close(self) -> None:
        """Stop reading, send what is left as long as the gateway takes it at once, and that it is the last; end."""
        self._stop.set()
        self._gathering.is_due.set()
        self.shipper.arrived.set()
        deadline_ns = self._clock.monotonic_ns() + int(_LAST_READ_S * NS_PER_S)
        for thread in filter(threading.Thread.is_alive, self._readers):
            thread.join(max(0, deadline_ns - self._clock.monotonic_ns()) / NS_PER_S)
        for thread in filter(threading.Thread.is_alive, self._senders):
            thread.join()
        self._pack_batch(is_last=True)
        self.shipper.empty()
        self._destination.close()
        self._queue.close()

    def _pack(self) -> None:
        while not self._stop.is_set():
            self._clock.wait(self._gathering.is_due, _BATCH_PERIOD_S)
            if not self._stop.is_set():
                self._pack_batch()

    def _pack_batch(self, is_last: bool = False) -> None:
        """Put everything collected so far, and a heartbeat, into the queue as one batch."""
        gathered = self._gathering.take()
        sound = {name: keep_within(name, rows, self._clock.now_ns()) for name, rows in gathered.tables.items()}
        self._unsound_rows += sum(gathered.tables[name].num_rows - rows.num_rows for name, rows in sound.items())
        tables = sound | {"agents": self._heartbeat(gathered, is_last)}
        self._number += 1
        body, rows = encode_batch(tables), sum(table.num_rows for table in tables.values())
        self._queue.put(Batch(self._boot, self._number, body, rows, gathered.checkpoints))
        self.shipper.arrived.set()

    def _heartbeat(self, gathered: Gathered, is_last: bool) -> pa.Table:
        now_ns = self._clock.now_ns()
        beat = Heartbeat(
            host=self._host,
            ts_ns=now_ns,
            version=__version__,
            watermark_ns=now_ns if gathered.watermark_ns is None else gathered.watermark_ns,
            dropped=self.dropped_rows,
            spool_bytes=self.waiting_bytes,
            cpu_ns=time.process_time_ns(),
            plugin_cost_ns=self._gathering.plugin_cost_ns,
            ended=is_last,
            gateway=self._destination.address,
            stalled=dict(gathered.stalled),
        )
        return rows_of(TABLE_BY_NAME["agents"], [beat])
