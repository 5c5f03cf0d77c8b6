"""Which sockets and queue pairs of a process carry NCCL's data, as far as the kernel can tell.

A rank has many sockets: bootstrap, RAS, stores of its framework, storage. Those of NCCL's data connect two ports that
the kernel chose, on a NIC that NCCL uses, and carry bulk data in one direction only: the side that sends is told from
the bytes. What a socket has received we do not ask the kernel for, so that the receiving side has no row.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from collector.connections.log_report import LogReport
from collector.connections.processes import NcclProcess, network_namespace, socket_inodes
from collector.connections.rows import BOTH, Flow, HostNics, network_transport
from collector.kernel.inet_diag import MOST_SOCKETS, TcpSocket, address_text, list_tcp_sockets
from collector.kernel.links import (
    ASK_ALL_ADDRESSES,
    ASK_ALL_LINKS,
    GET_ADDRESS,
    GET_LINK,
    decode_address,
    decode_link,
    dump,
)
from collector.kernel.netlink import NETLINK_ROUTE, NetlinkSocket
from collector.kernel.rdma import QueuePair, list_queue_pairs
from collector.sources.source import ChangeLog
from lockstep.errors import NotPresent
from lockstep.records import Direction, Transport

_log = structlog.get_logger("connections")

_INCOMPLETE = "the kernel does not show all of connections"
_MOST_NAMESPACES = 64  # looked into at a time; a host has a handful of jobs
BULK_BYTES = 65_536  # sent between two looks; keepalives and rendezvous stay far below
_CHOSEN_PORTS = range(32_768, 61_000)  # ip(7): the kernel's default for ports that nobody asked for

# What such a row is worth; a row of the log says itself how sure it is.
_SOCKET = 0.8
_SOCKET_WITHOUT_LOG = 0.5  # nothing says that NCCL uses sockets at all
_QUEUE_PAIR = 0.8
_UNDIRECTED = 0.5  # which way the data goes is not known


class BulkSockets:
    """Tells which sockets send bulk data, by what each has sent since the last look; once one did, it stays one."""

    def __init__(self) -> None:
        self._sent_bytes: dict[int, int] = {}  # by cookie
        self._bulk: set[int] = set()

    def choose(self, sockets: Iterable[TcpSocket], ports: range) -> list[TcpSocket]:
        """Return those of the sockets that carry bulk data between ports that the kernel chose."""
        candidates = [each for each in sockets if each.lport in ports and each.rport in ports]
        sent = {each.cookie: each.bytes_sent for each in candidates[:MOST_SOCKETS]}
        self._bulk &= sent.keys()
        self._bulk |= {
            cookie for cookie, count in sent.items() if count - self._sent_bytes.get(cookie, count) >= BULK_BYTES
        }
        self._sent_bytes = sent
        return [each for each in candidates if each.cookie in self._bulk]


def read_chosen_ports(root: Path) -> range:
    """Return the ports that the kernel gives to sockets that ask for none."""
    try:
        first, last = (root / "proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return _CHOSEN_PORTS


def flows_of_sockets(
    owner: tuple[int, int],
    sockets: Iterable[TcpSocket],
    addresses: Mapping[str, str],
    report: LogReport,
    nics: HostNics,
    networks: Mapping[str, Transport],
) -> list[Flow]:
    """Return the sockets of a process as flows; none where its log says that NCCL uses another network."""
    if not may_use_sockets(report, networks):
        return []
    used = {address for each in report.networks.values() for address in each.addresses}
    return [
        Flow(
            key=(*owner, "socket", each.cookie),
            direction="send",
            transport="socket",
            nic=nics.name_interface(interface) if (interface := addresses.get(each.local)) else None,
            source="inet_diag",
            confidence=_SOCKET if report.networks else _SOCKET_WITHOUT_LOG,
            local=each.local,
            remote=each.remote,
            sport=each.lport,
        )
        for each in sockets
        if not used or each.local in used
    ]


def may_use_sockets(report: LogReport, networks: Mapping[str, Transport]) -> bool:
    """Tell whether NCCL's data may go through sockets: its log says so, or there is none."""
    used = {network for network, _ in report.used}
    kinds = {network_transport(name, networks) for name in used or report.networks}
    return not kinds or "socket" in kinds


def flows_of_queue_pairs(
    owner: tuple[int, int], pairs: Iterable[QueuePair], report: LogReport, nics: HostNics
) -> list[Flow]:
    """Return the queue pairs of a process as flows, those of the kernel and those that only the log has."""
    # A queue pair without an end, or one that is its own (NCCL flushes GPU memory through it), carries no data.
    seen = {pair.lqpn: pair for pair in pairs if pair.state == "RTS" and pair.rqpn not in (None, pair.lqpn)}
    flows = [flow for pair in seen.values() for flow in _flows_of_pair(owner, pair, report, nics)]
    flows += [
        _pair_flow(owner, "send", nics.name_port(port), qpn, None, "nccl_log", _QUEUE_PAIR)
        for qpn, port in report.queue_pairs.items()
        if qpn not in seen and port
    ]
    return flows


