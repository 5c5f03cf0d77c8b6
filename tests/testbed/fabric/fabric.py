"""A running fabric: start processes on its hosts, read its ports, ask which way a flow takes, take it down."""

import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from collector.kernel.netlink import NETLINK_ROUTE, NetlinkSocket, attributes_of, pack_attribute, to_number
from lockstep.errors import BadInput, LockstepError
from lockstep.topology import Topology
from tests.testbed.fabric import ownership
from tests.testbed.fabric.management import Management, find_interface
from tests.testbed.fabric.namespaces import Home
from tests.testbed.fabric.plan import FabricPlan, Port, ShapeOptions
from tests.testbed.fabric.sweeping import remove_fabric

_DEATH_S = 20.0  # a killed process is gone at once, unless a disk holds it
_LOWER_UP = 0x1_0000  # linux/if.h: on, and with a carrier; the operational state says so up to a second later
# linux/rtnetlink.h
_GET_ROUTE = 26
_DST, _SRC, _IIF, _OIF, _IP_PROTO, _SPORT, _DPORT = 1, 2, 3, 4, 27, 28, 29
_QUESTION = struct.Struct("=BBBBBBBBI")  # rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
_MOST_HOPS = 16


@dataclass(frozen=True, slots=True)
class PortCounters:
    """One port, counted since it was made; `dropped` and `waiting_bytes` are those of the queue that shapes it."""

    is_up: bool
    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    dropped: int = 0
    waiting_bytes: int = 0
    rate_mbps: float | None = None


def read_ports(route: Any) -> dict[str, PortCounters]:
    """Return the ports of the namespace of an open IPRoute, by name."""
    queues = {each["index"]: _read_queue(each) for each in route.get_qdiscs() if each.get_attr("TCA_KIND") == "tbf"}
    return {
        link.get_attr("IFLA_IFNAME"): _count(link, queues.get(link["index"], (0, 0, None)))
        for link in route.get_links()
    }


def _count(link: Any, queue: tuple[int, int, float | None]) -> PortCounters:
    counted = link.get_attr("IFLA_STATS64")
    fields = {field: int(counted[field]) for field in ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets")}
    dropped, waiting_bytes, rate_mbps = queue
    is_up = bool(link["flags"] & _LOWER_UP)
    return PortCounters(is_up, **fields, dropped=dropped, waiting_bytes=waiting_bytes, rate_mbps=rate_mbps)


def _read_queue(qdisc: Any) -> tuple[int, int, float | None]:
    queue = qdisc.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")
    rate = qdisc.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"]
    return int(queue["drops"]), int(queue["backlog"]), rate * 8 / 1e6


@dataclass(frozen=True, slots=True)
class Flow:
    """What switches hash besides the addresses."""

    proto: Literal["tcp", "udp"]
    sport: int
    dport: int


def find_path(plan: FabricPlan, homes: Mapping[str, Home], src: Port, dst: Port, flow: Flow) -> tuple[str, ...]:
    """Return the links from NIC to NIC; LockstepError when a switch knows no way."""
    cable, _ = plan.cable_by_port[src.node, src.name]
    links, arrived = [cable.link.id], cable.far_end(src)
    while arrived != dst:
        if len(links) > _MOST_HOPS:
            raise LockstepError(f"the way from {src.address} to {dst.address} goes round in circles")
        name = _ask(homes[arrived.node], arrived, src.address, dst.address, flow)
        cable, leaving = plan.cable_by_port[arrived.node, name]
        links.append(cable.link.id)
        arrived = cable.far_end(leaving)
    return tuple(links)


def _ask(home: Home, arrived: Port, src: str, dst: str, flow: Flow) -> str:
    """Return the interface through which a switch would send a packet that came in at a port.

    The question is written by hand: pyroute2 leaves ports out of it without a word and then answers by chance.
    """
    iif = home.change(lambda route: find_interface(route, arrived.name))
    body = _QUESTION.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0) + b"".join(
        pack_attribute(kind, value)
        for kind, value in (
            (_DST, socket.inet_aton(dst)),
            (_SRC, socket.inet_aton(src)),
            (_IIF, struct.pack("=I", iif)),
            (_IP_PROTO, bytes([socket.IPPROTO_TCP if flow.proto == "tcp" else socket.IPPROTO_UDP])),
            (_SPORT, struct.pack("!H", flow.sport)),
            (_DPORT, struct.pack("!H", flow.dport)),
        )
    )
    with closing(NetlinkSocket(NETLINK_ROUTE, namespace_fd=home.fd)) as netlink:
        ((_, answer),) = netlink.ask(_GET_ROUTE, body).payloads()
    oif = to_number(attributes_of(answer, _QUESTION.size).get(_OIF))
    found = home.change(lambda route: route.get_links(oif) if oif else ())
    if not found:
        raise LockstepError(f"{arrived.node} knows no way to {dst}")
    return str(next(iter(found)).get_attr("IFLA_IFNAME"))


