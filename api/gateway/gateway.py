"""The gateway itself: one thread logs and acknowledges, another inserts segments into the store, in order.

A batch is acknowledged when it is on disk. A segment is deleted when all its rows are in the store and the
watermarks that it carried are written down. Whatever is repeated in between carries the same token, so the store
keeps it once. Nothing depends on how long an outage lasts.
"""

import os
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import structlog

from api.gateway.checking import BatchChecker, CheckLimits, join_tables
from api.gateway.log import Entry, OpenSegment, list_segments, read_segment, recover, segment_number, write_atomically
from api.gateway.metrics import GatewayMetrics
from api.gateway.watermarks import Watermarks
from lockstep.batches import check_rows, read_batch
from lockstep.clock import NS_PER_S, Clock
from lockstep.directories import lock_directory
from lockstep.errors import BadInput, GatewayFull, LockstepError
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME

_log = structlog.get_logger("gateway")

_ROWS_PER_INSERT = 500_000
_NO_LIMIT = 1 << 40  # what is in the log was checked when it came in
_INSERTS_AT_ONCE = 4
_GROUP = 256  # batches that share one sync at most
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_IDLE_S = 0.2


@dataclass(frozen=True)
class GatewayOptions:
    """Limits of the log."""

    segment_s: float = 1.0
    max_segment_bytes: int = 64 << 20
    max_backlog_bytes: int = 4 << 30


