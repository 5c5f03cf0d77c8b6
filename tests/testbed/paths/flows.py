"""A flow of the testbed, which way it shall take, and what it may carry at best."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from lockstep.topology import Link, Topology, TopologyIndex, split_end
from planner.paths.flows import Flow
from planner.paths.network import build_network
from planner.paths.planning import plan_paths
from planner.paths.report import all_links, from_json

FIRST_PORT = 5201  # where receivers listen; further flows of the same two NICs go to the ports behind it

Nic = tuple[str, str]


@dataclass(frozen=True, slots=True, order=True)
class PlannedFlow:
    """One connection that sends all the time; `dport` tells flows between the same NICs apart."""

    src: Nic
    dst: Nic
    dport: int = FIRST_PORT

    @property
    def name(self) -> str:
        return f"{'/'.join(self.src)}>{'/'.join(self.dst)}:{self.dport}"


FlowLinks = Mapping[
    PlannedFlow, Sequence[str]
]  # links that a flow shall cross; those between its switches are enough
# Gets the topology with the links that are down now, the flows, and their links so far.
Planner = Callable[[Topology, Sequence[PlannedFlow], FlowLinks], FlowLinks]


def shift_by_a_leaf(topology: Topology, per_pair: int = 1, is_one_directional: bool = False) -> list[PlannedFlow]:
    """Return flows from the first NIC of every host to that of the host that has its place on the next leaf.

    So every leaf sends to one other leaf only, and with as many up-links as hosts a perfect plan fills all links.
    One way: only every second leaf sends, so that no link carries data in both directions.
    """
    index = TopologyIndex(topology)
    nics = [(host.id, host.nics[0].id) for host in topology.hosts]
    leaves = list(dict.fromkeys(index.leaf_of(*nic) for nic in nics))
    step = len(nics) // len(leaves)
    ends = [
        (nic, nics[(number + step) % len(nics)])
        for number, nic in enumerate(nics)
        if not (is_one_directional and number // step % 2)
    ]
    return [PlannedFlow(src, dst, FIRST_PORT + lane) for src, dst in ends for lane in range(per_pair)]


def without(topology: Topology, dead: Sequence[str]) -> Topology:
    """Return the topology with some links down."""
    links = tuple(link.model_copy(update={"up": link.up and link.id not in dead}) for link in topology.links)
    return topology.model_copy(update={"links": links})


def scale_uplinks(topology: Topology, factor: float) -> Topology:
    """Return the topology with links between switches at another rate."""
    hosts = {host.id for host in topology.hosts}
    ends = {link.id: {split_end(link.a)[0], split_end(link.b)[0]} for link in topology.links}
    links = [
        link if ends[link.id] & hosts else link.model_copy(update={"gbps": link.gbps * factor})
        for link in topology.links
    ]
    return topology.model_copy(update={"links": tuple(links)})


def ideal_round_s(length: int, topology: Topology, flows: Sequence[PlannedFlow], link_mbps: float) -> float:
    """Return how long it takes at best until every flow has sent so many bytes.

    Assumes two tiers whose up-links are what limits flows, all of one rate, and that each leaf sends to one other
    leaf, as `shift_by_a_leaf` has it: then the flows of two leaves can share all ways between these evenly.
    """
    index = TopologyIndex(topology)
    crowd = Counter((str(index.leaf_of(*flow.src)), str(index.leaf_of(*flow.dst))) for flow in flows)
    return max(
        count * length * 8e-6 / (link_mbps * len(paths_between(topology, *leaves))) for leaves, count in crowd.items()
    )


def paths_between(topology: Topology, src_leaf: str, dst_leaf: str) -> list[tuple[str, str]]:
    """Return the two links of each way over one spine that is up."""
    up, down = (_links_at(topology, leaf) for leaf in (src_leaf, dst_leaf))
    return [(a.id, b.id) for (spine, a), (other, b) in product(up, down) if spine == other]


def _links_at(topology: Topology, leaf: str) -> list[tuple[str, Link]]:
    switches = {switch.id for switch in topology.switches}
    ends = [(split_end(link.a)[0], split_end(link.b)[0], link) for link in topology.links if link.up]
    far = [(b if a == leaf else a, link) for a, b, link in ends if leaf in (a, b)]
    return [(node, link) for node, link in far if node in switches]


def plan_by_lockstep(
    topology: Topology, flows: Sequence[PlannedFlow], before: FlowLinks
) -> dict[PlannedFlow, tuple[str, ...]]:
    """Return all links of each flow; with paths `before` of this planner, few flows move that need not."""
    network, rows = build_network(topology), _as_rows(topology, flows)
    held = from_json(network, rows, {"flows": {flow.name: list(path) for flow, path in before.items()}})
    plan = plan_paths(network, rows, held if before else None)
    return {flow: tuple(links) for flow, links in zip(flows, all_links(plan), strict=True)}


def _as_rows(topology: Topology, flows: Sequence[PlannedFlow]) -> list[Flow]:
    index, links = TopologyIndex(topology), Counter(flow.src for flow in flows)
    cables = {flow.src: index.host_link(*flow.src) for flow in flows}
    rates = {nic: cable.gbps / links[nic] for nic, cable in cables.items() if cable}
    return [
        Flow(id=flow.name, src="/".join(flow.src), dst="/".join(flow.dst), gbps=rates[flow.src]) for flow in flows
    ]
