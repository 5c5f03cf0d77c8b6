"""The gateway itself: one thread logs and acknowledges, another inserts segments into the store, in order.

A batch is acknowledged when it is on disk. A segment is deleted when all its rows are in the store and the
watermarks that it carried are written down. Whatever is repeated in between carries the same token, so the store
keeps it once. Of several gateways behind one address, one claims a batch that was sent to two, and inserts it.
Nothing depends on how long an outage lasts.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from api.ingest.checking import Arrival, BatchChecker, Bundle, CheckLimits
from api.ingest.log import (
    Entry,
    OpenSegment,
    Watermarks,
    identify,
    list_segments,
    read_backlog,
    read_segment,
    recover,
    segment_number,
)
from api.ingest.segments import KeptRows, Piece, RankClaims, insert_all, inserts_of
from lockstep.batches import BatchName
from lockstep.clock import NS_PER_S, Clock
from lockstep.directories import lock_directory
from lockstep.errors import BadInput, GatewayFull, LockstepError
from lockstep.state.claims import BatchClaims
from lockstep.store.store import Store


class GatewayMetrics:
    """Counters of one gateway, in a registry of their own so that several can live in one process."""

    def __init__(self, backlog_bytes: Callable[[], float], is_stuck: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        count, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.batches = count("lockstep_ingest_batches", "Batches by what became of them", ["result"])
        self.rows = count("lockstep_ingest_rows", "Rows that reached the store")
        self.foreign_rows = count("lockstep_ingest_foreign_rows", "Rows of ranks that another host holds, not stored")
        gauge("lockstep_ingest_backlog_bytes", "Acknowledged, not in the store yet").set_function(backlog_bytes)
        gauge("lockstep_ingest_stuck", "1 while the store takes nothing").set_function(lambda: float(is_stuck()))


_log = structlog.get_logger("gateway")

_INSERTS_AT_ONCE = 4
_GROUP = 256  # batches that share one sync at most
_AHEAD = 4  # bundles whose rows may wait for a slow disk; those of later ones are read again
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_IDLE_S = 0.2
_ROUND = 16  # segments that are let go of together, so many may be repeated after a crash
_RESCAN_S = 5.0  # for segments of which nobody told
_REGULAR_NS = 3 * NS_PER_S  # agents send every two seconds
_LULL, _LONG, _LONGEST = 0.5, 2.0, 3.0  # times segment_s; the last bounds what an insert holds in memory


@dataclass(frozen=True)
class GatewayOptions:
    """Limits of the log."""

    segment_s: float = 1.0
    max_segment_bytes: int = 64 << 20
    max_backlog_bytes: int = 4 << 30
    leave_s: float = 2.0  # for what waits when we are stopped; a backlog of hours waits for the next start
    max_kept_bytes: int = 256 << 20  # of rows in memory that wait for the store; a host sends 100 KB a second


class Gateway:
    """Takes batches from many threads; `start` and `close` frame its life."""

    def __init__(
        self, directory: Path, store: Store, clock: Clock, options: GatewayOptions, claims: BatchClaims | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = lock_directory(directory)
        except BlockingIOError:
            raise LockstepError(f"another gateway uses the log in {directory}") from None
        recover(directory)
        self._directory = directory
        self._store = store
        self._clock = clock
        self._batch_claims = claims
        self._options = options
        self._identity = identify(directory)
        self._watermarks = Watermarks(directory / "watermarks.json")
        self._waiting = read_backlog(directory, self._watermarks)
        self._kept = KeptRows(options.max_kept_bytes)
        self._queue: queue.SimpleQueue[Bundle | None] = queue.SimpleQueue()
        self._guard = threading.Lock()  # over watermarks, the open segment, what waits and what is kept
        self._queue_lock = threading.Lock()  # nothing enters the queue behind its end
        self._open: OpenSegment | None = None
        self._opened_ns = self._cut_ns = 0
        self._sent_ns: dict[str, int] = {}  # when each agent sent last
        self._missing: set[str] = set()  # regular senders that the open segment has nothing of
        self._checker = BatchChecker(self._enqueue)
        self._rank_claims = RankClaims(store)
        self._stop = threading.Event()
        self._leaves_ns = 1 << 63  # on the monotonic clock; no segment is begun after this
        self._has_cut = threading.Event()  # a segment waits to be inserted
        self.trouble: str | None = None  # why nothing reaches the store at the moment
        self.inserted: Callable[[], object] = lambda: None  # called when the store has more
        self.metrics = GatewayMetrics(lambda: self.backlog_bytes, lambda: self.trouble is not None)
        # A segment has one insert per table, and most of each is waiting for the store.
        self._inserters = ThreadPoolExecutor(_INSERTS_AT_ONCE, "gateway-insert")
        self._threads = [
            threading.Thread(target=self._log_batches, name="gateway-log"),
            threading.Thread(target=self._insert_segments, name="gateway-insert"),
        ]

    @property
    def backlog_bytes(self) -> int:
        segment = self._open  # another thread may cut it between two looks
        return self._waiting + (segment.size if segment else 0)

    def start(self) -> None:
        self._checker.start()
        for thread in self._threads:
            thread.start()

    def take(self, entry: Entry, limits: CheckLimits, *, is_fabric: bool = False) -> "Future[int]":
        """Return the future watermark of an agent; it is there once the batch was found sound and is safe on disk."""
        arrival = Arrival(entry, limits, is_fabric)
        if (error := self._fullness()) is None:
            self._checker.submit(arrival)
        else:
            arrival.future.set_exception(error)
        return arrival.future

    def submit(self, entry: Entry) -> "Future[int]":
        """Return the same for a batch that is of our own making."""
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()  # a request that gives up cannot cancel it under the log's thread
        self._enqueue(Bundle([entry], [future]))
        return future

    def close(self) -> None:
        """Insert what was acknowledged as far as time and the store allow, cut the log, and end the threads."""
        self._checker.close()
        with self._queue_lock:
            self._stop.set()
            self._queue.put(None)
        self._leaves_ns = self._clock.monotonic_ns() + round(self._options.leave_s * NS_PER_S)
        self._has_cut.set()  # after the stop: who waits for a segment sees that it is over
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._inserters.shutdown()
        os.close(self._lock)

    def _enqueue(self, bundle: Bundle) -> None:
        with self._queue_lock:
            error = GatewayFull("the gateway is closing") if self._stop.is_set() else self._fullness()
            if error is None:
                self._queue.put(bundle if self._queue.qsize() < _AHEAD else replace(bundle, rows=None))
                return
        for future in bundle.futures:
            future.set_exception(error)

    def _fullness(self) -> GatewayFull | None:
        if self.backlog_bytes <= self._options.max_backlog_bytes:
            return None
        return GatewayFull(f"{self.backlog_bytes >> 20} MiB wait for the store already")

    def _log_batches(self) -> None:
        running = True
        while running:
            group, running = self._take_group()
            if group:
                self._commit(group)
            try:
                is_idle = not any(bundle.entries for bundle in group)
                is_lull = (is_idle or not self._missing) and not self._checker.is_busy
                self._cut_when_due(force=not running, is_lull=is_lull)
            except OSError as error:  # the file stays open, and is cut at the next round or found at the next start
                _log.error("segment cannot be cut", directory=str(self._directory), error=str(error))

    def _take_group(self) -> tuple[list[Bundle], bool]:
        """Return all batches that wait, about a group of them at most, and whether to go on after them."""
        group: list[Bundle] = []
        count = 0
        try:
            item = self._queue.get(timeout=_IDLE_S)
            while item is not None:
                group.append(item)
                count += len(item.entries)
                if count >= _GROUP:
                    return group, True
                item = self._queue.get_nowait()
        except queue.Empty:
            return group, True
        return group, False

    def _commit(self, group: list[Bundle]) -> None:
        total = sum(len(bundle.entries) for bundle in group)
        with self._guard:
            fresh = self._watermarks.choose_new(bundle.entries for bundle in group)
            try:
                self._append(group, fresh)
            except OSError as error:
                self._refuse(group, total, error)
                return
        taken = sum(map(len, fresh))
        self.metrics.batches.labels("accepted").inc(taken)
        self.metrics.batches.labels("repeated").inc(total - taken)
        for bundle in group:
            for entry, future in zip(bundle.entries, bundle.futures, strict=True):
                future.set_result(self._watermarks.get(entry.agent, entry.boot))

    def _append(self, group: list[Bundle], fresh: list[list[Entry]]) -> None:
        """Write what is new into the open segment, and keep the rows of bundles that are all new."""
        entries = [entry for new in fresh for entry in new]
        if not entries:
            return
        if self._open is None:
            self._watermarks.last_segment += 1
            self._open = OpenSegment(self._directory, self._watermarks.last_segment)
            self._opened_ns = self._clock.monotonic_ns()
            self._sent_ns = {who: at for who, at in self._sent_ns.items() if self._opened_ns - at < _REGULAR_NS}
            self._missing = set(self._sent_ns)
        segment = self._open
        segment.append(entries)
        self._sent_ns |= dict.fromkeys((entry.agent for entry in entries), self._clock.monotonic_ns())
        self._missing.difference_update(entry.agent for entry in entries)
        for bundle, new in zip(group, fresh, strict=True):
            is_all = len(new) == len(bundle.entries)
            piece = bundle.rows if bundle.rows is not None and is_all else new
            self._kept.add(segment.number, piece, (entry.name for entry in new))
        for entry in entries:
            self._watermarks.advance(entry)

    def _refuse(self, group: list[Bundle], total: int, error: OSError) -> None:
        self.metrics.batches.labels("refused").inc(total)
        _log.error("log cannot be written", directory=str(self._directory), error=str(error))
        for bundle in group:
            for future in bundle.futures:
                future.set_exception(GatewayFull(f"the gateway's log cannot be written: {error.strerror}"))

    def _cut_when_due(self, force: bool, is_lull: bool) -> None:
        """Cut when all hosts have sent, after half the time when nothing comes, after twice the time while some send.

        They send together, and what all have sent is waited for: an insert of twice the rows costs a third less for
        each. While the store is busy with what was cut before, the segment grows.
        """
        with self._guard:
            segment = self._open
            if segment is None:
                return
            now_ns = self._clock.monotonic_ns()
            wanted_s = self._options.segment_s * (_LONGEST if self._waiting else _LULL if is_lull else _LONG)
            is_whole = is_lull and not self._waiting and not self._missing
            age_s = (now_ns - (self._cut_ns if is_whole else self._opened_ns)) / NS_PER_S
            if force or age_s >= wanted_s or segment.size >= self._options.max_segment_bytes:
                segment.cut()
                self._cut_ns = now_ns
                self._waiting += segment.size  # first: who looks in between sees too much, and never room that is not
                self._open = None
                self._has_cut.set()

    def _insert_segments(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set() or self._threads[0].is_alive() or list_segments(self._directory):
            try:
                self._has_cut.clear()  # before looking: what is cut from now on is not seen yet
                while self._insert_waiting():
                    pass
                if self._clock.monotonic_ns() > self._leaves_ns:
                    return  # what is left waits on disk for the next start
                self._report(None)
                pause_s = _FIRST_PAUSE_S
                if not self._stop.is_set():
                    self._clock.wait(self._has_cut, _RESCAN_S)
            except Exception as error:  # noqa: BLE001  # whatever it is must be seen: a dead thread looks healthy
                self._report(str(error) or repr(error))
                self._rank_claims.tell_again()
                if self._stop.is_set():
                    return  # the segments wait on disk for the next start
                self._clock.wait(self._stop, pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _insert_waiting(self) -> bool:
        """Insert what waits, and let go of it together, marks being written down once; return whether any waited."""
        done: dict[Path, Callable[[], object]] = {}
        try:
            for path in list_segments(self._directory)[:_ROUND]:
                if self._clock.monotonic_ns() <= self._leaves_ns:
                    done[path] = self._insert_or_set_aside(path)
        finally:
            if done:
                self.inserted()
                self._let_go(done)
        return bool(done)

    def _let_go(self, done: Mapping[Path, Callable[[], object]]) -> None:
        sizes = {path: path.stat().st_size for path in done}
        with self._guard:
            changes = self._watermarks.take_changes(self._clock.now_ns())
        self._watermarks.write(changes)  # nobody who waits for a receipt waits for this
        for path, finish in done.items():
            finish()
            with self._guard:
                self._waiting -= sizes[path]
                self._kept.forget(segment_number(path))
        self._queue.put(Bundle([], []))  # wakes the thread of the log: a segment that grew meanwhile is due

    def _insert_or_set_aside(self, path: Path) -> Callable[[], object]:
        """Insert a segment, and return what is left to do; one that cannot be read is kept for a person to see."""
        try:
            self.metrics.rows.inc(self._insert_segment(path))
        except BadInput as error:
            _log.error("segment cannot be read and is set aside", segment=path.name, reason=str(error))
            self.metrics.batches.labels("set_aside").inc()
            return partial(path.rename, path.with_suffix(".bad"))
        return path.unlink

    def _insert_segment(self, path: Path) -> int:
        number = segment_number(path)
        kept, names = self._kept.get(number), self._kept.names(number)
        if kept is not None and self._claim(names).issuperset(names):
            return self._insert_pieces(kept, number)
        segment = read_segment(path)
        ours = self._claim([entry.name for entry in segment.entries])
        rows = self._insert_pieces([[entry for entry in segment.entries if entry.name in ours]], number)
        if segment.damaged_at is not None:
            raise BadInput(f"damaged at byte {segment.damaged_at}; what stands before it is in the store")
        return rows

    def _claim(self, names: Sequence[BatchName]) -> set[BatchName]:
        """Return which batches are ours to insert: all, unless another gateway was sent some of them too."""
        claims = self._batch_claims
        return claims.claim(self._identity, names, self._clock.now_ns()) if claims else set(names)

    def _insert_pieces(self, pieces: Iterable[Piece], number: int) -> int:
        parts = inserts_of(pieces, self._admit)
        return insert_all(parts, self._store, self._inserters, f"{self._identity}/{number}")

    def _admit(self, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        kept, foreign = self._rank_claims.admit(tables, self._clock.now_ns())
        self.metrics.foreign_rows.inc(foreign)
        return kept

    def _report(self, trouble: str | None) -> None:
        """Say it when it changes, not each time round."""
        if trouble and not self.trouble:
            _log.warning("store takes nothing, batches wait on disk", reason=trouble)
        if self.trouble and not trouble:
            _log.info("store takes batches again")
        self.trouble = trouble
