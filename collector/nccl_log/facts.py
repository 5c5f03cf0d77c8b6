"""What NCCL's log can tell, one record per kind of line; `collector.nccl_log.reading` reads them."""

from dataclasses import dataclass

from lockstep.records import Direction


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line with who wrote it; `text` is what follows the level."""

    pid: int  # in its own namespace
    tid: int
    is_warning: bool
    text: str


@dataclass(frozen=True, slots=True)
class Release:
    """Which NCCL writes."""

    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class NetDevices:
    """The network devices by NCCL's number: an interface, or the ports of an RDMA device as `mlx5_0:1`."""

    network: str  # IB, Socket
    names: tuple[tuple[str, ...], ...]  # several where NCCL has joined them
    addresses: tuple[str, ...] = ()  # of interfaces


@dataclass(frozen=True, slots=True)
class JoinedDevice:
    """Several devices that NCCL uses as one."""

    number: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommBegins:
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
class CommReady:
    pointer: int


@dataclass(frozen=True, slots=True)
class CommEnds:
    pointer: int


@dataclass(frozen=True, slots=True)
class ProxyThread:
    """The writer of this line serves the connections of the communicator that is being made."""


@dataclass(frozen=True, slots=True)
class ProxyAsked:
    """The writer, a proxy thread, was asked for a connection."""


@dataclass(frozen=True, slots=True)
class ProxyAnswered:
    """The writer has what it asked a proxy thread for; the line on its channel comes next."""


@dataclass(frozen=True, slots=True)
class ChannelLine:
    """A connection of one channel, seen from the rank that writes."""

    channel: int
    index: int  # 0: collectives, 1: send and receive
    rank: int
    peer: int  # -1: none
    direction: Direction
    way: str  # NET, P2P, SHM, COLLNET
    network: str = ""
    device: int | None = None
    proxy_rank: int | None = None


@dataclass(frozen=True, slots=True)
class QueuePairLine:
    """A queue pair that sends; the other side's number is not in the log."""

    device: int  # number among the physical devices
    port: int
    qpn: int


@dataclass(frozen=True, slots=True)
class FailedCompletion:
    """An RDMA request that ended with an error."""

    peer: str
    status: int
    vendor_error: int | None
    hca: str | None  # since 2.23
    sentence: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Any other warning."""

    sentence: str


Fact = (
    Release
    | NetDevices
    | JoinedDevice
    | CommBegins
    | CommReady
    | CommEnds
    | ProxyThread
    | ProxyAsked
    | ProxyAnswered
    | ChannelLine
    | QueuePairLine
    | FailedCompletion
    | Warned
)
