"""Looks at batches before they are logged: many at a time, because looking costs per column and not per row.

One thread does it. More would not be faster, as each of the hundreds of small steps takes the interpreter's lock
again, and forty of them waiting for it make each other slow.
"""

import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.batches import check_rows, read_batch
from lockstep.errors import BadBatch, GatewayFull

_GROUP = 64  # batches looked at together at most
_GATHER_S = 0.05  # agents send once a second and do not mind; a group of ten costs a fifth of ten groups of one
_GROUP_BYTES = 4 << 20  # as they came; unpacked they may take sixteen times that


@dataclass(frozen=True)
class CheckLimits:
    """How large a batch may be, unpacked."""

    max_bytes: int
    max_rows: int


@dataclass
class Arrival:
    """A batch that waits to be looked at, and the one host its rows may be of; the future ends when that is done."""

    body: bytes
    host: str
    limits: CheckLimits
    future: "Future[None]" = field(default_factory=Future)


class BatchChecker:
    """Takes arrivals from many threads; `start` and `close` frame its life."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._check, name="gateway-check")
        self._door = threading.Lock()  # nothing enters the queue behind its end
        self._closing = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def submit(self, body: bytes, host: str, limits: CheckLimits) -> "Future[None]":
        """Return a future that is done once the batch of this host was found sound, or has the BadBatch it is."""
        arrival = Arrival(body, host, limits)
        arrival.future.set_running_or_notify_cancel()  # a request that gives up cannot cancel it under the thread
        with self._door:
            if self._closing.is_set():
                arrival.future.set_exception(GatewayFull("the gateway is closing"))
            else:
                self._queue.put(arrival)
        return arrival.future

    def close(self) -> None:
        """Finish what came in and end the thread."""
        with self._door:
            self._closing.set()
            self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _check(self) -> None:
        running = True
        while running:
            group, running = self._take_group()
            try:
                verdicts: Sequence[BaseException | None] = check_group(group)
            except Exception as error:  # noqa: BLE001  # a dead thread would leave every agent waiting
                verdicts = [error] * len(group)
            for arrival, verdict in zip(group, verdicts, strict=True):
                if verdict is None:
                    arrival.future.set_result(None)
                else:
                    arrival.future.set_exception(verdict)

    def _take_group(self) -> tuple[list[Arrival], bool]:
        """Return what waits, at least one and at most a group, and whether to go on after it."""
        group: list[Arrival] = []
        item, size = self._queue.get(), 0
        self._closing.wait(_GATHER_S)
        while item is not None:
            group.append(item)
            size += len(item.body)
            if len(group) == _GROUP or size > _GROUP_BYTES or self._queue.empty():
                return group, True
            item = self._queue.get()
        return group, False


def check_group(group: Sequence[Arrival]) -> list[BadBatch | None]:
    """Return for each batch what is wrong about it, or None."""
    verdicts: list[BadBatch | None] = [None] * len(group)
    read: dict[int, Mapping[str, pa.Table]] = {}
    for place, arrival in enumerate(group):
        try:
            read[place] = read_batch(arrival.body, arrival.limits.max_bytes, arrival.limits.max_rows)
        except BadBatch as error:
            verdicts[place] = error
    if not _are_sound(read.values()):
        for place, tables in read.items():
            verdicts[place] = _find_fault(tables)
    for place in (place for place in read if verdicts[place] is None):
        verdicts[place] = find_foreign(read[place], group[place].host)
    return verdicts


def join_tables(batches: Iterable[Mapping[str, pa.Table]]) -> dict[str, list[pa.Table]]:
    """Return the rows of many batches by table, one piece for each schema that agents of several releases send."""
    pieces: dict[tuple[str, pa.Schema], list[pa.Table]] = {}
    for tables in batches:
        for name, rows in tables.items():
            pieces.setdefault((name, rows.schema), []).append(rows)
    joined: dict[str, list[pa.Table]] = {}
    for (name, _), rows in pieces.items():
        joined.setdefault(name, []).append(pa.concat_tables(rows))
    return joined


def find_foreign(tables: Mapping[str, pa.Table], host: str) -> BadBatch | None:
    """Return what is wrong when a row claims to be of another host than the one whose token came with it."""
    for name, rows in tables.items():
        foreign = pc.index(pc.not_equal(rows["host"], host), True).as_py()
        if foreign >= 0:
            problem = f"{name}, row {foreign}: this token is for {host}, the row is from {rows['host'][foreign]}"
            return BadBatch(problem, slug="wrong-host", status=403)
    return None


def _are_sound(batches: Iterable[Mapping[str, pa.Table]]) -> bool:
    try:
        for name, pieces in join_tables(batches).items():
            for rows in pieces:
                check_rows(name, rows)
    except BadBatch:
        return False
    return True


def _find_fault(tables: Mapping[str, pa.Table]) -> BadBatch | None:
    try:
        for name, rows in tables.items():
            check_rows(name, rows)
    except BadBatch as error:
        return error
    return None