def _flows_of_pair(owner: tuple[int, int], pair: QueuePair, report: LogReport, nics: HostNics) -> list[Flow]:
    nic = nics.name_port(f"{pair.device}:{pair.port}")
    if report.queue_pairs:  # the log names all that send
        direction: Direction = "send" if pair.lqpn in report.queue_pairs else "recv"
        return [_pair_flow(owner, direction, nic, pair.lqpn, pair.rqpn, "rdma", _QUEUE_PAIR)]
    return [
        _pair_flow(owner, direction, nic, pair.lqpn, pair.rqpn, "rdma", _UNDIRECTED, may_join=False)
        for direction in BOTH
    ]


def _pair_flow(
    owner: tuple[int, int],
    direction: Direction,
    nic: str,
    lqpn: int,
    rqpn: int | None,
    source: str,
    confidence: float,
    may_join: bool = True,
) -> Flow:
    key = (*owner, "qp", nic, lqpn, direction)
    return Flow(key, direction, "ib", nic, source, confidence, lqpn=lqpn, rqpn=rqpn, may_join=may_join)


def list_addresses(namespace_fd: int | None = None) -> dict[str, str]:
    """Return the interface of each address; NotPresent where the kernel does not say.

    `namespace_fd` is an open /proc/PID/ns/net; without it these are the addresses of our own namespace.
    """
    try:
        with closing(NetlinkSocket(NETLINK_ROUTE, namespace_fd=namespace_fd)) as route:
            names = {link.index: link.name for link in dump(route, GET_LINK, ASK_ALL_LINKS, decode_link)}
            found = list(dump(route, GET_ADDRESS, ASK_ALL_ADDRESSES, decode_address))
    except OSError as error:
        raise NotPresent(f"the kernel does not list addresses: {error.strerror or error}") from None
    return {address_text(address): names[index] for address, index in found if index in names}


@dataclass(frozen=True)
class Kernel:
    """The questions that are asked; each raises NotPresent where the kernel has no answer."""

    sockets: Callable[[int | None], Iterable[TcpSocket]] = list_tcp_sockets
    addresses: Callable[[int | None], Mapping[str, str]] = list_addresses
    pairs: Callable[[], Iterable[QueuePair]] = list_queue_pairs


@dataclass(frozen=True)
class OpenSockets:
    """The sockets of a process that carry bulk data, and the interface of each address where it lives."""

    bulk: list[TcpSocket] = field(default_factory=list)
    addresses: Mapping[str, str] = field(default_factory=dict)


class KernelView:
    """Asks the kernel, and remembers of each namespace what its sockets had sent."""

    def __init__(self, root: Path, kernel: Kernel) -> None:
        self._root, self._proc, self._kernel = root, root / "proc", kernel
        self._bulk: dict[str, BulkSockets] = {}  # by namespace
        self._problems = ChangeLog(_log, "info")

    def sockets_of(self, processes: Iterable[NcclProcess]) -> dict[int, OpenSockets]:
        homes: dict[str, list[NcclProcess]] = defaultdict(list)
        for process in processes:
            homes[network_namespace(self._proc, process.pid)].append(process)
        self._bulk = {home: self._bulk.get(home, BulkSockets()) for home in list(homes)[:_MOST_NAMESPACES]}
        return {pid: found for home in self._bulk for pid, found in self._read_namespace(home, homes[home]).items()}

    def pairs_by_pid(self) -> dict[int, list[QueuePair]]:
        by_pid: dict[int, list[QueuePair]] = defaultdict(list)
        try:
            for pair in self._kernel.pairs():
                if pair.pid is not None:
                    by_pid[pair.pid].append(pair)
            self._problems.note(_INCOMPLETE, "", "reason", what="queue pairs")
        except NotPresent as absence:
            self._problems.note(_INCOMPLETE, str(absence), "reason", what="queue pairs")
        return by_pid

    def _read_namespace(self, home: str, processes: list[NcclProcess]) -> dict[int, OpenSockets]:
        descriptor = None
        try:
            if home != network_namespace(self._proc, "self"):
                descriptor = os.open(self._proc / str(processes[0].pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
            sockets, addresses = self._kernel.sockets(descriptor), self._kernel.addresses(descriptor)
            self._problems.note(_INCOMPLETE, "", "reason", what="sockets", namespace=home)
        except (NotPresent, OSError) as absence:  # also when the process has just gone
            self._problems.note(_INCOMPLETE, str(absence), "reason", what="sockets", namespace=home)
            return {}
        finally:
            if descriptor is not None:
                os.close(descriptor)
        bulk = self._bulk[home].choose(sockets, read_chosen_ports(self._root))
        return {pid: OpenSockets(mine, addresses) for pid, mine in self._share_out(bulk, processes).items()}

    def _share_out(self, sockets: list[TcpSocket], processes: list[NcclProcess]) -> dict[int, list[TcpSocket]]:
        """Return whose each socket is: a worker has inherited it from the rank that began before it."""
        shares: dict[int, list[TcpSocket]] = {}
        left = {each.inode: each for each in sockets}
        for process in sorted(processes, key=lambda each: each.start_ticks):
            mine = socket_inodes(self._proc, process.pid) & left.keys() if left else set()
            shares[process.pid] = [left.pop(inode) for inode in sorted(mine)]
        return shares
