"""NCCL Inspector's lines of JSON, one per finished operation: communicators and operations, per process and rank.

Inspector tells how long an operation ran, and when it ran only with NCCL_INSPECTOR_DUMP_VERBOSE=1. Then enqueueing is
the moment of the callback, start and end are those of its first and last kernel channel as the proxy thread heard of
them, to the microsecond. Without it start and end stay unknown and the execution time is left out, counted, because a
duration cannot be told without them; `enqueue_ns` is then the latest it can have been, the dump less the execution.
Never told are the GPU, and when a communicator was made: `init_ns` is the first moment that it is heard of.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field
from pydantic_core import from_json

from importers.traces.nccl_callbacks import Name
from importers.traces.readings import Loose, Reading, Row, validated
from lockstep.errors import BadInput

_MOST_LINE_BYTES = 1 << 20  # a verbose operation on 64 channels takes about 12 KB
_NS_PER_US = 1000
_U64 = Field(ge=0, lt=1 << 64)
_Us = Annotated[int, Field(ge=0, lt=1 << 53)]  # UNIX time; 0 where the callback never came


class Header(Loose):
    """The communicator, and who tells of it."""

    id: str = Field(pattern="^(0x)?[0-9a-fA-F]{1,16}$")
    comm_name: str = ""
    rank: int = Field(ge=0, lt=1 << 31)
    n_ranks: int = Field(ge=1, lt=1 << 31)
    nnodes: int = Field(ge=1, lt=1 << 31)


class Metadata(Loose):
    """The process, and when it wrote the line."""

    inspector_output_format_version: str = Field(pattern=r"^v4\.")
    dump_timestamp_us: _Us
    hostname: Name
    pid: int = Field(ge=0, lt=1 << 32)


class KernelChannel(Loose):
    """When the proxy thread heard of begin and end of one channel."""

    kernel_start_ts: _Us
    kernel_stop_ts: _Us


class EventTimes(Loose):
    """Times of callbacks, of verbose lines only."""

    start_ts: _Us
    kernel_events: tuple[KernelChannel, ...] = Field((), max_length=255)

    def interval_us(self) -> tuple[int, int] | None:
        """Return begin and end, where every channel has both."""
        marks = [(event.kernel_start_ts, event.kernel_stop_ts) for event in self.kernel_events]
        if not marks or not all(0 < start <= stop for start, stop in marks):
            return None
        return min(start for start, _ in marks), max(stop for _, stop in marks)


class Operation(Loose):
    """A collective, or a Send or Recv; the names are those of Inspector without `coll_` or `p2p_` before them."""

    func: str = Field(min_length=1)
    sn: int = _U64
    peer: int = Field(-1, ge=-1, lt=1 << 31)
    msg_size_bytes: int = _U64
    exec_time_us: float = Field(ge=0, lt=1 << 53)
    algo: str | None = None
    proto: str | None = None
    event_trace_ts: EventTimes | None = None


class Line(Loose):
    """One line, whichever kind of operation it tells of."""

    header: Header
    metadata: Metadata
    perf: Operation
    is_p2p: bool

    @property
    def comm(self) -> int:
        return int(self.header.id, 16)

    @property
    def enqueue_ns(self) -> int:
        times = self.perf.event_trace_ts
        latest_us = max(self.metadata.dump_timestamp_us - int(self.perf.exec_time_us), 0)
        return (times.start_ts if times and times.start_ts else latest_us) * _NS_PER_US

    def row(self, job: str) -> Row:
        """Return what all rows about this rank in this communicator begin with."""
        row: Row = {"host": self.metadata.hostname, "job": job, "attempt": 0}
        return row | {"comm": self.comm, "rank": self.header.rank}


def parse_inspector(files: Iterable[tuple[str, Iterable[bytes]]], job: str) -> Reading:
    """Return communicators and operations of all processes whose files, name and lines, these are."""
    reading = Reading()
    seen: set[tuple[object, ...]] = set()
    comms: dict[tuple[int, int], Row] = {}
    for name, lines in files:
        for line in _parsed_lines(reading, name, lines):
            _note_comm(comms, line, job)
            key = (line.comm, line.perf.func, line.perf.sn, line.header.rank, line.perf.peer)
            if key in seen:
                reading.unread["operations were left out, because they came again under the same number"] += 1
                continue
            seen.add(key)
            _add_operation(reading, line, job)
    for row in comms.values():
        reading.add("comms", row)
    return reading


def _parsed_lines(reading: Reading, name: str, lines: Iterable[bytes]) -> Iterator[Line]:
    for number, text in enumerate(lines, 1):
        fields = _json_of(reading, f"{name}, line {number}", text)
        if fields is None:
            continue
        kind = next((kind for kind in ("coll", "p2p") if f"{kind}_perf" in fields), None)
        if kind is None:
            reading.unread["lines were left out, because they tell of no operation"] += 1
            continue
        yield validated(Line, _in_one_form(fields, kind), f"{name}, line {number}")


def _json_of(reading: Reading, location: str, text: bytes) -> dict[str, object] | None:
    """Return the object on a line; None where it is empty, or where it is the last and its writer was killed."""
    if len(text) > _MOST_LINE_BYTES:
        raise BadInput(f"{location}: is longer than {_MOST_LINE_BYTES >> 20} MiB")
    if not text.strip():
        return None
    try:
        fields = from_json(text)
    except ValueError as error:
        if text.endswith(b"\n"):
            raise BadInput(f"{location}: is not JSON: {str(error).splitlines()[0]}") from None
        reading.unread["last lines of files were cut off in the middle and left out"] += 1
        return None
    if not isinstance(fields, dict):
        raise BadInput(f"{location}: is not a JSON object")
    return fields


def _in_one_form(fields: dict[str, object], kind: str) -> dict[str, object]:
    """Return a line with the same names for collectives and for Send and Recv."""
    perf = fields[f"{kind}_perf"]
    if isinstance(perf, dict):
        times = perf.get("event_trace_ts")
        plain = {str(name).removeprefix(f"{kind}_"): value for name, value in perf.items()}
        if isinstance(times, dict):
            times = {str(name).removeprefix(f"{kind}_"): value for name, value in times.items()}
        perf = plain | {"func": perf.get(kind), "event_trace_ts": times}
    return {**fields, "perf": perf, "is_p2p": kind == "p2p"}


def _note_comm(comms: dict[tuple[int, int], Row], line: Line, job: str) -> None:
    key = (line.comm, line.header.rank)
    if key in comms and comms[key]["init_ns"] <= line.enqueue_ns:  # type: ignore[operator]  # a row holds any object
        return
    row = line.row(job) | {"name": line.header.comm_name, "pid": line.metadata.pid, "init_ns": line.enqueue_ns}
    row |= {"nranks": line.header.n_ranks, "nnodes": line.header.nnodes, "detail": "ops"}
    comms[key] = row | {"plugin_version": f"inspector {line.metadata.inspector_output_format_version}"}


def _add_operation(reading: Reading, line: Line, job: str) -> None:
    perf, times = line.perf, line.perf.event_trace_ts
    interval_us = times.interval_us() if times else None
    if interval_us is None:
        reading.unread["execution times were left out, because nothing tells when they began"] += 1
    start_us, end_us = interval_us or (None, None)
    row = line.row(job) | {"func": perf.func, "peer": perf.peer, "seq": perf.sn, "seq_valid": not line.is_p2p}
    row |= {"replay": 0, "captured": False, "epoch": 0, "bytes": perf.msg_size_bytes, "algo": perf.algo}
    row |= {"proto": perf.proto, "channels": len(times.kernel_events) or None if times else None}
    row |= {"enqueue_ns": line.enqueue_ns, "clock": "proxy" if interval_us else "none"}
    reading.add("collectives", row | {"start_ns": _ns(start_us), "end_ns": _ns(end_us)})


def _ns(timestamp_us: int | None) -> int | None:
    return None if timestamp_us is None else timestamp_us * _NS_PER_US
