"""Which cable has which interfaces and addresses: the whole fabric on paper, before anything is built.

A NIC that is the k-th on the l-th switch with hosts is 10.(1+l).k.2 and its port on the switch 10.(1+l).k.1, so that
one route leads to a switch and all its hosts. Cables between switches have four addresses each from 10.200.0.0 on.
A node has all equally short ways to every switch with hosts, and a host its own way for each NIC.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from lockstep.errors import BadInput, BadTopology
from lockstep.topology import Link, Node, Topology, count_hops, join_nodes, split_end

_MOST_LEAVES, _MOST_NICS, _MOST_HOSTS = 199, 256, 250
_TRUNKS = IPv4Address("10.200.0.0")
PREFIX_BITS = 30  # of a cable: four addresses
_IFNAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")  # 15 characters at most, linux/if.h
_RESERVED = frozenset({"lo", "mgmt"})
MOST_MBPS = 1500.0  # all NICs together; two cores saturate at some 2,200, each byte being shaped four times
_REAL_MBPS = 1000.0  # of a gigabit: nothing runs faster than told


@dataclass(frozen=True, slots=True)
class ShapeOptions:
    """Rates and queues of a fabric, and how its switches spread flows."""

    mbps_per_gbps: float | None = None  # None: as much as `most_mbps` allows
    most_mbps: float = MOST_MBPS
    burst_bytes: int = 32_768  # larger bundles of segments are cut up by the kernel before they are sent
    queue_ms: float = 20.0  # what waits in a port at most, at its nominal rate
    hash_seed: int = 7  # fixed, so that a port takes the same spine in every build


def scale_of(topology: Topology, options: ShapeOptions) -> float:
    """Return the Mbit/s that stand for a Gbit/s of the topology; BadInput when the sum would be too much.

    >>> from lockstep.fabrics import leaf_spine
    >>> scale_of(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1), ShapeOptions())
    1.875
    """
    hosts = {host.id for host in topology.hosts}
    rates = [link.gbps for link in topology.links for end in (link.a, link.b) if split_end(end)[0] in hosts]
    if not rates:
        return _REAL_MBPS
    allowed = options.most_mbps / sum(rates)
    wanted = options.mbps_per_gbps
    if wanted is not None and wanted > allowed * (1 + 1e-9):
        raise BadInput(
            f"at {wanted:g} Mbit/s for a Gbit/s the NICs would send {wanted * sum(rates):.0f} Mbit/s in all, "
            f"but this testbed carries {options.most_mbps:.0f}"
        )
    return min(allowed, _REAL_MBPS) if wanted is None else wanted


@dataclass(frozen=True, slots=True)
class Port:
    """An end of a cable: an interface in a node's namespace, with its address."""

    node: str
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Cable:
    """A link with its ends in the order of the topology, and the rate it really has."""

    link: Link
    a: Port
    b: Port
    rate_mbps: float

    @property
    def ends(self) -> tuple[Port, Port]:
        return self.a, self.b

    def far_end(self, port: Port) -> Port:
        return self.b if port == self.a else self.a


@dataclass(frozen=True)
class FabricPlan:
    """The fabric on paper; `topology` has the addresses of all NICs and switches and the rates as they really are."""

    topology: Topology
    cables: tuple[Cable, ...]
    prefixes: Mapping[str, str]  # of each switch with hosts: all its NICs

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.id for host in self.topology.hosts)

    @cached_property
    def switches(self) -> tuple[str, ...]:
        return tuple(switch.id for switch in self.topology.switches)

    @cached_property
    def cable_by_port(self) -> Mapping[tuple[str, str], tuple[Cable, Port]]:
        return {(end.node, end.name): (cable, end) for cable in self.cables for end in cable.ends}

    def cables_of(self, node: str) -> tuple[tuple[Cable, Port], ...]:
        return tuple((cable, end) for cable in self.cables for end in cable.ends if end.node == node)


def plan_fabric(topology: Topology, options: ShapeOptions) -> FabricPlan:
    """Return the fabric on paper, or raise BadTopology with all that cannot be built."""
    if complaints := list(_find_complaints(topology)):
        raise BadTopology(complaints)
    scale = scale_of(topology, options)
    hosts = {host.id for host in topology.hosts}
    prefixes = _number_leaves(topology, hosts)
    cables = tuple(_lay_cables(topology, hosts, prefixes, scale))
    return FabricPlan(_with_addresses(topology, cables), cables, prefixes)


