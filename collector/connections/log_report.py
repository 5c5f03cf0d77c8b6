"""What one process has told in its NCCL log so far: its connections, its queue pairs, and what went wrong."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from collector.connections.log_lines import (
    ChannelLine,
    CommBegins,
    CommChange,
    Fact,
    JoinedDevice,
    NetDevices,
    ProxyLine,
    QueuePairLine,
    Release,
    Warned,
    read_line,
    understand,
)
from lockstep.records import Direction

_FIRST_RELEASE = (2, 26)  # in which the log has the id that the profiler gets
MOST_COMMS = 4_096  # of one process at a time
_MOST_THREADS = 4_096
_WORD = (1 << 64) - 1

SURE, LIKELY, UNKNOWN = 0.95, 0.9, 0.7  # how well a line's communicator, and with it the row, is known


@dataclass(slots=True)
class LoggedComm:
    """A communicator of the process that writes the log."""

    pointer: int
    rank: int
    nranks: int
    gpu: int | None
    id: int | None
    maker_tid: int | None  # the thread that is making it; None once it is made
    proxy_tid: int | None

    def fits(self, line: ChannelLine) -> bool:
        return self.rank == line.rank and line.peer < self.nranks


class CommBook:
    """The communicators of one process, as its log tells of them line by line."""

    def __init__(self) -> None:
        self.release: tuple[int, int] | None = None
        self._comms: dict[int, LoggedComm] = {}  # by address
        self._asked_tid: int | None = None  # the proxy thread that was asked last
        self._answers: dict[int, int] = {}  # thread -> the proxy thread that has just answered it

    def __len__(self) -> int:
        return len(self._comms)

    @property
    def comms(self) -> Sequence[LoggedComm]:
        return list(self._comms.values())

    def begin(self, tid: int, fact: CommBegins) -> None:
        """Take a communicator that is being made; one of the same address was freed before."""
        if len(self._comms) >= MOST_COMMS and fact.pointer not in self._comms:
            del self._comms[next(iter(self._comms))]
        parent = self._comms.get(fact.parent) if fact.parent is not None else None
        # A child that shares its parent's resources has no proxy thread of its own and says nothing of one.
        proxy_tid = parent.proxy_tid if parent else None
        self._comms[fact.pointer] = LoggedComm(
            fact.pointer, fact.rank, fact.nranks, fact.gpu, self._id_of(fact, parent), tid, proxy_tid
        )

    def change(self, fact: CommChange) -> None:
        if not fact.is_ready:
            self._comms.pop(fact.pointer, None)
        elif fact.pointer in self._comms:
            self._comms[fact.pointer].maker_tid = None

    def take_proxy(self, tid: int, fact: ProxyLine) -> None:
        """Take what a thread says of proxies; one that begins is of the communicator that alone is being made."""
        if fact.what == "asked":
            self._asked_tid = tid
        elif fact.what == "began":
            being_made = [comm for comm in self._comms.values() if comm.maker_tid is not None]
            if len(being_made) == 1:
                being_made[0].proxy_tid = tid
        elif self._asked_tid is not None and len(self._answers) < _MOST_THREADS:
            self._answers[tid] = self._asked_tid

    def find(self, tid: int, line: ChannelLine) -> tuple[LoggedComm | None, float]:
        """Return whose channel this is, None where several could be, and how sure the row is."""
        proxy_tid = self._answers.pop(tid, None)
        fitting = [comm for comm in self._comms.values() if comm.fits(line)]
        for sure in (
            [comm for comm in fitting if comm.maker_tid == tid],
            [comm for comm in fitting if proxy_tid is not None and comm.proxy_tid == proxy_tid],
        ):
            if len(sure) == 1:
                return sure[0], SURE
        return (fitting[0], LIKELY) if len(fitting) == 1 else (None, UNKNOWN)

    def _id_of(self, fact: CommBegins, parent: LoggedComm | None) -> int | None:
        if self.release is None or self.release < _FIRST_RELEASE:
            return None
        if fact.parent is None:
            return fact.comm_id
        if parent is None or parent.id is None or fact.child_number is None or fact.color is None:
            return None
        return child_id(parent.id, fact.child_number, fact.color)


def child_id(parent_id: int, child_number: int, color: int) -> int:
    """Return the id of a communicator that was split off another.

    >>> hex(child_id(0x53025406BC896DD3, 1, 2130503744))
    '0xe9bf466c3e5eea0d'
    """
    low, high = 1, 1
    for value, size in ((parent_id, 8), (child_number, 4), (color, 4)):
        low = (low ^ size) + high & _WORD
        high ^= low
        low = (low ^ low >> 31) * 0x9DE62BBC8CEF3CE3 & _WORD
        high = (high ^ high >> 32) * 0x485CD6311B599E79 & _WORD
        low = low + value & _WORD
    mixed = (low ^ low >> 31) * 0xBAC3BD562846DE6B + high & _WORD
    return (mixed ^ mixed >> 32) * 0x995A187A14E7B445 & _WORD


MOST_CONNECTIONS = 16_384  # of one process: all-to-all among 1,024 ranks over 8 channels, both directions
_MOST_QUEUE_PAIRS = 16_384
_MOST_DEVICES = 1_024
_MOST_TROUBLES = 256  # between two reads; a broken link makes one a connection

_NOTHING_KNOWN = NetDevices("", ())

Key = tuple[int | None, int | None, int, int, int, int, Direction]


@dataclass(frozen=True, slots=True)
class LoggedConnection:
    """One channel's connection to one peer."""

    comm: int | None  # id, as the profiler knows it
    rank: int
    peer: int
    channel: int
    direction: Direction
    via: str  # NET, P2P, SHM, COLLNET
    network: str
    devices: tuple[str, ...]  # `eth0`, or ports as `mlx5_0:1`; empty where the log did not name them
    address: str  # of the interface, where the network is one of sockets
    proxy_rank: int | None
    confidence: float


