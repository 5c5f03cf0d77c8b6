"""What NCCL's log can tell: a line is read as who wrote it, and as the fact that it states."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from collector.supervision import clean
from lockstep.records import Direction


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line with who wrote it; `text` is what follows the level."""

    pid: int  # in its own namespace
    tid: int
    is_warning: bool
    text: str


class Fact:
    """What a line states, one record per kind of line."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Release(Fact):
    """Which NCCL writes."""

    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class NetDevices(Fact):
    """The network devices by NCCL's number: an interface, or the ports of an RDMA device as `mlx5_0:1`."""

    network: str  # IB, Socket
    names: tuple[tuple[str, ...], ...]  # several where NCCL has joined them
    addresses: tuple[str, ...] = ()  # of interfaces


@dataclass(frozen=True, slots=True)
class JoinedDevice(Fact):
    """Several devices that NCCL uses as one."""

    number: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommBegins(Fact):
    """A communicator is being made; a split one has no id of its own in the log, but its parent."""

    pointer: int
    rank: int
    nranks: int
    gpu: int | None  # NVML index
    comm_id: int | None
    parent: int | None = None
    child_number: int | None = None
    color: int | None = None


@dataclass(frozen=True, slots=True)
class CommChange(Fact):
    """A communicator is made, or it is gone."""

    pointer: int
    is_ready: bool


@dataclass(frozen=True, slots=True)
class ProxyLine(Fact):
    """The writer is the proxy thread of the communicator that is being made, or was asked for a connection.

    Or it has what it asked a proxy thread for, and the line on its channel comes next.
    """

    what: Literal["began", "asked", "answered"]


@dataclass(frozen=True, slots=True)
class ChannelLine(Fact):
    """A connection of one channel, seen from the rank that writes."""

    channel: int
    index: int  # 0: collectives, 1: send and receive
    rank: int
    peer: int  # -1: none
    direction: Direction
    via: str  # NET, P2P, SHM, COLLNET
    network: str = ""
    device: int | None = None
    proxy_rank: int | None = None


@dataclass(frozen=True, slots=True)
class QueuePairLine(Fact):
    """A queue pair that sends; the other side's number is not in the log."""

    device: int  # number among the physical devices
    port: int
    qpn: int


@dataclass(frozen=True, slots=True)
class Warned(Fact):
    """A warning."""

    sentence: str


@dataclass(frozen=True, slots=True)
class FailedCompletion(Warned):
    """An RDMA request that ended with an error."""

    status: int
    hca: str | None  # since 2.23


LINE_BYTES = 4_096  # NCCL's buffer has 1,024, and a list of NICs up to 2,048 in other builds
_SENTENCE_LETTERS = 500


def read_line(raw: bytes) -> LogLine | None:
    """Return who wrote a line and what, or None when it is no line of NCCL's.

    >>> read_line(b"vm:417:530 [0] NCCL INFO Using network Socket")
    LogLine(pid=417, tid=530, is_warning=False, text='Using network Socket')
    """
    for mark, is_warning in ((b" NCCL INFO ", False), (b" NCCL WARN ", True)):
        head, found, text = raw[:LINE_BYTES].partition(mark)
        if found:
            return _line(head.decode(errors="replace"), is_warning, text.decode(errors="replace").rstrip())
    return None


def understand(line: LogLine) -> Fact | None:
    """Return the fact that a line states, or None."""
    if line.is_warning:
        return _warning(line.text)
    for beginning, read in _READERS:
        if line.text.startswith(beginning):
            return read(line.text)
    return _comm(line.text)


def _line(head: str, is_warning: bool, text: str) -> LogLine | None:
    """`head` is `[time] host:pid:tid [device] file:line`; the first and the last stand only before warnings."""
    words = head.split(" ")
    index = next((at for at in range(len(words) - 1, 0, -1) if words[at].startswith("[")), 0)
    who = words[index - 1].rsplit(":", 2) if index else []
    if len(who) != 3 or not (_is_number(who[1]) and _is_number(who[2])):
        return None
    return LogLine(int(who[1]), int(who[2]), is_warning, text)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= 10


_RELEASE = re.compile(r"NCCL version (\d{1,3})\.(\d{1,3})\.", re.ASCII)


def _release(text: str) -> Release | None:
    found = _RELEASE.match(text)
    return Release(int(found[1]), int(found[2])) if found else None


_USING = re.compile(r"NET/([^/ :]{1,32}) ?: Using ")
# One device, or several that 2.21 to 2.23 join: ` [0]mlx5_0:1/RoCE`, ` [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}`.
_ENTRY = re.compile(r"\[\d{1,3}\](?:=\{([^}]{1,1000})\}|([^\s;\[]{1,120}))", re.ASCII)
_PORT = re.compile(r"([\w.-]{1,64}):(\d{1,3})(?::\d{0,5}){0,2}/(?:IB|RoCE)", re.ASCII)  # 2.30 adds rail and plane
_INTERFACE = re.compile(r"([\w.@-]{1,32}):([0-9a-fA-F:.]{2,45})", re.ASCII)


def _net(text: str) -> Fact | None:
    using = _USING.match(text)
    if not using:
        return _joined_or_queue_pair(text)
    # The number in brackets is not always the one that channels use; the place in the list is.
    entries = [found[1] or found[2] for found in _ENTRY.finditer(text.partition("; OOB")[0], using.end())]
    entries = [entry for entry in entries if entry]
    ports = tuple(tuple(f"{name}:{port}" for name, port in _PORT.findall(entry)) for entry in entries)
    if entries and all(ports):
        return NetDevices(using[1], ports)
    interfaces = [found for entry in entries if (found := _INTERFACE.match(entry))]
    if not entries or len(interfaces) != len(entries):
        return None
    return NetDevices(using[1], tuple((found[1],) for found in interfaces), tuple(found[2] for found in interfaces))