def _find_complaints(topology: Topology) -> Iterator[str]:
    hosts = {host.id for host in topology.hosts}
    if len(hosts) > _MOST_HOSTS:
        yield f"there are {len(hosts)} hosts, but the testbed has room for {_MOST_HOSTS}"
    for host in topology.hosts:
        for nic in host.nics:
            if not _IFNAME.fullmatch(nic.id) or nic.id in _RESERVED:
                yield f"NIC {nic.id!r} of {host.id} cannot be the name of an interface"
    for link in topology.links:
        if {split_end(end)[0] for end in (link.a, link.b)} <= hosts:
            yield f"link {link.id} joins two hosts, but the testbed cables NICs to switches"
    yield from _find_crowds(topology, hosts)


def _find_crowds(topology: Topology, hosts: set[str]) -> Iterator[str]:
    nics: dict[str, int] = defaultdict(int)
    for link in topology.links:
        switch_end = _switch_end(link, hosts)
        if switch_end is not None:
            nics[switch_end] += 1
    if len(nics) > _MOST_LEAVES:
        yield f"{len(nics)} switches have hosts, but the testbed has room for {_MOST_LEAVES}"
    yield from (
        f"switch {name} has {n} NICs, but there is room for {_MOST_NICS}"
        for name, n in nics.items()
        if n > _MOST_NICS
    )


def _switch_end(link: Link, hosts: set[str]) -> str | None:
    """Return the switch of a link to a host; None for a link between switches."""
    a, b = split_end(link.a)[0], split_end(link.b)[0]
    return b if a in hosts else a if b in hosts else None


def _number_leaves(topology: Topology, hosts: set[str]) -> dict[str, str]:
    with_hosts = {_switch_end(link, hosts) for link in topology.links}
    leaves = [switch.id for switch in topology.switches if switch.id in with_hosts]
    return {leaf: f"10.{1 + number}.0.0/16" for number, leaf in enumerate(leaves)}


def _lay_cables(topology: Topology, hosts: set[str], prefixes: Mapping[str, str], scale: float) -> Iterator[Cable]:
    names = _PortNames(topology)
    nics: dict[str, int] = defaultdict(int)
    trunks = 0
    for link in topology.links:
        leaf = _switch_end(link, hosts)
        if leaf is None:
            net, trunks = _TRUNKS + 4 * trunks, trunks + 1
        else:
            net, nics[leaf] = IPv4Network(prefixes[leaf])[256 * nics[leaf]], nics[leaf] + 1
        a_is_first = split_end(link.a)[0] not in hosts  # the switch has the first address, the host the second
        a, b = (
            Port(split_end(end)[0], names.of(end, other), str(net + (1 if is_first else 2)))
            for end, other, is_first in ((link.a, link.b, a_is_first), (link.b, link.a, not a_is_first))
        )
        rate_mbps = link.gbps * scale
        yield Cable(link.model_copy(update={"gbps": rate_mbps / 1000}), a, b, rate_mbps)


class _PortNames:
    """Names interfaces: a NIC by its id, a port of a switch by its own name or by what is at the other end."""

    def __init__(self, topology: Topology) -> None:
        self._taken: dict[str, set[str]] = {node.id: set(_RESERVED) for node in topology.nodes}

    def of(self, end: str, other: str) -> str:
        node, port = split_end(end)
        wanted = port if port is not None else other.replace("/", "-")
        taken = self._taken[node]
        is_free = _IFNAME.fullmatch(wanted) and wanted not in taken
        name = wanted if is_free else next(f"p{n}" for n in range(len(taken) + 1) if f"p{n}" not in taken)
        taken.add(name)
        return name


def _with_addresses(topology: Topology, cables: Sequence[Cable]) -> Topology:
    ports = [port for cable in cables for port in cable.ends]
    nodes = tuple(_with_own(node, [port for port in ports if port.node == node.id]) for node in topology.nodes)
    return topology.model_copy(update={"nodes": nodes, "links": tuple(cable.link for cable in cables)})


def _with_own(node: Node, ports: Sequence[Port]) -> Node:
    if node.kind == "switch":
        return node.model_copy(update={"addresses": tuple(port.address for port in ports)})
    address_by_nic = {port.name: port.address for port in ports}
    nics = tuple(nic.model_copy(update={"address": address_by_nic.get(nic.id)}) for nic in node.nics)
    return node.model_copy(update={"nics": nics})