class LogReport:
    """Follows the log of the process with this number (in its own namespace); lines of others are passed over.

    Memory: at most 16,384 connections and as many queue pairs, about 6 MB; what comes beyond is counted.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.comms = CommBook()
        self.networks: dict[str, NetDevices] = {}  # by network
        self._joined: dict[int, tuple[str, ...]] = {}
        self.connections: dict[Key, LoggedConnection] = {}
        self.queue_pairs: dict[int, str] = {}
        self._troubles: list[Warned] = []
        self._lost = 0
        self.revision = 0  # changes whenever something was learnt
        self.uses_proxies = False  # whether another process drives the NIC of one of its connections (PXN)
        self.used: set[tuple[str, tuple[str, ...]]] = set()  # networks and their devices that connections use

    @property
    def size(self) -> int:
        return len(self.connections) + len(self.queue_pairs) + len(self.comms)

    def take(self, raw: bytes) -> None:
        line = read_line(raw)
        if line is None or line.pid != self._pid:
            return
        fact = understand(line)
        if fact is not None:
            self.revision += 1
            self._learn(line.tid, fact)

    def pop_troubles(self) -> list[Warned]:
        troubles, self._troubles = self._troubles, []
        return troubles

    def pop_lost(self) -> int:
        """Return how many facts found no room since the last time."""
        lost, self._lost = self._lost, 0
        return lost

    def _learn(self, tid: int, fact: Fact) -> None:
        match fact:
            case ChannelLine():
                self._connect(tid, fact)
            case QueuePairLine():
                self._add_queue_pair(fact)
            case Warned() if len(self._troubles) < _MOST_TROUBLES:
                self._troubles.append(fact)
            case Warned():
                self._lost += 1
            case CommBegins():
                self.comms.begin(tid, fact)
            case CommChange():
                self.comms.change(fact)
            case ProxyLine():
                self.comms.take_proxy(tid, fact)
            case _:
                self._learn_host(fact)

    def _learn_host(self, fact: Fact) -> None:
        match fact:
            case Release(major=major, minor=minor):
                self.comms.release = (major, minor)
            case NetDevices() if len(self.networks) < _MOST_DEVICES:
                self.networks[fact.network] = fact
            case JoinedDevice() if len(self._joined) < _MOST_DEVICES:
                self._joined[fact.number] = self._ports_of(fact.names)

    def _ports_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the ports of devices that NCCL names without their port."""
        known = self.networks.get("IB", _NOTHING_KNOWN)
        plain = {port.rpartition(":")[0]: port for names in known.names for port in names}
        return tuple(plain.get(name, f"{name}:1") for name in names)

    def _connect(self, tid: int, line: ChannelLine) -> None:
        comm, confidence = self.comms.find(tid, line)
        pointer, comm_id = (comm.pointer, comm.id) if comm else (None, None)
        key = (pointer, comm_id, line.rank, line.peer, line.channel, line.index, line.direction)
        if key not in self.connections and len(self.connections) >= MOST_CONNECTIONS:
            self._lost += 1
            return
        devices, address = self._names_of(line.network, line.device)
        network = sys.intern(line.network)
        self.uses_proxies |= line.proxy_rank is not None
        if line.via == "NET" and len(self.used) < _MOST_DEVICES:
            self.used.add((network, devices))
        self.connections[key] = LoggedConnection(
            comm=comm_id,
            rank=line.rank,
            peer=line.peer,
            channel=line.channel,
            direction=line.direction,
            via=sys.intern(line.via),
            network=network,
            devices=devices,
            address=address,
            proxy_rank=line.proxy_rank,
            confidence=confidence,
        )

    def _names_of(self, network: str, device: int | None) -> tuple[tuple[str, ...], str]:
        """Return what a network's device of this number is made of, and its address; nothing the log did not say."""
        known = self.networks.get(network, _NOTHING_KNOWN)
        names, addresses = dict(enumerate(known.names)), dict(enumerate(known.addresses))
        if network.startswith("IB"):
            names |= self._joined
        return (names.get(device, ()), addresses.get(device, "")) if device is not None else ((), "")

    def _add_queue_pair(self, line: QueuePairLine) -> None:
        if line.qpn in self.queue_pairs or len(self.queue_pairs) < _MOST_QUEUE_PAIRS:
            known = dict(enumerate(self.networks.get("IB", _NOTHING_KNOWN).names)).get(line.device, ())
            self.queue_pairs[line.qpn] = known[0] if len(known) == 1 else ""
        else:
            self._lost += 1
