"""Rows of `connections` out of everything that is known of one process: one per connection, the best source wins.

A row of the log knows communicator, rank, peer, channel and NIC, but neither ports nor the other queue pair; sockets
and queue pairs know these and not whose they are. Where all connections of the log that a socket or queue pair could
be have something in common, it has that too; where there is one of each, they are the same and make one row. NCCL,
the kernel and the topology each name a NIC in their own way; the rows have the topology's name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from collector.connections.log_files import DeviceUse
from collector.connections.log_report import LoggedConnection
from collector.kernel.rdma import find_ports
from lockstep.records import Connection, Direction, Transport
from lockstep.topology import Node, Topology

_MOST_INTERFACES = 4_096


@dataclass(frozen=True)
class HostNics:
    """The NICs of this host at one moment."""

    ports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # RDMA port -> its network interfaces
    interfaces: tuple[str, ...] = ()  # network interfaces that are hardware
    node: Node | None = None  # this host in the topology

    def name_port(self, port: str) -> str:
        """Return the row's name of an RDMA port that NCCL calls `mlx5_0:1`.

        >>> HostNics({"mlx5_0": ("eth0",)}).name_port("mlx5_0:1")
        'mlx5_0'
        """
        nic = port if port in self.ports else port.rpartition(":")[0] or port
        return self._as_in_topology(nic, self.ports.get(nic, ()))

    def name_interface(self, interface: str) -> str:
        """Return the row's name of a network interface."""
        return self._as_in_topology(
            interface, [port for port, interfaces in self.ports.items() if interface in interfaces]
        )

    def name_devices(self, devices: Iterable[str], transport: Transport) -> str | None:
        """Return the name of what NCCL uses as one device: its parts with commas between them."""
        names = map(self.name_interface if transport == "socket" else self.name_port, devices)
        return ",".join(dict.fromkeys(names)) or None

    def transport_of(self, nic: str) -> Transport:
        """Return what NCCL uses a NIC with, if nobody tells it otherwise."""
        return "ib" if nic in self.ports or any(nic in names for names in self.ports.values()) else "socket"

    def only_nic(self) -> str | None:
        """Return the NIC of a host that has one; the topology knows better than the kernel which ones count."""
        names = [nic.id for nic in self.node.nics] if self.node else list(self.ports) or list(self.interfaces)
        return names[0] if len(names) == 1 else None

    def nic_of_gpu(self, gpu: int | None) -> str | None:
        """Return the NIC that the topology gives a GPU, if that is one."""
        gpus = self.node.gpus if self.node else ()
        found = next((each.nics for each in gpus if each.index == gpu), ())
        return found[0] if len(found) == 1 else None

    def _as_in_topology(self, nic: str, other_names: Iterable[str]) -> str:
        known = {each.id for each in self.node.nics} if self.node else set()
        return nic if nic in known else next((name for name in other_names if name in known), nic)


def read_nics(root: Path, host: str, topology: Topology | None) -> HostNics:
    """Return the NICs as the kernel shows them, and this host's entry in the topology."""
    ports = {
        nic: tuple(sorted(path.name for path in (folder.parent.parent / "device/net").glob("*")))
        for nic, folder in find_ports(root / "sys/class/infiniband").items()
    }
    found = sorted((root / "sys/class/net").glob("*"))[:_MOST_INTERFACES]
    interfaces = tuple(path.name for path in found if (path / "device").exists())  # what is only software has none
    node = next((node for node in topology.hosts if node.id == host), None) if topology else None
    return HostNics(ports, interfaces, node)


Key = tuple[object, ...]  # begins with pid and start of the process
NicDirection = tuple[Direction, str]  # direction and NIC

Worth = tuple[float, int]

_KNOWABLE = ("comm", "rank", "peer", "channel", "proxy_rank", "nic", "remote", "sport", "lqpn", "rqpn")
_DIRECT: dict[str, Transport] = {"P2P": "p2p", "SHM": "shm", "COLLNET": "collnet"}
_SHARED_FIELDS = ("comm", "rank", "peer", "channel")


@dataclass(frozen=True)
class Owner:
    """The process whose connections these are."""

    key: tuple[int, int]  # pid and start
    host: str
    job: str
    attempt: int
    seen_ns: int