MAIN_TABLE = 254  # linux/rtnetlink.h
_FIRST_NIC_TABLE = 100
_LEAST_BPS = 1_000.0  # bytes; tbf takes no rate of zero, and "down" says that better


@dataclass(frozen=True, slots=True)
class Route:
    """Where packets to `to` go from a node: to one of the gateways, chosen by the hash of the flow."""

    node: str
    to: str
    gateways: tuple[str, ...]
    table: int = MAIN_TABLE


@dataclass(frozen=True, slots=True)
class SourceRule:
    """Packets from `address` of a host look into a table of their own, whose only way is the NIC of that address."""

    host: str
    address: str
    table: int


def plan_routes(plan: FabricPlan) -> list[Route]:
    neighbours = _find_neighbours(plan)
    graph = join_nodes(((near, far.node) for near in neighbours for _, far in neighbours[near]), plan.switches)
    hops = {leaf: count_hops(graph, leaf) for leaf in plan.prefixes}
    switches = [route for node in plan.switches for route in _switch_routes(node, plan, neighbours, hops)]
    return switches + [route for host in plan.hosts for route in _host_routes(host, plan, hops)]


def plan_rules(plan: FabricPlan) -> list[SourceRule]:
    """Return the rules by which a socket that is bound to a NIC's address sends through that NIC."""
    return [
        SourceRule(host, near.address, _FIRST_NIC_TABLE + number)
        for host in plan.hosts
        for number, (_, near, _) in enumerate(_uplinks(host, plan))
    ]


_Neighbours = Mapping[str, list[tuple[Cable, Port]]]  # of each switch: cables that are up, with their far end


def _find_neighbours(plan: FabricPlan) -> _Neighbours:
    neighbours: dict[str, list[tuple[Cable, Port]]] = defaultdict(list)
    switches = set(plan.switches)
    for cable in plan.cables:
        if cable.link.up and {cable.a.node, cable.b.node} <= switches:
            neighbours[cable.a.node].append((cable, cable.b))
            neighbours[cable.b.node].append((cable, cable.a))
    return neighbours


def _switch_routes(
    node: str, plan: FabricPlan, neighbours: _Neighbours, hops: Mapping[str, Mapping[str, int]]
) -> Iterator[Route]:
    for leaf, prefix in plan.prefixes.items():
        away = hops[leaf].get(node)
        if away:
            closer = [far for _, far in neighbours.get(node, []) if hops[leaf].get(far.node) == away - 1]
            yield Route(node, prefix, tuple(far.address for far in closer))


def _host_routes(host: str, plan: FabricPlan, hops: Mapping[str, Mapping[str, int]]) -> Iterator[Route]:
    uplinks = _uplinks(host, plan)
    for number, (_, _, gateway) in enumerate(uplinks):
        yield Route(host, "0.0.0.0/0", (gateway.address,), _FIRST_NIC_TABLE + number)
    for leaf, prefix in plan.prefixes.items():
        distances = [
            (hops[leaf][gateway.node], n) for n, (_, _, gateway) in enumerate(uplinks) if gateway.node in hops[leaf]
        ]
        if distances:  # the first of the nearest NICs, for sockets that are bound to no address
            yield Route(host, prefix, (uplinks[min(distances)[1]][2].address,))


def _uplinks(host: str, plan: FabricPlan) -> list[tuple[Cable, Port, Port]]:
    """Return a host's cables that are up, each with the host's end and the switch's."""
    return [(cable, end, cable.far_end(end)) for cable, end in plan.cables_of(host) if cable.link.up]


def shape(route: Any, index: int, rate_mbps: float, options: ShapeOptions) -> None:
    """Let an interface send at a rate from now on; what waits in its queue goes on waiting."""
    rate = max(rate_mbps * 1e6 / 8, _LEAST_BPS)
    queue = rate * options.queue_ms / 1e3 + options.burst_bytes
    route.tc("replace", "tbf", index, rate=int(rate), burst=options.burst_bytes, limit=int(queue))


def lay_route(netlink: Any, route: Route) -> None:
    """Set a route, or set it again after an interface was down: the kernel forgets routes without a way."""
    if len(route.gateways) == 1:
        netlink.route("replace", dst=route.to, gateway=route.gateways[0], table=route.table)
    else:
        next_hops = [{"gateway": gateway, "hops": 0} for gateway in route.gateways]
        netlink.route("replace", dst=route.to, multipath=next_hops, table=route.table)
