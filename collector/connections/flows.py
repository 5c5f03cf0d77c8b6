"""Which sockets and queue pairs of a process carry NCCL's data, as far as the kernel can tell.

A rank has many sockets: bootstrap, RAS, stores of its framework, storage. Those of NCCL's data connect two ports that
the kernel chose, on a NIC that NCCL uses, and carry bulk data in one direction only: the side that sends is told from
the bytes. What a socket has received we do not ask the kernel for, so that the receiving side has no row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collector.connections.nics import HostNics
from collector.connections.rows import Flow, network_transport
from collector.inet_diag import MOST_SOCKETS, TcpSocket
from collector.nccl_log.story import LogStory
from collector.rdma_ports.netlink import QueuePair
from lockstep.records import Direction, Transport

BULK_BYTES = 65_536  # sent between two looks; keepalives and rendezvous stay far below
_CHOSEN_PORTS = (32_768, 60_999)  # ip(7): the kernel's default for ports that nobody asked for

# What such a row is worth; a row of the log says itself how sure it is.
_SOCKET = 0.8
_SOCKET_WITHOUT_LOG = 0.5  # nothing says that NCCL uses sockets at all
_QUEUE_PAIR = 0.8
_UNDIRECTED = 0.5  # which way the data goes is not known


@dataclass
class BulkSockets:
    """Tells which sockets send bulk data, by what each has sent since the last look; once one did, it stays one."""

    _sent_bytes: dict[int, int] = field(default_factory=dict)  # by cookie
    _bulk: set[int] = field(default_factory=set)

    def choose(self, sockets: Iterable[TcpSocket], ports: tuple[int, int]) -> list[TcpSocket]:
        """Return those of the sockets that carry bulk data between ports that the kernel chose."""
        candidates = [each for each in sockets if _is_chosen(each.lport, ports) and _is_chosen(each.rport, ports)]
        sent = {each.cookie: each.bytes_sent or 0 for each in candidates[:MOST_SOCKETS]}
        self._bulk &= sent.keys()
        self._bulk |= {
            cookie for cookie, count in sent.items() if count - self._sent_bytes.get(cookie, count) >= BULK_BYTES
        }
        self._sent_bytes = sent
        return [each for each in candidates if each.cookie in self._bulk]


def read_chosen_ports(root: Path) -> tuple[int, int]:
    """Return the first and last port that the kernel gives to sockets that ask for none."""
    try:
        first, last = (root / "proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return _CHOSEN_PORTS


def flows_of_sockets(
    owner: tuple[int, int],
    sockets: Iterable[TcpSocket],
    addresses: Mapping[str, str],
    story: LogStory,
    nics: HostNics,
    networks: Mapping[str, Transport],
) -> list[Flow]:
    """Return the sockets of a process as flows; none where its log says that NCCL uses another network."""
    if not may_use_sockets(story, networks):
        return []
    used = {address for each in story.networks.values() for address in each.addresses}
    return [
        Flow(
            key=(*owner, "socket", each.cookie),
            direction="send",
            transport="socket",
            nic=nics.name_interface(interface) if (interface := addresses.get(each.local)) else None,
            source="inet_diag",
            confidence=_SOCKET if story.networks else _SOCKET_WITHOUT_LOG,
            local=each.local,
            remote=each.remote,
            sport=each.lport,
        )
        for each in sockets
        if not used or each.local in used
    ]


def may_use_sockets(story: LogStory, networks: Mapping[str, Transport]) -> bool:
    """Tell whether NCCL's data may go through sockets: its log says so, or there is none."""
    used = {network for network, _ in story.used}
    kinds = {network_transport(name, networks) for name in used or story.networks}
    return not kinds or "socket" in kinds


def flows_of_queue_pairs(
    owner: tuple[int, int], pairs: Iterable[QueuePair], story: LogStory, nics: HostNics
) -> list[Flow]:
    """Return the queue pairs of a process as flows, those of the kernel and those that only the log has."""
    seen = {pair.lqpn: pair for pair in pairs if _carries_data(pair)}
    flows = [flow for pair in seen.values() for flow in _flows_of_pair(owner, pair, story, nics)]
    flows += [
        _pair_flow(owner, "send", nics.name_port(port), qpn, None, "nccl_log", _QUEUE_PAIR)
        for qpn, port in story.queue_pairs.items()
        if qpn not in seen and port
    ]
    return flows


def _carries_data(pair: QueuePair) -> bool:
    """A queue pair without an end, or one that is its own (NCCL flushes GPU memory through it), carries none."""
    return pair.state == "RTS" and pair.rqpn is not None and pair.rqpn != pair.lqpn


def _flows_of_pair(owner: tuple[int, int], pair: QueuePair, story: LogStory, nics: HostNics) -> list[Flow]:
    nic = nics.name_port(f"{pair.device}:{pair.port}")
    if pair.lqpn in story.queue_pairs:
        return [_pair_flow(owner, "send", nic, pair.lqpn, pair.rqpn, "rdma", _QUEUE_PAIR)]
    if story.queue_pairs:  # the log names all that send
        return [_pair_flow(owner, "recv", nic, pair.lqpn, pair.rqpn, "rdma", _QUEUE_PAIR)]
    both: tuple[Direction, ...] = ("send", "recv")
    return [_pair_flow(owner, way, nic, pair.lqpn, pair.rqpn, "rdma", _UNDIRECTED, may_join=False) for way in both]


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


def _is_chosen(port: int, ports: tuple[int, int]) -> bool:
    return ports[0] <= port <= ports[1]