@dataclass(frozen=True, slots=True)
class Flow:
    """A socket or a queue pair that carries data; `may_join` says whether the log must have told of it."""

    key: Key
    direction: Direction
    transport: Transport
    nic: str | None
    source: str
    confidence: float
    local: str = ""
    remote: str = ""
    sport: int | None = None
    lqpn: int | None = None
    rqpn: int | None = None
    may_join: bool = True


@dataclass(frozen=True)
class LogRows:
    """Rows of the log, and which of them share a NIC and a direction."""

    rows: Mapping[Key, Connection]
    by_nic: Mapping[NicDirection, Sequence[Key]]  # a key once for each of its connections
    unknown_networks: frozenset[str]  # that no row could be made of


def rows_of_log(
    owner: Owner, connections: Iterable[LoggedConnection], nics: HostNics, networks: Mapping[str, Transport]
) -> LogRows:
    rows: dict[Key, Connection] = {}
    by_nic: dict[NicDirection, list[Key]] = defaultdict(list)
    unknown: set[str] = set()
    names: dict[tuple[Transport, tuple[str, ...]], str | None] = {}
    for logged in connections:
        transport = _DIRECT.get(logged.via) or network_transport(logged.network, networks)
        if transport is None:
            unknown.add(logged.network)
            continue
        used = (transport, logged.devices)
        if used not in names:
            names[used] = nics.name_devices(logged.devices, transport)
        row = _row_of_log(owner, logged, transport, names[used])
        key = (*owner.key, "log", row.comm, row.rank, row.peer, row.channel, row.direction, row.nic)
        rows[key] = row
        if logged.via == "NET" and row.proxy_rank is None:  # a proxy of another process has the socket
            for nic in (row.nic or "").split(","):
                by_nic[row.direction, nic].append(key)
    return LogRows(rows, by_nic, frozenset(unknown))


def network_transport(network: str, networks: Mapping[str, Transport]) -> Transport | None:
    """Return the transport of the longest name in `networks` with which this one begins, whatever its case."""
    fitting = [name for name in networks if network.lower().startswith(name.lower())]
    return networks[max(fitting, key=len)] if fitting else None


def _row_of_log(owner: Owner, logged: LoggedConnection, transport: Transport, nic: str | None) -> Connection:
    is_incomplete = logged.via == "NET" and nic is None
    confidence = logged.confidence / 2 if is_incomplete else logged.confidence
    flow = Flow((), logged.direction, transport, nic, "nccl_log", confidence, local=logged.address)
    row = _row_of_flow(owner, flow, {name: getattr(logged, name) for name in _SHARED_FIELDS})
    return replace(row, proxy_rank=logged.proxy_rank)


def join_flows(owner: Owner, log: LogRows, flows: Iterable[Flow]) -> dict[Key, Connection]:
    """Return the rows of the log with what the flows add, and a row for each flow that is not surely one of them."""
    rows = dict(log.rows)
    flows_by_nic: dict[NicDirection, list[Flow]] = defaultdict(list)
    for flow in flows:
        flows_by_nic[flow.direction, flow.nic or ""].append(flow)
    for nic_direction, here in flows_by_nic.items():
        keys = log.by_nic.get(nic_direction, ())
        if len(keys) == len(here) == 1 and here[0].may_join:
            rows[keys[0]] = _filled(rows[keys[0]], here[0])
            continue
        logged = [log.rows[key] for key in keys]
        values = {name: {getattr(row, name) for row in logged} for name in _SHARED_FIELDS}
        common = {name: next(iter(each)) for name, each in values.items() if len(each) == 1}
        rows.update({flow.key: _row_of_flow(owner, flow, common if flow.may_join else {}) for flow in here})
    return rows


def _filled(row: Connection, flow: Flow) -> Connection:
    return replace(
        row,
        local=flow.local or row.local,
        remote=flow.remote or row.remote,
        sport=flow.sport,
        lqpn=flow.lqpn,
        rqpn=flow.rqpn,
    )


def _row_of_flow(owner: Owner, flow: Flow, common: Mapping[str, int | None]) -> Connection:
    return Connection(
        host=owner.host,
        job=owner.job,
        attempt=owner.attempt,
        comm=common.get("comm"),
        rank=common.get("rank"),
        peer=common.get("peer"),
        channel=common.get("channel"),
        direction=flow.direction,
        transport=flow.transport,
        proxy_rank=None,
        nic=flow.nic,
        local=flow.local,
        remote=flow.remote,
        sport=flow.sport,
        lqpn=flow.lqpn,
        rqpn=flow.rqpn,
        source=flow.source,
        confidence=flow.confidence,
        seen_ns=owner.seen_ns,
    )


