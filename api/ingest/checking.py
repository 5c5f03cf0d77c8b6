"""Looks at batches before they are logged, and whose word they are.

Many at a time, because looking costs per column and not per row. One thread does it: more would not be faster, as
each of the hundreds of small steps takes the lock of the interpreter again, and forty that wait for it make each
other slow.
"""

import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from api.ingest.log import Entry
from lockstep.arrow import schema_of
from lockstep.batches import Pieces, Shape, check_rows, join, read_batch
from lockstep.bounds import BOUNDS, find_breach
from lockstep.clock import NS_PER_S
from lockstep.errors import BadBatch, GatewayFull
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import lies_on

_GROUP = 128  # batches looked at together at most
_GATHER_S, _POLLS = 0.05, 5  # how long, and how often while more come: agents send every two seconds and do not mind
_GROUP_BYTES = 8 << 20  # as they came; unpacked they may take sixteen times that

Rows = Mapping[Shape, pa.Table]  # checked, each in its table's exact schema
_MINUTE_NS = 60 * NS_PER_S
OWN_SOURCE = "gateway"  # of events: what we say ourselves, and nobody else
_OF_PEERS = pa.array(["probe_silent", "probe_refused"])  # who was probed; no verdict rests on it


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
                problem = f"{host} reports more than {most} {what} in a minute"
                over[host] = BadBatch(problem, slug="too-many", status=status)
        return over


@dataclass(frozen=True)
class CheckLimits:
    """How large a batch may be, unpacked."""

    max_bytes: int
    max_rows: int


@dataclass(frozen=True)
class Arrival:
    """A batch that waits to be looked at; its rows may only be of its agent. The future ends when it is on disk."""

    entry: Entry
    limits: CheckLimits
    is_fabric: bool = False  # its agent may tell of switches and of parts of other hosts
    future: "Future[int]" = field(default_factory=Future)


@dataclass(frozen=True)
class Bundle:
    """Batches that go into the log together, who waits for each, and their rows where these have been looked at."""

    entries: Sequence[Entry]
    futures: Sequence["Future[int]"]
    rows: Rows | None = None


class BatchChecker:
    """Takes arrivals from many threads and hands on what is sound, in order; `start` and `close` frame its life."""

    def __init__(self, hand_on: Callable[[Bundle], None]) -> None:
        self._hand_on = hand_on
        self._queue: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._tally = Tally()
        self._thread = threading.Thread(target=self._check, name="gateway-check")
        self._queue_lock = threading.Lock()  # nothing enters the queue behind its end
        self._closing = threading.Event()
        self._is_checking = False

    @property
    def is_busy(self) -> bool:
        """Return whether batches have come that were not handed on yet."""
        return self._is_checking or not self._queue.empty()

    def start(self) -> None:
        self._thread.start()

    def submit(self, arrival: Arrival) -> None:
        """Look at a batch; its future has BadBatch if it is bad, else it goes on."""
        arrival.future.set_running_or_notify_cancel()  # a request that gives up cannot cancel it under the thread
        with self._queue_lock:
            if self._closing.is_set():
                arrival.future.set_exception(GatewayFull("the gateway is closing"))
            else:
                self._queue.put(arrival)

    def close(self) -> None:
        """Finish what came in and end the thread."""
        with self._queue_lock:
            self._closing.set()
            self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _check(self) -> None:
        running = True
        while running:
            group, running = self._take_group()
            try:
                verdicts, rows = check_group(group, self._tally)
            except Exception as error:  # noqa: BLE001  # a dead thread would leave every agent waiting
                self._answer(group, [error] * len(group), {})
            else:
                self._answer(group, verdicts, rows)
            self._is_checking = False

    def _answer(self, group: Sequence[Arrival], verdicts: Sequence[Exception | None], rows: Rows) -> None:
        sound: list[Arrival] = []
        for arrival, verdict in zip(group, verdicts, strict=True):
            if verdict is None:
                sound.append(arrival)
            else:
                arrival.future.set_exception(verdict)
        if sound:
            self._hand_on(Bundle([one.entry for one in sound], [one.future for one in sound], rows))

    def _take_group(self) -> tuple[list[Arrival], bool]:
        """Return what waits, at least one and at most a group, and whether to go on after it."""
        group: list[Arrival] = []
        item, size = self._queue.get(), 0
        self._is_checking = True
        self._wait_for_more()
        while item is not None:
            group.append(item)
            size += len(item.entry.body)
            if len(group) == _GROUP or size > _GROUP_BYTES or self._queue.empty():
                return group, True
            item = self._queue.get()
        return group, False

    def _wait_for_more(self) -> None:
        """Wait while more come, a quarter of a second at most: a group of 30 costs a third of three groups of ten."""
        for _ in range(_POLLS):
            waiting = self._queue.qsize()
            if waiting >= _GROUP or self._closing.wait(_GATHER_S) or not waiting < self._queue.qsize() < _GROUP:
                return


def check_group(group: Sequence[Arrival], tally: Tally | None = None) -> tuple[list[BadBatch | None], Rows]:
    """Return for each batch what is wrong about it, or None, and the rows of those that are sound."""
    verdicts: list[BadBatch | None] = [None] * len(group)
    read: dict[int, Pieces] = {}
    for index, arrival in enumerate(group):
        try:
            read[index] = read_batch(arrival.entry.body, arrival.limits.max_bytes, arrival.limits.max_rows)
        except BadBatch as error:
            verdicts[index] = error
    try:
        rows = _check_together(read, group)
    except BadBatch:  # of one of them or of several: each is looked at alone
        for index, pieces in read.items():
            verdicts[index] = _find_fault(pieces, group[index])
        rows = _check_together(_sound(read, verdicts), group)
    over = tally.count(rows, _now_ns(group)) if tally and rows else {}
    if over:
        verdicts = [
            verdict or over.get(arrival.entry.agent) for verdict, arrival in zip(verdicts, group, strict=True)
        ]
        rows = _check_together(_sound(read, verdicts), group)
    return verdicts, rows


