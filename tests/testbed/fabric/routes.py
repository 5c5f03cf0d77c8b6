"""Where each node sends what: all equally short ways to every switch with hosts, and its own way for each NIC."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.topology import count_hops, join_nodes
from tests.testbed.fabric.plan import Cable, FabricPlan, Port, ShapeOptions

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
    """Return the routes of all nodes. Cost: O(leaves x links)."""
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