_JOINED = re.compile(r"NET/IB : Made virtual device \[(\d{1,4})\] name=([\w.:+-]{1,300}) ", re.ASCII)
_QUEUE_PAIR = re.compile(
    r"NET/IB ?: (?:NCCL )?(?:Merged)?Dev (\d{1,4}) (?:IbDev (\d{1,4}) )?Port (\d{1,3}) qpn (\d{1,9}) mtu", re.ASCII
)


def _joined_or_queue_pair(text: str) -> JoinedDevice | QueuePairLine | None:
    if joined := _JOINED.match(text):
        return JoinedDevice(int(joined[1]), tuple(joined[2].split("+")))
    pair = _QUEUE_PAIR.match(text)
    return QueuePairLine(int(pair[2] or pair[1]), int(pair[3]), int(pair[4])) if pair else None


_COMM = re.compile(
    r"(?:\[Rank \d{1,8}\] )?(?:\w{1,64} )?comm 0x([0-9a-f]{1,16}) rank (\d{1,8}) nranks (\d{1,8}) cudaDev \d{1,4} "
    r"(?:nvmlDev (\d{1,4}) )?busId [0-9a-f]{1,16} ([^-]{0,200})- (Init|Destroy|Abort) (START|COMPLETE)",
    re.ASCII,
)
_COMM_ID = re.compile(r"commId 0x([0-9a-f]{1,16}) ")
_PARENT = re.compile(r"parent 0x([0-9a-f]{1,16}) (?:(?:split|child)Count (\d{1,9}) )?color (\d{1,10}) key", re.ASCII)


def _comm(text: str) -> CommBegins | CommChange | None:
    found = _COMM.match(text)
    if not found:
        return None
    pointer = int(found[1], 16)
    if (found[6], found[7]) != ("Init", "START"):
        return CommChange(pointer, is_ready=found[6] == "Init")
    comm_id, parent = _COMM_ID.search(found[5]), _PARENT.search(found[5])
    return CommBegins(
        pointer,
        rank=int(found[2]),
        nranks=int(found[3]),
        gpu=int(found[4]) if found[4] else None,
        comm_id=int(comm_id[1], 16) if comm_id else None,
        parent=int(parent[1], 16) if parent else None,
        child_number=int(parent[2]) if parent and parent[2] else None,
        color=int(parent[3]) if parent else None,
    )


_CHANNEL = re.compile(
    r"Channel (\d{1,4})(?:/(\d{1,2}))? : (\d{1,8})\[[0-9a-f]{1,12}\] -> (\d{1,8})\[[0-9a-f]{1,12}\] "
    r"(?:\[(send|receive)\] )?via (NET|P2P|SHM)/(.{0,120})",
    re.ASCII,
)
_COLLNET = re.compile(r"CollNet (\d{1,4})/(\d{1,2}) : (\d{1,8}) \[(send|receive)\] via COLLNET/(.{0,120})", re.ASCII)
# `IB/1(5)/GDRDMA`: the network, the device's number, and the rank whose proxy drives it where that is another.
_NETWORK = re.compile(r"([^/]{1,40})/(\d{1,4})(?:\((\d{1,8})\))?(?:/|$)", re.ASCII)


def _channel(text: str) -> ChannelLine | None:
    found = _CHANNEL.match(text)
    if not found or (found[6] == "NET") != bool(found[5]):
        return None
    src, dst = int(found[3]), int(found[4])
    direction = _direction(found[5] or "send")  # without a word it is the sender that writes
    rank, peer = (src, dst) if direction == "send" else (dst, src)
    line = ChannelLine(int(found[1]), int(found[2] or 0), rank, peer, direction, found[6])
    return line if found[6] != "NET" else _with_network(line, found[7])


def _collnet(text: str) -> ChannelLine | None:
    found = _COLLNET.match(text)
    if not found:
        return None
    line = ChannelLine(int(found[1]), int(found[2]), int(found[3]), -1, _direction(found[4]), "COLLNET")
    return _with_network(line, found[5])


def _with_network(line: ChannelLine, text: str) -> ChannelLine | None:
    found = _NETWORK.match(text)
    proxy = int(found[3]) if found and found[3] else None
    return replace(line, network=found[1], device=int(found[2]), proxy_rank=proxy) if found else None


def _direction(word: str) -> Direction:
    return "send" if word == "send" else "recv"


_COMPLETION = re.compile(
    r"NET/IB[\w/]{0,12} ?: ?Got completion from peer \S{1,300} with "
    r"(?:error (\d{1,3})|status=(\d{1,3})|status=[\w ]{1,60}\((\d{1,3})\))(.{0,1000})",
    re.ASCII,
)
_HCA = re.compile(r" hca ([\w.-]{1,64})", re.ASCII)


def _warning(text: str) -> Warned:
    found, sentence = _COMPLETION.match(text), clean(text, _SENTENCE_LETTERS)
    if not found:
        return Warned(sentence)
    hca = _HCA.search(found[4])
    return FailedCompletion(sentence, int(found[1] or found[2] or found[3]), hca[1] if hca else None)


_READERS: tuple[tuple[str, Callable[[str], Fact | None]], ...] = (
    ("Channel ", _channel),
    ("CollNet ", _collnet),
    ("NET/", _net),
    ("New proxy ", lambda _: ProxyLine("asked")),
    ("Connected to proxy ", lambda _: ProxyLine("answered")),
    ("[Proxy Service] ", lambda _: ProxyLine("began")),
    ("NCCL version ", _release),
)
