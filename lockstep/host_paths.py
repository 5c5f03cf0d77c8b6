"""What a host is told of the path plan, and what it tells back: ports of its connections, and how many kept them.

Small files bring planned source ports to the programs of a host, and their answers back. The plan is text that
path_shim reads at every connect():

    lockstep-paths 1 GENERATION LEASE_END
    SOURCE DESTINATION DPORT PORTS
    ...
    end ENTRIES

SOURCE is an address of the host or `*`; entries with other hosts' addresses are passed over there, so that all hosts
may share one file. DPORT is a port or `*`. PORTS are tried in their order (`4000,4001`), or `?`: the host's agent
knows. Entries are tried in the order of the file. A file that is not just so, to its last byte, is damaged and counts
as none.

GENERATION fences: neither a writer nor a process that reads goes back to a lower one, and one generation is one list
of entries. LEASE_END (UNIX seconds) is until when the writer may count on being the only one; readers do not ask for
it. A plan whose planner is away is at worst a random choice of ports, which is what the plain connect makes, and at
best still right; so the last plan stays in force.

Stock NCCL takes no source port for a queue pair from anybody. The verbs half of path_shim reads a file with those of
a host's RoCE queue pairs in its place, and reports what it could do; where it is not loaded, the file is advice, and
marked so: a net plugin that opens its own queue pairs can read it. It is text, like the plan, beside which it lies:

    lockstep-queue-pairs 1 GENERATION LEASE_END advisory
    SOURCE DESTINATION PORT WEIGHT CONNECTION
    ...
    end ENTRIES

One line is one queue pair from an address of this host. Those to one DESTINATION are to be taken in their order, one
for each that is opened. WEIGHT, 0 to 1, is the share of its rate that the path of this port can give, so that bytes
can be shared out accordingly. CONNECTION is for people (job/communicator/ranks/channel/queue pair), with odd letters
as %XX. The file is replaced as a whole. A file that does not end with the number of its entries is cut short and
counts as none; so does one with another version.
"""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import Field

from lockstep.clock import NS_PER_S
from lockstep.directories import lock_directory
from lockstep.errors import BadInput, LeaseLost, LockstepError
from lockstep.verdict import Frozen

VERSION = 1
ANY = "*"
ASK = "?"
# As in path_shim/shim.h, which says why.
MOST_BYTES = 1 << 20
MOST_LINE_BYTES = 1024
MOST_PORTS = 128
_MOST_DIGITS = 18
_MAGIC = "lockstep-paths"
OUTCOMES = (  # of connections and queue pairs
    *("enforced", "busy", "bound", "stale", "damaged", "agent-silent", "agent-refused"),
    "unsupported",  # a queue pair whose driver takes no source port
)
_MODE = 0o644  # jobs of all users read it
_QUEUE_PAIRS_VERSION = 1

Proto = Literal["tcp", "udp", "roce"]


@dataclass(frozen=True, slots=True)
class PathEntry:
    """Source ports for connections to a destination; no ports: the agent of the host is asked."""

    destination: str
    ports: tuple[int, ...] = ()
    dport: int | None = None  # None: any
    source: str | None = None  # None: whatever address the host chooses