def _sound(read: Mapping[int, Pieces], verdicts: Sequence[BadBatch | None]) -> dict[int, Pieces]:
    return {index: pieces for index, pieces in read.items() if verdicts[index] is None}


def _now_ns(group: Sequence[Arrival]) -> int:
    """Return when the newest of them came in."""
    return max(arrival.entry.received_ns for arrival in group)


def join_rows(batches: Iterable[Pieces]) -> dict[Shape, pa.Table]:
    """Return the rows of many batches, by table and columns: agents of several releases may send."""
    pieces: Pieces = {}
    for batch in batches:
        for shape, rows in batch.items():
            pieces.setdefault(shape, []).extend(rows)
    return {shape: join(shape, rows) for shape, rows in pieces.items()}


def check_joined(shape: Shape, rows: pa.Table) -> pa.Table:
    """Return the rows of many batches in their table's exact schema, in one piece of their own, or raise BadBatch.

    In one piece they are looked at twice as fast. Copying them before is safe: `read_batch` has seen to it that
    columns begin and end inside of their buffers, and an offset between that leads astray still does so in the copy.
    """
    if shape.schema.equals(schema_of(TABLE_BY_NAME[shape.table])):
        checked = check_rows(shape.table, rows.combine_chunks())
    else:
        checked = check_rows(shape.table, rows).combine_chunks()
    return checked if rows.column(0).num_chunks > 1 else _copy(checked)


def _copy(rows: pa.Table) -> pa.Table:
    """Return rows that were in one piece before, and so still hold on to all of the body they came in."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def _check_together(read: Mapping[int, Pieces], group: Sequence[Arrival]) -> Rows:
    """Return the rows of all batches, or raise BadBatch when one of them is bad."""
    rows = {shape: check_joined(shape, joined) for shape, joined in join_rows(read.values()).items()}
    fabric_hosts = {group[index].entry.agent for index in read if group[index].is_fabric}
    for shape, table in rows.items():
        sent = [(group[index].entry.agent, sum(map(len, pieces.get(shape, [])))) for index, pieces in read.items()]
        if pc.any(pc.not_equal(table["host"].combine_chunks(), _repeat(sent))).as_py():
            raise BadBatch("a row is of another host")
        check_bounds(shape.table, table, _now_ns(group), fabric_hosts)
    return rows


def _repeat(sent: Iterable[tuple[str, int]]) -> pa.Array:
    """Return each text so many times."""
    some = [(text, times) for text, times in sent if times]
    ends = pa.array(accumulate(times for _, times in some), pa.int32())
    return pc.run_end_decode(
        pa.RunEndEncodedArray.from_arrays(ends, pa.array([text for text, _ in some], pa.string()))
    )


def _find_fault(pieces: Pieces, arrival: Arrival) -> BadBatch | None:
    """Return what is wrong about one batch, with the table and the row."""
    host = arrival.entry.agent
    try:
        for shape, rows in pieces.items():
            checked = check_rows(shape.table, join(shape, rows))
            _check_host(shape.table, checked, host)
            check_bounds(shape.table, checked, arrival.entry.received_ns, (host,) if arrival.is_fabric else ())
    except BadBatch as error:
        return error
    return None


def _check_host(name: str, rows: pa.Table, host: str) -> None:
    """Refuse rows that claim to be of another host than the one whose token came with them."""
    foreign = pc.index(pc.not_equal(rows["host"], host), True).as_py()
    if foreign >= 0:
        problem = f"{name}, row {foreign}: this token is for {host}, the row is from {rows['host'][foreign]}"
        raise BadBatch(problem, slug="wrong-host", status=403)


def check_bounds(name: str, rows: pa.Table, now_ns: int, fabric_hosts: Collection[str] = ()) -> None:
    """Raise BadBatch for rows that no honest agent sends; some hosts may tell of the fabric, too."""
    if problem := find_breach(name, rows, now_ns):
        raise BadBatch(problem)
    if name == "events":
        _check_whose(rows, fabric_hosts)
    elif name == "fabric_counters" and (strange := set(pc.unique(rows["host"]).to_pylist()) - set(fabric_hosts)):
        problem = f"fabric_counters: {min(strange)} reports on switches, which needs a token of scope fabric"
        raise BadBatch(problem, slug="wrong-scope", status=403)


def _check_whose(rows: pa.Table, fabric_hosts: Collection[str]) -> None:
    """Refuse what a host says of a part of another, or in our name."""
    if pc.any(pc.equal(rows["source"], OWN_SOURCE)).as_py():
        raise BadBatch(f"events: only the gateway itself is the source {OWN_SOURCE}")
    rows = rows.filter(pc.invert(pc.is_in(rows["kind"], _OF_PEERS)))
    told = rows.group_by(["host", "component"], use_threads=False).aggregate([])
    for host, component in zip(told["host"].to_pylist(), told["component"].to_pylist(), strict=True):
        if host not in fabric_hosts and not lies_on(component, host):
            raise BadBatch(f"events: {host} reports on {component[:80]!r}, which is not its own", slug="wrong-host")


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
