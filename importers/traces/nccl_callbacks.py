"""Recorded NCCL profiler callbacks: lines of JSON, perhaps compressed, checked line by line as they are read.

A line about the run (`run`, `nccl`, and perhaps `hosts`, `nic`, `layout`, `live`), a header per rank, then one line
per callback, in order of time. A file with a single rank may begin with its header. Whatever is wrong is said in one
sentence with file and line.
"""

import lzma
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import from_json, to_json

from collector.nccl.communicators import Origin
from importers.traces.callback_trace import PHASES, STATES, TYPES
from importers.traces.readings import Loose, first_problem
from lockstep.capture.files import JobLayout
from lockstep.errors import BadInput

_XZ_MAGIC = b"\xfd7zXZ\x00"
_MOST_LINE_BYTES = 64 << 20  # line 1 names every communicator of the job with its members
_U64 = 1 << 64

Event = dict[str, Any]  # Any: JSON; the keys are checked by type of event
_TEXTS = frozenset({"func", "dtype", "algo", "proto"})  # names, or NCCL's numbers before v2
_NUMBERS = frozenset(
    {"seq", "count", "root", "nCh", "nWarps", "group", "traffic", "tag", "peer", "ch", "send", "nSteps", "chunk"}
    | {"pid", "step", "ptimer", "captured", "depth", "parent", "arg", "tid"}
)
_NEEDED = {
    "Coll": ("seq", "count", "func", "dtype"),
    "P2p": ("count", "func", "dtype", "peer"),
    "ProxyOp": ("peer", "ch", "send", "nSteps", "pid"),
    "ProxyStep": ("step",),
    "KernelCh": ("ch",),
}


class RecordedComm(Loose):
    """A communicator of one rank; before v4 a plugin is told neither its size nor the rank (-1)."""

    id: str = Field(pattern="^[0-9a-fA-F]{1,16}$")
    nranks: int = Field(alias="nRanks", ge=-1, lt=1 << 31)
    nnodes: int = Field(alias="nNodes", ge=-1, lt=1 << 31)
    rank: int = Field(ge=-1, lt=1 << 31)
    ts_init: int = Field(ge=0, lt=1 << 63)
    ts_fini: int = Field(0, ge=0, lt=1 << 63)
    tid_init: int = 0
    name: str = ""


def _check_name(name: str) -> str:
    """Refuse what would not come apart again in the name of a link or a NIC, or not fit into a ring file."""
    if not name or len(name) > 79 or "/" in name or "--" in name or any(letter.isspace() for letter in name):
        raise ValueError(f"{name!r} cannot be the name of a host or a NIC")
    return name


Name = Annotated[str, AfterValidator(_check_name)]


class RankHeader(Loose):
    """Who one rank was; UNIX time is a callback's time minus `mono0` plus `real0`."""

    pid: int = Field(ge=0, lt=1 << 32)
    host: Name
    api: int = Field(ge=1, le=7)
    mono0: int = Field(ge=0, lt=1 << 62)
    real0: int = Field(ge=0, lt=1 << 62)
    comms: tuple[RecordedComm, ...]

    def unix_ns(self, ts: int) -> int:
        return ts - self.mono0 + self.real0


class About(Loose):
    """What line 1 says of the run."""

    run: str = ""
    nccl: str | None = Field(None, pattern=r"^\d{1,2}\.\d{1,2}\.\d{1,2}$")
    ranks: int | None = Field(None, ge=1)
    hosts: dict[int, Name] = Field({})
    nic: Name | None = None
    layout: JobLayout | None = None
    live: bool = False
    snapshot_mono_ns: int | None = Field(None, ge=0, lt=1 << 63)


@dataclass
class Trace:
    """What the lines before the first callback say; complete when the first callback has been read."""

    path: Path
    about: About = field(default_factory=About)
    ranks: dict[int, RankHeader] = field(default_factory=dict)

    def complain(self, number: int, problem: str) -> BadInput:
        return BadInput(f"{self.path}, line {number}: {problem}")


def read_events(trace: Trace) -> Iterator[tuple[int, Event]]:
    """Yield rank and callback of every line, checked; fill in the trace's headers on the way."""
    before = 0
    for number, line in _lines(trace):
        if "ev" not in line:
            _take_header(trace, number, line)
            continue
        rank = line.get("r", min(trace.ranks, default=0))
        if rank not in trace.ranks:
            raise trace.complain(number, f"rank {rank!r} has no header above")
        if problem := _problem_of(line, trace.ranks[rank]):
            raise trace.complain(number, problem)
        if line["ts"] < before:
            raise trace.complain(number, f"time goes backwards, from {before} to {line['ts']}")
        before = line["ts"]
        yield rank, line