class Gateway:
    """Takes batches from many threads; `start` and `close` frame its life."""

    def __init__(self, directory: Path, store: Store, clock: Clock, options: GatewayOptions) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory)
        recover(directory)
        self._directory = directory
        self._store = store
        self._clock = clock
        self._options = options
        self._identity = _identify(directory)
        self._watermarks = Watermarks(directory / "watermarks.json")
        self._waiting = _read_backlog(directory, self._watermarks)
        self._queue: queue.SimpleQueue[tuple[Entry, Future[int]] | None] = queue.SimpleQueue()
        self._guard = threading.Lock()  # over watermarks, the open segment and what waits
        self._door = threading.Lock()  # nothing enters the queue behind its end
        self._open: OpenSegment | None = None
        self._opened_ns = 0
        self._checker = BatchChecker()
        self._stop = threading.Event()
        self._trouble: str | None = None
        self.metrics = GatewayMetrics(lambda: self.backlog_bytes, lambda: self._trouble is not None)
        self._threads = [
            threading.Thread(target=self._log_batches, name="gateway-log"),
            threading.Thread(target=self._insert_segments, name="gateway-insert"),
        ]

    @property
    def trouble(self) -> str | None:
        """Why nothing reaches the store at the moment, or None."""
        return self._trouble

    @property
    def backlog_bytes(self) -> int:
        segment = self._open  # another thread may cut it between two looks
        return self._waiting + (segment.size if segment else 0)

    def start(self) -> None:
        self._checker.start()
        for thread in self._threads:
            thread.start()

    def check(self, body: bytes, host: str, limits: CheckLimits) -> "Future[None]":
        """Return a future that is done once the batch was found sound and of this host; else it has BadBatch."""
        return self._checker.submit(body, host, limits)

    def submit(self, entry: Entry) -> "Future[int]":
        """Return the future watermark of the batch's agent; it is there once the batch is safe on disk."""
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()  # a request that gives up cannot cancel it under the log's thread
        with self._door:
            if self._stop.is_set():
                future.set_exception(GatewayFull("the gateway is closing"))
            elif self.backlog_bytes > self._options.max_backlog_bytes:
                future.set_exception(GatewayFull(f"{self.backlog_bytes >> 20} MiB wait for the store already"))
            else:
                self._queue.put((entry, future))
        return future

    def close(self) -> None:
        """Finish what was acknowledged as far as the store takes it, cut the log, and end the threads."""
        self._checker.close()
        with self._door:
            self._stop.set()
            self._queue.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        os.close(self._lock)

    def _log_batches(self) -> None:
        running = True
        while running:
            group, running = self._take_group()
            if group:
                self._commit(group)
            try:
                self._cut_when_due(force=not running)
            except OSError as error:  # the file stays open, and is cut at the next round or found at the next start
                _log.error("segment cannot be cut", directory=str(self._directory), error=str(error))

    def _take_group(self) -> tuple[list[tuple[Entry, "Future[int]"]], bool]:
        """Return all batches that wait, at most a group of them, and whether to go on after them."""
        group: list[tuple[Entry, Future[int]]] = []
        try:
            item = self._queue.get(timeout=_IDLE_S)
            while item is not None:
                group.append(item)
                if len(group) == _GROUP:
                    return group, True
                item = self._queue.get_nowait()
        except queue.Empty:
            return group, True
        return group, False

    def _commit(self, group: list[tuple[Entry, "Future[int]"]]) -> None:
        with self._guard:
            fresh = self._choose_new([entry for entry, _ in group])
            try:
                if fresh:
                    self._segment().append(fresh)
            except OSError as error:
                self._refuse(group, error)
                return
            for entry in fresh:
                self._watermarks.advance(entry)
        self.metrics.accepted(len(fresh), len(group) - len(fresh))
        for entry, future in group:
            future.set_result(self._watermarks.get(entry.agent, entry.boot))

    def _choose_new(self, entries: list[Entry]) -> list[Entry]:
        """Return each batch that was not acknowledged before, once, in the order they came."""
        fresh: dict[tuple[str, str, int], Entry] = {}
        for entry in entries:
            if self._watermarks.is_new(entry):
                fresh.setdefault((entry.agent, entry.boot, entry.number), entry)
        return list(fresh.values())

    def _refuse(self, group: list[tuple[Entry, "Future[int]"]], error: OSError) -> None:
        self.metrics.refused(len(group))
        _log.error("log cannot be written", directory=str(self._directory), error=str(error))
        for _, future in group:
            future.set_exception(GatewayFull(f"the gateway's log cannot be written: {error.strerror}"))

    def _segment(self) -> OpenSegment:
        if self._open is None:
            self._watermarks.last_segment += 1
            self._open = OpenSegment(self._directory, self._watermarks.last_segment)
            self._opened_ns = self._clock.monotonic_ns()
        return self._open

    def _cut_when_due(self, force: bool) -> None:
        with self._guard:
            segment = self._open
            if segment is None:
                return
            age_s = (self._clock.monotonic_ns() - self._opened_ns) / NS_PER_S
            if force or age_s >= self._options.segment_s or segment.size >= self._options.max_segment_bytes:
                segment.cut()
                self._open = None
                self._waiting += segment.size

    def _insert_segments(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._is_drained():
            try:
                for path in list_segments(self._directory):
                    self._insert_or_set_aside(path)
                self._report(None)
                pause_s = _FIRST_PAUSE_S
                self._clock.wait(self._stop, _IDLE_S)
            except Exception as error:  # noqa: BLE001  # whatever it is must be seen: a dead thread looks healthy
                self._report(str(error) or repr(error))
                if self._stop.is_set():
                    return  # the segments wait on disk for the next start
                self._clock.wait(self._stop, pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _is_drained(self) -> bool:
        """Return whether nothing can come any more and everything is in the store."""
        return self._stop.is_set() and not self._threads[0].is_alive() and not list_segments(self._directory)

    def _insert_or_set_aside(self, path: Path) -> None:
        """Insert a segment; one that cannot be read is kept for a person to look at and does not block the rest."""
        size = path.stat().st_size
        try:
            self.metrics.inserted(self._insert_segment(path))
            finished: Callable[[], object] = path.unlink
        except BadInput as error:
            _log.error("segment cannot be read and is set aside", segment=path.name, reason=str(error))
            self.metrics.set_aside()
            finished = partial(path.rename, path.with_suffix(".bad"))
        with self._guard:
            self._watermarks.save(self._clock.now_ns())
            finished()
            self._waiting -= size

    def _insert_segment(self, path: Path) -> int:
        segment = read_segment(path)

        def insert(part: tuple[str, int, pa.Table]) -> int:
            name, number, rows = part
            token = f"{self._identity}/{segment_number(path)}/{name}/{number}"
            self._store.insert(TABLE_BY_NAME[name], rows, token)
            return int(rows.num_rows)

        # Several at a time: a segment has one insert per table, and most of each is waiting for the store.
        with ThreadPoolExecutor(_INSERTS_AT_ONCE, "gateway-insert") as pool:
            rows = sum(pool.map(insert, _parts_by_table(segment.entries)))
        if segment.damaged_at is not None:
            raise BadInput(f"damaged at byte {segment.damaged_at}; what stands before it is in the store")
        return rows

    def _report(self, trouble: str | None) -> None:
        """Say it when it changes, not each time round."""
        if trouble and not self._trouble:
            _log.warning("store takes nothing, batches wait on disk", reason=trouble)
        if self._trouble and not trouble:
            _log.info("store takes batches again")
        self._trouble = trouble


def _parts_by_table(entries: list[Entry]) -> Iterator[tuple[str, int, pa.Table]]:
    """Yield what goes into the store in one insert each: table, number of the part, rows.

    The same entries give the same parts in the same order, which is what lets a token stand for them.
    """
    tables = join_tables(read_batch(entry.body, _NO_LIMIT, _NO_LIMIT) for entry in entries)
    for name, pieces in sorted(tables.items()):
        whole = pa.concat_tables([check_rows(name, rows) for rows in pieces])
        for number, begin in enumerate(range(0, whole.num_rows, _ROWS_PER_INSERT)):
            yield name, number, whole.slice(begin, _ROWS_PER_INSERT)


def _read_backlog(directory: Path, watermarks: Watermarks) -> int:
    """Return the bytes that wait in the log, and learn from it what was acknowledged."""
    total = 0
    for path in list_segments(directory):
        for entry in read_segment(path).entries:
            watermarks.advance(entry)
        watermarks.last_segment = max(watermarks.last_segment, segment_number(path))
        total += path.stat().st_size
    return total


def _identify(directory: Path) -> str:
    """Return this log's own name, which goes into every token."""
    path = directory / "identity"
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="ascii")


def _lock(directory: Path) -> int:
    try:
        return lock_directory(directory)
    except BlockingIOError:
        raise LockstepError(f"another gateway uses the log in {directory}") from None