@dataclass(frozen=True, slots=True)
class PathPlan:
    """What one file says."""

    generation: int
    lease_end_s: int
    entries: tuple[PathEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class PathReport:
    """What became of one connection that the plan named, as the shim told it."""

    ts_ns: int
    pid: int
    local: str  # address of the NIC, unspecified where the connection failed at once
    sport: int
    remote: str
    dport: int
    generation: int
    outcome: str  # `enforced`, or why not: one of OUTCOMES

    @property
    def is_enforced(self) -> bool:
        return self.outcome == "enforced"


class PathChoice(Frozen):
    """The path of one connection, and the source ports that lead onto it."""

    connection: str = Field(description="id of the flow, the same in every plan")
    nic: str = Field(description="NIC of this host, such as eth1")
    dst: str = Field(description="host at the other end")
    dst_nic: str
    links: tuple[str, ...] = Field(description="ids of the links in order")
    proto: Proto = "tcp"
    source: str | None = Field(None, description="address of the NIC; None: not known")
    destination: str | None = Field(None, description="address of the other NIC; None: not known")
    dport: int | None = Field(None, ge=1, le=65535, description="port at the other end; None: any")
    sports: tuple[int, ...] = Field(
        (), max_length=MOST_PORTS, description="in order of preference; empty: to be probed"
    )
    plane: int | None = None
    weight: float = Field(1.0, ge=0, le=1, description="share of its rate that its path can give")


class HostPaths(Frozen):
    """All paths of one host. A generation that is lower than one seen before is ignored."""

    host: str
    generation: int = Field(ge=0, description="number of the plan in which this last changed")
    made_ns: int = Field(ge=0)
    lease_end_ns: int = Field(ge=0, description="until when the planner counts on being the only one")
    is_enforceable: bool = Field(
        description="False: the fabric or the transport leaves no port to choose; advice only"
    )
    choices: tuple[PathChoice, ...] = ()

    def as_file(self) -> PathPlan:
        """Return what path_shim reads; connections whose ports are not known yet ask the agent of their host."""
        entries = dict.fromkeys(
            PathEntry(choice.destination, choice.sports, choice.dport, choice.source)
            for choice in self.choices
            if choice.destination and choice.proto == "tcp"
        )
        return PathPlan(self.generation, self.lease_end_ns // NS_PER_S, tuple(entries) if self.is_enforceable else ())


class PathSummary(Frozen):
    """One plan for the whole cluster, without the paths themselves."""

    generation: int = Field(ge=0)
    made_ns: int = Field(ge=0)
    flows: int = Field(ge=0)
    with_ports: int = Field(ge=0, description="flows for whose path a source port is known")
    max_use: float = Field(ge=0, description="load of the fullest link over its rate")
    bound: float = Field(ge=0, description="no plan can be below")
    must_move: int = Field(0, ge=0)
    may_move: int = Field(0, ge=0)
    weights: dict[str, float] = Field(default_factory=dict, description="parts that carry less than their rate")
    reasons: tuple[str, ...] = ()
    forecast: dict[str, float] = Field(
        default_factory=dict, description="by job, step time after this plan over that before it, as predicted"
    )
    measured: dict[str, float] = Field(default_factory=dict, description="the same as it came; filled in later")


class PathCount(Frozen):
    """How many connections of a host kept to their plan."""

    generation: int = Field(ge=0)
    planned: int = Field(ge=0, description="connections that the plan named")
    enforced: int = Field(ge=0, description="of these, those that got a planned port")
    reasons: dict[str, int] = Field(default_factory=dict, description="why others did not, such as busy")


def dump_plan(plan: PathPlan) -> bytes:
    """Return a plan as the bytes of its file; BadInput for what a reader would not take.

    >>> dump_plan(PathPlan(7, 0, (PathEntry("10.1.0.2", (4000, 4001)),))).decode().splitlines()
    ['lockstep-paths 1 7 0', '* 10.1.0.2 * 4000,4001', 'end 1']
    """
    lines = [
        f"{_MAGIC} {VERSION} {plan.generation} {plan.lease_end_s}",
        *(
            f"{each.source or ANY} {each.destination} {each.dport or ANY} {','.join(map(str, each.ports)) or ASK}"
            for each in plan.entries
        ),
        f"end {len(plan.entries)}",
    ]
    written = "".join(f"{line}\n" for line in lines).encode()
    if parse_plan(written) != plan:
        raise BadInput("a plan of paths has an address that is not written in its usual form")
    return written


def parse_plan(written: bytes) -> PathPlan:
    """Return what a file says; BadInput with the first line that is wrong."""
    if len(written) > MOST_BYTES:
        raise BadInput(f"a plan of paths has {len(written)} bytes, but at most {MOST_BYTES} are read")
    lines = written.split(b"\n")
    if len(lines) < 3 or lines.pop() != b"":
        raise BadInput("a plan of paths is cut short")
    for number, line in enumerate(lines, 1):
        if len(line) >= MOST_LINE_BYTES or not line.isascii() or b"\0" in line:
            raise BadInput(f"line {number} of a plan of paths is too long or no text")
    fields = [line.decode().split(" ") for line in lines]
    header, entries, end = fields[0], fields[1:-1], fields[-1]
    if len(header) != 4 or header[:2] != [_MAGIC, str(VERSION)]:
        raise BadInput(f"a plan of paths does not begin with {_MAGIC} {VERSION}, generation and end of lease")
    if end != ["end", str(len(entries))]:
        raise BadInput(f"a plan of paths does not end with the number of its {len(entries)} entries")
    generation, lease_end_s = (_read_number(text, 1) for text in header[2:])
    return PathPlan(generation, lease_end_s, tuple(_read_entry(each, n) for n, each in enumerate(entries, 2)))


def read_plan(path: Path) -> PathPlan | None:
    """Return the plan in a file, None where there is no file; BadInput when it is damaged."""
    try:
        with open(path, "rb") as file:
            return parse_plan(file.read(MOST_BYTES + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"the plan of paths {path} cannot be read: {error}") from error


def write_plan(path: Path, plan: PathPlan) -> None:
    """Replace the file, whole or not at all.

    LeaseLost when a later plan is there already, or another one of the same generation: somebody else plans now.
    A damaged file is replaced, for nobody follows it.
    """
    written = dump_plan(plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_directory(path.parent)
    except BlockingIOError:
        raise LockstepError(f"another process writes {path} at this moment") from None
    try:
        _check_fence(path, plan)
        replace_file(path, written)
    finally:
        os.close(lock)


def write_queue_pairs(path: Path, reported: HostPaths) -> None:
    """Replace a host's file: its queue pairs whose port and addresses are known, none where switches choose."""
    known = [each for each in reported.choices if each.proto == "roce" and each.source and each.destination]
    pairs = [
        f"{each.source} {each.destination} {port} {round(each.weight, 3):g} {quote(each.connection)}"
        for each in known
        for port in each.sports[:1]  # those behind the first only stand in for it
        if reported.is_enforceable
    ]
    lease_end_s = reported.lease_end_ns // NS_PER_S
    begin = f"lockstep-queue-pairs {_QUEUE_PAIRS_VERSION} {reported.generation} {lease_end_s} advisory"
    replace_file(path, "".join(f"{line}\n" for line in (begin, *pairs, f"end {len(pairs)}")).encode())


def replace_file(path: Path, written: bytes) -> None:
    """Put a file that all may read in the place of another, whole or not at all; by one writer at a time."""
    new = path.with_name(f".{path.name}.new")  # one name: a dead writer's is used again
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, _MODE)  # whatever the umask is
        file.write(written)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)


def read_reports(folder: Path) -> Iterator[PathReport]:
    """Yield what the processes of this host told so far; a line that is no report is passed over."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.name.isdigit():
            yield from parse_reports(file.read_bytes())


def parse_reports(written: bytes) -> Iterator[PathReport]:
    """Yield the reports in what one process wrote."""
    for line in written.decode(errors="replace").splitlines():
        words = line.split(" ")
        if len(words) == 8 and all(words[n].isdecimal() and len(words[n]) <= 20 for n in (0, 1, 3, 5, 6)):
            ts_ns, pid, local, sport, remote, dport, generation, outcome = words
            yield PathReport(int(ts_ns), int(pid), local, int(sport), remote, int(dport), int(generation), outcome)


def _check_fence(path: Path, plan: PathPlan) -> None:
    try:
        there = read_plan(path)
    except BadInput:
        return
    if there and there.generation > plan.generation:
        raise LeaseLost(f"{path} has plan {there.generation} already, which is later than {plan.generation}")
    if there and there.generation == plan.generation and there.entries != plan.entries:
        raise LeaseLost(f"{path} has another plan {plan.generation} already")


def _read_entry(fields: list[str], number: int) -> PathEntry:
    if len(fields) != 4:
        raise BadInput(f"line {number} of a plan of paths has {len(fields)} fields, but an entry has 4")
    source, destination, dport, listed = fields
    ports = () if listed == ASK else tuple(_read_port(each, number) for each in listed.split(","))
    if len(ports) > MOST_PORTS:
        raise BadInput(f"line {number} of a plan of paths has {len(ports)} ports, but at most {MOST_PORTS} are read")
    return PathEntry(
        _read_address(destination, number),
        ports,
        None if dport == ANY else _read_port(dport, number),
        None if source == ANY else _read_address(source, number),
    )


def _read_port(text: str, number: int) -> int:
    port = _read_number(text, number)
    if not 1 <= port <= 65_535:
        raise BadInput(f"line {number} of a plan of paths has port {port}, which is none")
    return port


def _read_number(text: str, number: int) -> int:
    is_plain = text.isdigit() and len(text) <= _MOST_DIGITS and (text == "0" or text[0] != "0")
    if not is_plain:
        raise BadInput(f"line {number} of a plan of paths has {text[:40]!r} where a number belongs")
    return int(text)


def _read_address(text: str, number: int) -> str:
    """Return the address as the shim prints it: both ask the same C library, so that both take the same texts."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            packed = socket.inet_pton(family, text)
        except OSError:
            continue
        is_mapped = packed[:12] == b"\0" * 10 + b"\xff\xff"
        return socket.inet_ntop(*((socket.AF_INET, packed[12:]) if is_mapped else (family, packed)))
    raise BadInput(f"line {number} of a plan of paths has {text[:60]!r} where an address belongs")