def _lines(trace: Trace) -> Iterator[tuple[int, Event]]:
    number = 0
    with _opened(trace.path) as file:
        try:
            for number in range(1, _U64):
                text = file.readline(_MOST_LINE_BYTES + 1)
                if not text:
                    return
                yield number, _parsed(trace, number, text)
        except EOFError:
            raise trace.complain(number, "the compressed file ends in the middle") from None
        except lzma.LZMAError as error:
            raise trace.complain(number, f"the compressed file is damaged: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with open(path, "rb") as file:
        compressed = file.read(len(_XZ_MAGIC)) == _XZ_MAGIC
        file.seek(0)
        if not compressed:
            yield file
            return
        with lzma.open(file) as unpacked:
            yield unpacked


def _parsed(trace: Trace, number: int, text: bytes) -> Event:
    if len(text) > _MOST_LINE_BYTES:
        raise trace.complain(number, f"is longer than {_MOST_LINE_BYTES >> 20} MiB")
    try:
        line = from_json(text)
    except ValueError as error:
        raise trace.complain(number, f"is not JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(line, dict):
        raise trace.complain(number, "is not a JSON object")
    return line


def _take_header(trace: Trace, number: int, line: Event) -> None:
    try:
        if "header" in line:
            header = RankHeader.model_validate(line["header"])
            in_first = max(header.comms[0].rank, 0) if header.comms else 0
            rank = line.get("rank", in_first)  # where the line does not tell: the one in the first communicator
            if not isinstance(rank, int) or rank in trace.ranks:
                raise trace.complain(number, f"a second header of rank {rank!r}, or no number")
            trace.ranks[rank] = header
        elif number == 1:
            trace.about = About.model_validate(_without_details(line))
        else:
            raise trace.complain(number, "is neither a header nor a callback")
    except ValidationError as error:
        raise trace.complain(number, first_problem(error)) from None


def _without_details(line: Event) -> Event:
    """Leave out of the layout what only the recorder's author needs, and take the older word for a live snapshot."""
    layout = line.get("layout")
    if "t_snap_ns" in line:
        line = {"live": True, "snapshot_mono_ns": line["t_snap_ns"]} | line
    sizes = {name: size for name, size in layout.items() if name in JobLayout.model_fields} if layout else None
    return line | {"layout": sizes or None}


def _problem_of(event: Event, header: RankHeader) -> str | None:
    """Return what is wrong with a callback, or None."""
    if event["ev"] not in PHASES:
        return f"{event['ev']!r} is none of {', '.join(PHASES)}"
    if event.get("type") not in TYPES:
        return f"there is no event type {event.get('type')!r}"
    for name in ("ts", "h"):
        if not _is_number(event.get(name)) or event[name] < 0:
            return f"{name} is {event.get(name)!r}, not a number"
    if problem := _bad_field(event):
        return problem
    if event["ev"] == "start":
        return _bad_start(event, header)
    state = event.get("state")
    is_known = event["ev"] == "stop" or state in STATES or _is_number(state)
    return None if is_known else f"there is no state {state!r}"


def _bad_start(event: Event, header: RankHeader) -> str | None:
    comm = event.get("comm", 0)
    if not _is_number(comm) or not -1 <= comm < len(header.comms):
        return f"comm is {comm!r}, but the rank has {len(header.comms)} communicators"
    missing = [name for name in _NEEDED.get(event["type"], ()) if name not in event]
    return f"{event['type']} lacks {', '.join(missing)}" if missing else None


def _bad_field(event: Event) -> str | None:
    for name, value in event.items():
        if name in _NUMBERS and not _is_number(value):
            return f"{name} is {value!r}, not a number"
        if name in _TEXTS and not (value is None or isinstance(value, str) or _is_number(value)):
            return f"{name} is {value!r}, neither a name nor a number"
    stream = event.get("stream", "0x0")
    is_address = isinstance(stream, str) and re.fullmatch("0x[0-9a-fA-F]{1,16}", stream)
    return None if is_address or _is_number(stream) else f"stream is {stream!r}, not an address"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and -(1 << 63) <= value < _U64


_LINES_AT_A_TIME = 1_000


@dataclass(frozen=True)
class Recording:
    """One rank's part of a trace, ready to be played."""

    rank: int
    header: RankHeader
    origin: Origin
    file: Path
    snapshot_ns: int  # when somebody looks at its progress last, UNIX time


@dataclass(frozen=True)
class Spooled:
    """A whole run, taken apart; start and end are UNIX time."""

    about: About
    recordings: tuple[Recording, ...]
    start_ns: int
    end_ns: int


class _RankFiles:
    """A file per rank, and from when to when anything happened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: dict[int, list[bytes]] = {}
        self.start_ns, self.end_ns = 1 << 63, 0

    def add(self, trace: Trace, rank: int, event: Event) -> None:
        """Take a callback; lines are written many at a time, so that no number of ranks needs as many open files."""
        if rank not in self._pending:
            header = trace.ranks[rank].model_dump() | {"live": trace.about.live}
            self._pending[rank] = [to_json(header)]
        self._pending[rank].append(to_json(event))
        at_ns = trace.ranks[rank].unix_ns(event["ts"])
        self.start_ns, self.end_ns = min(self.start_ns, at_ns), max(self.end_ns, at_ns)
        if len(self._pending[rank]) >= _LINES_AT_A_TIME:
            self._write(rank)

    def path_of(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.jsonl"

    def close(self) -> None:
        for rank in self._pending:
            self._write(rank)

    def _write(self, rank: int) -> None:
        with open(self.path_of(rank), "ab") as file:
            file.writelines(line + b"\n" for line in self._pending[rank])
        self._pending[rank] = []


def spool_traces(paths: list[Path], folder: Path) -> Spooled:
    """Take the traces of one run apart; any fault in one of them is a BadInput and ends it."""
    traces = [Trace(path) for path in paths]
    files = _RankFiles(folder)
    for trace in traces:
        for rank, event in read_events(trace):
            files.add(trace, rank, event)
    files.close()
    if files.end_ns == 0:
        raise BadInput(f"{', '.join(map(str, paths))}: there is no callback in it")
    about, ranks = _of_one_run(traces)
    return _spooled(about, ranks, files)


def _of_one_run(traces: list[Trace]) -> tuple[About, dict[int, RankHeader]]:
    """Return what the traces say together, or complain that they do not belong together."""
    ranks: dict[int, RankHeader] = {}
    for trace in traces:
        if twice := sorted(ranks.keys() & trace.ranks.keys()):
            raise BadInput(f"{trace.path}: rank {twice[0]} is in another of the files too")
        if trace.about.run != traces[0].about.run:
            raise BadInput(
                f"{trace.path}: is of run {trace.about.run!r}, not {traces[0].about.run!r} as the first file"
            )
        ranks |= trace.ranks
    about, stem = traces[0].about, traces[0].path.name.removesuffix(".xz").removesuffix(".jsonl")
    return about if about.run else about.model_copy(update={"run": stem}), ranks


def _spooled(about: About, ranks: dict[int, RankHeader], files: _RankFiles) -> Spooled:
    hosts = name_hosts(about, ranks)
    transport = transport_of(about.nic) if about.nic else None
    recordings: list[Recording] = []
    for rank, header in sorted(ranks.items()):
        if files.path_of(rank).exists():
            gpu = sum(host == hosts[rank] and other < rank for other, host in hosts.items())
            origin = Origin(hosts[rank], about.run, pid=header.pid, gpu=gpu, nic=about.nic, transport=transport)
            # All were looked at last at one time, since a hang shows in who is behind whom.
            looked = about.snapshot_mono_ns if about.live else None
            snapshot_ns = files.end_ns if looked is None else max(header.unix_ns(looked), files.end_ns)
            recordings.append(Recording(rank, header, origin, files.path_of(rank), snapshot_ns))
    end_ns = max(recording.snapshot_ns for recording in recordings)
    return Spooled(about, tuple(recordings), files.start_ns, end_ns + 1)


def name_hosts(about: About, ranks: dict[int, RankHeader]) -> dict[int, str]:
    """Return the host of each rank: as line 1 says, else as the ranks say.

    Ranks that call themselves by one name although their communicators span several hosts were told apart by
    NCCL_HOSTID on one machine; they are h0, h1 and so on.
    """
    spans = any(comm.nnodes != 1 for header in ranks.values() for comm in header.comms)
    shared = len({header.host for header in ranks.values()}) == 1
    return {
        rank: about.hosts.get(rank, f"h{rank}" if spans and shared else header.host) for rank, header in ranks.items()
    }


def transport_of(nic: str) -> str:
    """Return what NCCL uses a NIC for: it calls RDMA devices by the names of their drivers.

    >>> transport_of("mlx5_3"), transport_of("eth0")
    ('ib', 'socket')
    """
    return "ib" if nic.startswith(("mlx", "bnxt_re", "irdma", "rdma", "roce")) else "socket"