class Fabric:
    """Namespaces by the names of the topology's nodes; a context manager that leaves nothing behind."""

    def __init__(
        self, prefix: str, plan: FabricPlan, options: ShapeOptions, management: Management, root: Home
    ) -> None:
        self.prefix, self.plan, self.options, self.management, self.root = prefix, plan, options, management, root
        self.homes: dict[str, Home] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Fabric":
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @property
    def topology(self) -> Topology:
        """What was built, with the address of every NIC and the rates that the links really have."""
        return self.plan.topology

    @property
    def head_address(self) -> str:
        """Where processes on hosts reach this machine, without touching the fabric."""
        return self.management.head

    def address_of(self, host: str, nic: str) -> str:
        return self._port(host, nic).address

    def namespace_of(self, node: str) -> str:
        """Return the name of a node's namespace, as `ip netns` shows it."""
        return f"{self.prefix}-{node}"

    def run_in(
        self, host: str, command: Sequence[str], env: Mapping[str, str] | None = None, **files: Any
    ) -> "subprocess.Popen[bytes]":
        """Start a process on a host; it sees that host's interfaces only, below /sys too, and ends with us.

        `files` are Popen's stdin (empty unless given), stdout, stderr and cwd.
        """
        process = self._home(host).start(command, env, **{"stdin": subprocess.DEVNULL, **files})
        self._processes.append(process)
        return process

    def counters(self) -> dict[tuple[str, str], PortCounters]:
        """Return what every port of the fabric has counted, by node and interface."""
        return {
            (node, name): counted
            for node in self.homes
            for name, counted in self.homes[node].change(read_ports).items()
            if (node, name) in self.plan.cable_by_port
        }

    def route_of(self, src: tuple[str, str], dst: tuple[str, str], flow: Flow) -> tuple[str, ...]:
        """Return the ids of the links that a flow between two NICs takes now, as the kernels of the switches say."""
        return find_path(self.plan, self.homes, self._port(*src), self._port(*dst), flow)

    def leave(self) -> None:
        """Let go of the fabric without taking it down, as the process does that built it to be kept."""
        for home in (*self.homes.values(), self.root):
            home.close()
        self.homes = {}

    def destroy(self) -> None:
        """Kill what runs in the fabric and remove all of it."""
        remove_fabric(self.prefix, self.root)
        for process in self._processes:
            process.kill()  # it may have left for a namespace of its own
            process.wait(_DEATH_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        self.leave()
        ownership.remove_note(self.prefix)

    def _home(self, node: str) -> Home:
        if node not in self.homes:
            raise BadInput(f"there is no {node} in this fabric; there are {', '.join(self.homes)}")
        return self.homes[node]

    def _port(self, host: str, nic: str) -> Port:
        found = self.plan.cable_by_port.get((host, nic))
        if found is None:
            raise BadInput(f"there is no cabled NIC {host}/{nic} in this fabric")
        return found[1]
