"""Answers of NCCL's RAS to STATUS, as JSON or as text: communicators, and events about ranks missing or behind.

RAS counts what ranks have launched, not what began or ended, so that its counts are no `progress`: a rank behind the
others is an event. On a live job that is common and harmless, unless the next answer says the same. Neither form
tells a time that means the same everywhere, so whoever saved the answer has to: `ts_ns` is when. The text form tells
only of ranks that stand out, and chooses itself which those are; communicators come from JSON alone.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import Field

from importers.traces.nccl_callbacks import Name
from importers.traces.readings import Loose, Reading, Row, Text, decoded, parse_json, validated
from lockstep.errors import BadInput

_SETTLED = (0, 7)  # ncclSuccess, ncclInProgress
_SEVERITY = {"dead": "critical", "missing": "error", "error": "error", "behind": "info", "outlier": "info"}
_KINDS = {"DEAD": "dead", "INCOMPLETE": "missing", "ERROR": "error"}  # the rest, such as MISMATCH, are outliers
_HEADING = re.compile(r"^(?:#\d+-\d+ \(([0-9a-f]{1,16})\) )?([A-Z]{3,})$")
_ON_NODE = re.compile(r"\bprocess \d+ on node (\S+)", re.IGNORECASE)
_GPU = re.compile(r"\bGPU (\d{1,4})(?: \(NVML (\d{1,4})\))?(?![\d,])")  # CUDA's number, and NVML's where it differs
_NAMELESS = re.compile(r"^(?:Rank|The missing rank|\[)")


@dataclass(frozen=True)
class Answer:
    """What RAS said, when, and the file it was saved to."""

    file: str
    data: bytes
    ts_ns: int


class Status(Loose):
    """What a rank says of itself, or what others say of a missing one."""

    init_state: int = 0
    async_error: int = 0
    considered_dead: bool = False


class Member(Loose):
    """A rank of a communicator."""

    rank: int = Field(ge=0, lt=1 << 31)
    host: Name
    pid: int = Field(ge=0, lt=1 << 32)
    nvml_dev: int = Field(ge=-1, lt=(1 << 16) - 1)
    status: Status = Status()
    collective_counts: dict[str, int] = Field({})


class Communicator(Loose):
    """A communicator: the ranks that answered, and those that did not."""

    hash: str = Field(pattern="^0x[0-9a-fA-F]{1,16}$")
    size: int = Field(ge=1, lt=1 << 31)
    ranks: tuple[Member, ...]
    missing_ranks: tuple[Member, ...] = ()


class JobStatus(Loose):
    """The whole answer."""

    nccl_version: Text | None = None
    communicators: tuple[Communicator, ...]


def parse_ras(answers: Iterable[Answer], job: str) -> Reading:
    """Return what these answers tell; a communicator is known from the first that has it."""
    reading, known = Reading(), set[tuple[int, int]]()
    for answer in sorted(answers, key=lambda answer: answer.ts_ns):
        text = decoded(answer.file, answer.data)
        begin = re.search(r"^\{", text, re.MULTILINE)  # the protocol's own lines may stand above
        if begin is None:
            _add_text(reading, answer, text)
            continue
        status = validated(JobStatus, parse_json(answer.file, text[begin.start() :]), answer.file)
        common: Row = {"job": job, "attempt": 0, "init_ns": answer.ts_ns, "nccl_version": status.nccl_version}
        common |= {"plugin_version": "ras", "detail": "ops"}
        for comm in status.communicators:
            _add_comms(reading, known, comm, common)
            for row in _events(comm):
                reading.add("events", row | {"ts_ns": answer.ts_ns})
    return reading


def _add_comms(reading: Reading, known: set[tuple[int, int]], comm: Communicator, common: Row) -> None:
    members = (*comm.ranks, *comm.missing_ranks)
    nnodes = len({member.host for member in members}) if len(members) == comm.size else None
    for member in members:
        key = (int(comm.hash, 16), member.rank)
        if key in known:
            continue
        known.add(key)
        gpu = member.nvml_dev if member.nvml_dev >= 0 else None
        row: Row = {"host": member.host, "comm": key[0], "rank": member.rank, "pid": member.pid, "gpu": gpu}
        reading.add("comms", common | row | {"nranks": comm.size, "nnodes": nnodes})


def _events(comm: Communicator) -> Iterator[Row]:
    for member in comm.missing_ranks:
        dead = member.status.considered_dead
        yield _event(comm, member, *(("dead", "is considered dead") if dead else ("missing", "did not answer")))
    for member in comm.ranks:
        for name in ("init_state", "async_error"):
            if (code := getattr(member.status, name)) not in _SETTLED:
                yield _event(comm, member, "error", f"has {name} {code}")
    for func in sorted({func for member in comm.ranks for func in member.collective_counts}):
        counts = [
            (member, member.collective_counts[func]) for member in comm.ranks if func in member.collective_counts
        ]
        most = max(count for _, count in counts)
        for member, count in counts:
            if count < most:
                yield _event(comm, member, "behind", f"has launched {count} {func}, others {most}")


def _event(comm: Communicator, member: Member, kind: str, what: str) -> Row:
    message = f"rank {member.rank} of communicator {comm.hash}, process {member.pid}, {what}"
    return _event_row(member.host, member.nvml_dev if member.nvml_dev >= 0 else None, kind, message)


def _event_row(host: str, gpu: int | None, kind: str, message: str) -> Row:
    component = f"host:{host}" if gpu is None else f"gpu:{host}/{gpu}"
    row: Row = {"host": host, "source": "ras", "kind": kind, "component": component}
    return row | {"severity": _SEVERITY[kind], "message": message}


def _add_text(reading: Reading, answer: Answer, text: str) -> None:
    """Add an event for every line that names a process, under the heading and the sentence it stands below."""
    if not re.search(r"^Communicators\.\.\.", text, re.MULTILINE):
        raise BadInput(f"{answer.file}: has no communicators, so that it is no whole answer of NCCL's RAS")
    heading, sentences = "", list[str]()
    for line in text.splitlines():
        if not line.startswith("  "):
            heading, sentences = (line if _HEADING.match(line) else ""), []
        elif heading and (node := _ON_NODE.search(line)):
            reading.add("events", _line_event(heading, sentences, line.strip(), node[1]) | {"ts_ns": answer.ts_ns})
        elif heading and _NAMELESS.match(line.strip()):
            reading.unread["lines were left out, because they name no process"] += 1
        else:
            sentences.append(line.strip())


def _line_event(heading: str, sentences: list[str], line: str, host: str) -> Row:
    """Return the event of a line; it says what is wrong itself, or the last sentence above it does for several."""
    named = _HEADING.match(heading)
    assert named, heading  # only such a line is kept as one
    gpu = _GPU.search(line)
    comm = f"communicator 0x{named[1]}, " if named[1] else ""
    above = sentences[-1:] if re.match(r"Rank \d+ --|Process", line) else sentences[:1]
    message = ": ".join([comm + named[2], *above, line])
    return _event_row(host, int(gpu[2] or gpu[1]) if gpu else None, _KINDS.get(named[2], "outlier"), message)
