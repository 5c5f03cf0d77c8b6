"""What one process has told in its NCCL log so far: its connections, its queue pairs, and what went wrong."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from collector.nccl_log.comms import CommBook
from collector.nccl_log.facts import (
    ChannelLine,
    CommBegins,
    CommEnds,
    CommReady,
    Fact,
    FailedCompletion,
    JoinedDevice,
    NetDevices,
    ProxyAnswered,
    ProxyAsked,
    ProxyThread,
    QueuePairLine,
    Release,
    Warned,
)
from collector.nccl_log.reading import read_line, understand
from lockstep.records import Direction

MOST_CONNECTIONS = 16_384  # of one process: all-to-all among 1,024 ranks over 8 channels, both directions
_MOST_QUEUE_PAIRS = 16_384
_MOST_DEVICES = 1_024
_MOST_TROUBLES = 256  # between two reads; a broken link makes one a connection

Key = tuple[int | None, int | None, int, int, int, int, Direction]


@dataclass(frozen=True, slots=True)
class LoggedConnection:
    """One channel's connection to one peer."""

    comm: int | None  # id, as the profiler knows it
    rank: int
    peer: int
    channel: int
    direction: Direction
    way: str  # NET, P2P, SHM, COLLNET
    network: str
    devices: tuple[str, ...]  # `eth0`, or ports as `mlx5_0:1`; empty where the log did not name them
    address: str  # of the interface, where the network is one of sockets
    proxy_rank: int | None
    gpu: int | None
    confidence: float


class LogStory:
    """Follows the log of the process with this number (in its own namespace); lines of others are passed over.

    Memory: at most 16,384 connections and as many queue pairs, about 6 MB; what comes beyond is counted.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._comms = CommBook()
        self._devices: dict[str, NetDevices] = {}  # by network
        self._joined: dict[int, tuple[str, ...]] = {}
        self._connections: dict[Key, LoggedConnection] = {}
        self._queue_pairs: dict[int, str] = {}
        self._troubles: list[FailedCompletion | Warned] = []
        self._lost = 0
        self.revision = 0  # changes whenever something was learnt
        self.uses_proxies = False  # whether another process drives the NIC of one of its connections (PXN)
        self.used: set[tuple[str, tuple[str, ...]]] = set()  # networks and their devices that connections use

    @property
    def connections(self) -> Mapping[Key, LoggedConnection]:
        return self._connections

    @property
    def queue_pairs(self) -> Mapping[int, str]:
        """The numbers of queue pairs that send, each with its port as `mlx5_0:1`."""
        return self._queue_pairs

    @property
    def networks(self) -> Mapping[str, NetDevices]:
        return self._devices

    @property
    def comms(self) -> CommBook:
        return self._comms

    @property
    def size(self) -> int:
        """How many things are remembered."""
        return len(self._connections) + len(self._queue_pairs) + len(self._comms)

    def take(self, raw: bytes) -> None:
        """Take the next line of the file, whatever it is."""
        line = read_line(raw)
        if line is None or line.pid != self._pid:
            return
        fact = understand(line)
        if fact is not None:
            self.revision += 1
            self._learn(line.tid, fact)

    def pop_troubles(self) -> list[FailedCompletion | Warned]:
        """Return what went wrong since the last time."""
        troubles, self._troubles = self._troubles, []
        return troubles

    def pop_lost(self) -> int:
        """Return how many facts found no room since the last time."""
        lost, self._lost = self._lost, 0
        return lost

    def names_of(self, device: int, network: str = "IB") -> tuple[str, ...]:
        """Return what a network's device of this number is made of; empty where the log did not say."""
        known = self._devices.get(network)
        if network.startswith("IB") and device in self._joined:
            return self._joined[device]
        return known.names[device] if known and device < len(known.names) else ()

    def _learn(self, tid: int, fact: Fact) -> None:
        match fact:
            case ChannelLine():
                self._connect(tid, fact)
            case QueuePairLine():
                self._add_queue_pair(fact)
            case NetDevices() | JoinedDevice() | Release():
                self._learn_host(fact)
            case FailedCompletion() | Warned():
                self._add_trouble(fact)
            case _:
                self._learn_comm(tid, fact)

    def _learn_comm(self, tid: int, fact: Fact) -> None:
        match fact:
            case CommBegins():
                self._comms.begin(tid, fact)
            case CommReady(pointer=pointer):
                self._comms.finish(pointer)
            case CommEnds(pointer=pointer):
                self._comms.end(pointer)
            case ProxyThread():
                self._comms.hear_proxy(tid)
            case ProxyAsked():
                self._comms.ask_proxy(tid)
            case ProxyAnswered():
                self._comms.answer_proxy(tid)

    def _learn_host(self, fact: NetDevices | JoinedDevice | Release) -> None:
        match fact:
            case Release(major=major, minor=minor):
                self._comms.release = (major, minor)
            case NetDevices() if len(self._devices) < _MOST_DEVICES:
                self._devices[fact.network] = fact
            case JoinedDevice() if len(self._joined) < _MOST_DEVICES:
                self._joined[fact.number] = self._ports_of(fact.names)

    def _ports_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the ports of devices that NCCL names without their port."""
        plain = {port.rpartition(":")[0]: port for names in self._ib_names() for port in names}
        return tuple(plain.get(name, f"{name}:1") for name in names)

    def _ib_names(self) -> tuple[tuple[str, ...], ...]:
        known = self._devices.get("IB")
        return known.names if known else ()

    def _connect(self, tid: int, line: ChannelLine) -> None:
        comm, confidence = self._comms.find(tid, line)
        pointer, comm_id = (comm.pointer, comm.id) if comm else (None, None)
        key = (pointer, comm_id, line.rank, line.peer, line.channel, line.index, line.direction)
        if key not in self._connections and len(self._connections) >= MOST_CONNECTIONS:
            self._lost += 1
            return
        devices = self.names_of(line.device, line.network) if line.device is not None else ()
        network = sys.intern(line.network)
        self._note_use(line, network, devices)
        self._connections[key] = LoggedConnection(
            comm=comm_id,
            rank=line.rank,
            peer=line.peer,
            channel=line.channel,
            direction=line.direction,
            way=sys.intern(line.way),
            network=network,
            devices=devices,
            address=self._address_of(line),
            proxy_rank=line.proxy_rank,
            gpu=comm.gpu if comm else None,
            confidence=confidence,
        )

    def _note_use(self, line: ChannelLine, network: str, devices: tuple[str, ...]) -> None:
        self.uses_proxies |= line.proxy_rank is not None
        if line.way == "NET" and len(self.used) < _MOST_DEVICES:
            self.used.add((network, devices))

    def _address_of(self, line: ChannelLine) -> str:
        known = self._devices.get(line.network)
        is_listed = known and line.device is not None and line.device < len(known.addresses)
        return known.addresses[line.device] if known and is_listed and line.device is not None else ""

    def _add_queue_pair(self, line: QueuePairLine) -> None:
        if line.qpn in self._queue_pairs or len(self._queue_pairs) < _MOST_QUEUE_PAIRS:
            names = self._ib_names()
            known = names[line.device] if line.device < len(names) else ()
            self._queue_pairs[line.qpn] = known[0] if len(known) == 1 else ""
        else:
            self._lost += 1

    def _add_trouble(self, trouble: FailedCompletion | Warned) -> None:
        if len(self._troubles) < _MOST_TROUBLES:
            self._troubles.append(trouble)
        else:
            self._lost += 1