class SentRows:
    """Remembers what was sent, so that a connection is told again only when more is known of it.

    Memory: a key for each connection of the processes that live, 65,536 at most, about 20 MB; what is new beyond that
    is not told, and counted.
    """

    MOST_ROWS = 65_536

    def __init__(self) -> None:
        self._sent: dict[Key, Worth] = {}
        self._refused: dict[Key, int] = {}  # rows without room at the last choice, by process
        self._lost = 0
        self.has_more = False  # whether rows were left for the next choice

    def forget_all_but(self, processes: Iterable[tuple[int, int]]) -> None:
        alive = set(processes)
        if self._refused.keys() - alive:
            self._sent = {key: worth for key, worth in self._sent.items() if key[:2] in alive}
            self._refused = {key: count for key, count in self._refused.items() if key in alive}

    def choose(self, rows: Mapping[Key, Connection], limit: int) -> list[Connection]:
        """Return the rows of one process to send now, `limit` at most; the others come back the next time."""
        worth = {key: worth_of(row) for key, row in rows.items()}
        changed = [key for key in rows if key not in self._sent or is_better(worth[key], self._sent[key])]
        room = self.MOST_ROWS - len(self._sent)
        fitting = [key for key in changed if key in self._sent or (room := room - 1) >= 0]
        chosen = fitting[:limit]
        self.has_more = len(chosen) < len(changed)
        self._sent.update({key: worth[key] for key in chosen})
        refused = len(changed) - len(fitting)
        for process in {key[:2] for key in rows}:  # rows without room come again each time, and count once
            self._lost += max(refused - self._refused.get(process, 0), 0)
            self._refused[process] = refused
        return [rows[key] for key in chosen]

    def pop_lost(self) -> int:
        """Return how many connections found no room since the last time."""
        lost, self._lost = self._lost, 0
        return lost


def worth_of(row: Connection) -> Worth:
    """Return the confidence of a row, and which of its fields are known, as bits."""
    known = sum(1 << bit for bit, name in enumerate(_KNOWABLE) if getattr(row, name) not in (None, ""))
    return row.confidence, known


def is_better(worth: Worth, sent: Worth) -> bool:
    """Tell whether a row says something that the sent one did not, or says it with more confidence."""
    return worth[0] > sent[0] or (worth[0] == sent[0] and bool(worth[1] & ~sent[1]))


_GRAPH = 0.6  # the communicator that was made last has written it; others may differ
_TOPOLOGY = 0.5  # what was meant to be
_ONLY_NIC = 0.5  # that NCCL uses it, and not only what is inside of the host, is not known

BOTH: tuple[Direction, ...] = ("send", "recv")


def rows_of_graph(
    owner: Owner, uses: Iterable[DeviceUse], names: Mapping[int, str], nics: HostNics, transport: Transport | None
) -> dict[Key, Connection]:
    """Return a row for each channel and direction whose device has a name; `transport` is the log's, if any."""
    rows: dict[Key, Connection] = {}
    for use in uses:
        name = names.get(use.device)
        if name is None:
            continue
        nic = nics.name_interface(name) if name not in nics.ports else nics.name_port(name)
        key = (*owner.key, "graph", use.channel, use.direction)
        flow = Flow(key, use.direction, transport or nics.transport_of(nic), nic, "graph", _GRAPH)
        rows[key] = _row_of_flow(owner, flow, {"channel": use.channel})
    return rows


def rows_of_nic(
    owner: Owner, gpus: Iterable[int | None], nics: HostNics, transport: Transport | None
) -> dict[Key, Connection]:
    """Return which NIC the topology gives to the GPUs of a process, else the only one that the host has."""
    found = {nics.nic_of_gpu(gpu) for gpu in gpus} - {None}
    nic = found.pop() if len(found) == 1 else None
    source, confidence = ("topology", _TOPOLOGY) if nic else ("only_nic", _ONLY_NIC)
    nic = nic or nics.only_nic()
    if nic is None:
        return {}
    flows = [
        Flow((*owner.key, "nic", direction), direction, transport or nics.transport_of(nic), nic, source, confidence)
        for direction in BOTH
    ]
    return {flow.key: _row_of_flow(owner, flow, {}) for flow in flows}
