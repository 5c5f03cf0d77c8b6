"""Which links and switches each flow of probes crosses, as sparse arrays.

A route names the nodes between source and destination, so that each two neighbours are a directed link. A flow whose
route is unknown is spread over all shortest ways between its leaves, as ECMP would do it.

Cost: O(hops of all flows), without a loop over flows whose route is known.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.context import End
from analyzer.faults.ways import Ways
from analyzer.probing.flows import JOIN, Flows
from analyzer.wires.matrix import Wire
from lockstep.topology import Link, TopologyIndex, link_name, split_end
from lockstep.verdict import Side


@dataclass(frozen=True)
class Routes:
    """Directed links by number (2 n from a to b of link n, 2 n + 1 back), and an entry per flow and link."""

    links: tuple[Link, ...]
    flow: np.ndarray
    way: np.ndarray  # number of the directed link
    share: np.ndarray  # probability that the flow crosses it; 1 where the route is known
    hosts: frozenset[str]

    def is_plug(self, end: str) -> bool:
        """Return whether an end of a link is a host's."""
        return split_end(end)[0] in self.hosts

    def name(self, way: int) -> tuple[str, Side]:
        """Return the link of a directed link, and which direction it is."""
        return link_name(self.links[way // 2]), "rx" if way % 2 else "tx"


def find_routes(flows: Flows, topology: TopologyIndex) -> Routes:
    """Return what each flow crosses; what the topology does not know is left out."""
    links = topology.topology.links
    hosts = frozenset(host.id for host in topology.topology.hosts)
    flow, way = _known_routes(flows, links, hosts)
    pieces = [(flow, way, np.ones(len(flow))), *_unknown_routes(flows, topology)]
    flows_of, ways, shares = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return Routes(links, flows_of, ways, shares, hosts)


def _known_routes(flows: Flows, links: tuple[Link, ...], hosts: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return flow and directed link of each hop that the routes name and the topology knows."""
    known = np.flatnonzero(np.asarray(pc.not_equal(flows.keys["route"], "")))
    keys = flows.keys.take(pa.array(known))
    source = pc.binary_join_element_wise(keys["host"], keys["src_nic"], "/")
    target = pc.binary_join_element_wise(keys["dst"], keys["dst_nic"], "/")
    whole = pc.binary_join_element_wise(source, keys["route"], target, JOIN)
    nodes = pc.split_pattern(whole, JOIN).combine_chunks()
    node = nodes.flatten().dictionary_encode()
    codes, first = np.asarray(node.indices), np.asarray(nodes.offsets)[:-1]
    flow = known[np.repeat(np.arange(len(known)), np.diff(np.asarray(nodes.offsets)))]
    is_last = np.zeros(len(codes), bool)
    is_last[first[1:] - 1] = True
    is_last[-1:] = True
    here = np.flatnonzero(~is_last)
    ways = _look_up(codes[here], codes[here + 1], node.dictionary.to_pylist(), links, hosts)
    return flow[here][ways >= 0], ways[ways >= 0]


def _look_up(
    near: np.ndarray, far: np.ndarray, names: list[str], links: tuple[Link, ...], hosts: frozenset[str]
) -> np.ndarray:
    """Return the directed link between each two nodes, -1 where there is none; of parallel ones the first."""
    code = {name: number for number, name in enumerate(names)}
    ends = [(code.get(_node(link.a, hosts), -1), code.get(_node(link.b, hosts), -1)) for link in links]
    pairs = [(a, b, 2 * n) for n, (a, b) in enumerate(ends)] + [(b, a, 2 * n + 1) for n, (a, b) in enumerate(ends)]
    known = np.array([pair for pair in pairs if min(pair) >= 0], np.int64).reshape(-1, 3)
    keys, first = np.unique(known[:, 0] * len(names) + known[:, 1], return_index=True)
    wanted = near.astype(np.int64) * len(names) + far
    if not len(keys):
        return np.full(len(wanted), -1)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, known[first[place], 2], -1)


def _node(end: str, hosts: frozenset[str]) -> str:
    """Return how a route names the end of a link: a host with its NIC, a switch without its port."""
    node, _ = split_end(end)
    return end if node in hosts else node


def _unknown_routes(flows: Flows, topology: TopologyIndex) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield flow, directed link and share for flows without a route, all of the same two leaves at once."""
    unknown = np.flatnonzero(np.asarray(pc.equal(flows.keys["route"], "")))
    keys = flows.keys.take(pa.array(unknown)).to_pylist()
    spread, numbers = Spread(topology), defaultdict(list)
    for number, key in zip(unknown.tolist(), keys, strict=True):
        wire = Wire(End(key["host"], key["src_nic"]), End(key["dst"], key["dst_nic"]))
        if leaves := spread.leaves(wire):
            numbers[leaves].append((number, wire))
    for same in numbers.values():
        ways, share = spread.between(same[0][1])
        flow = np.array([number for number, _ in same])
        yield np.repeat(flow, len(ways)), np.tile(ways, len(flow)), np.tile(share, len(flow))
        plugs = np.array([spread.plugs(wire) for _, wire in same])
        yield np.repeat(flow, 2), plugs.ravel(), np.ones(2 * len(flow))


class Spread:
    """Where flows of unknown route go: their own cables for sure, and all shortest ways between their leaves."""

    def __init__(self, topology: TopologyIndex) -> None:
        self._topology, self._ways = topology, Ways(topology)
        self._number = {link_name(link): number for number, link in enumerate(topology.topology.links)}

    def leaves(self, wire: Wire) -> tuple[str, str] | None:
        """Return the leaves of both ends, or None where one of them is not known."""
        near, far = (self._topology.leaf_of(end.host, end.nic or "") for end in (wire.src, wire.dst))
        return (near, far) if near and far else None

    def between(self, wire: Wire) -> tuple[np.ndarray, np.ndarray]:
        """Return the directed links between the leaves of a wire, and the share of flows that each of them takes."""
        hops = [hop for hop in self._ways.hops(wire) if hop.side]
        ways = [2 * self._number[hop.name] + (hop.side == "rx") for hop in hops]
        return np.array(ways, np.int64), np.array([hop.share for hop in hops], np.float64)

    def plugs(self, wire: Wire) -> tuple[int, int]:
        """Return the directed links that lead from the source to its leaf, and from the other leaf to the target."""
        return self._plug(wire.src, 0), self._plug(wire.dst, 1)

    def _plug(self, end: End, inwards: int) -> int:
        link = self._topology.host_link(end.host, end.nic or "")
        if link is None:
            raise ValueError(f"{end} has a leaf, but no cable")
        return 2 * self._number[link_name(link)] + (inwards if link.a == str(end) else 1 - inwards)
