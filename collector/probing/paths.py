"""Which way a flow takes: the switches that answered choose among the shortest ways that the topology allows."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from collector.probing.addresses import AddressBook
from collector.probing.packets import Flow
from lockstep.clock import NS_PER_S
from lockstep.topology import Link, Topology, TopologyIndex, split_end

SILENT = "*"  # a hop that did not answer and that the topology leaves open, as traceroute writes it

_MOST_LEAF_PAIRS = 128  # whose layers are remembered: about 50 KB each on a fabric of 64 spines


@dataclass(frozen=True, slots=True)
class Way:
    """A way through the fabric, as far as it is known."""

    hops: tuple[str, ...]  # switches in order; SILENT where unknown
    links: tuple[str, ...] = ()  # from the source's cable to the destination's; empty unless all hops are known
    certainty: float = 1.0  # below 1 where parallel links join two of the switches and nobody said which it was

    @property
    def is_complete(self) -> bool:
        return bool(self.links)


@dataclass(frozen=True, slots=True)
class Layers:
    """All shortest ways between two NICs: the switches at each distance, and the links between them."""

    switches: tuple[frozenset[str], ...]
    links: dict[tuple[str, str], tuple[Link, ...]] = field(hash=False)  # by the nodes they join, both ways

    @property
    def open(self) -> list[int]:
        """The distances, counted as a TTL is, at which there is a choice."""
        return [ttl for ttl, choice in enumerate(self.switches, 1) if len(choice) > 1]


class WayFinder:
    """Answers for the flows of one host."""

    def __init__(self, topology: Topology, host: str) -> None:
        self._index, self._host = TopologyIndex(topology), host
        self._layers: OrderedDict[tuple[str, str], Layers] = OrderedDict()  # by leaves: many pairs of NICs share one

    def layers(self, src_nic: str, dst: str, dst_nic: str) -> Layers | None:
        """Return what lies between two NICs, or None when the topology knows no way over switches."""
        leaves = self._index.leaf_of(self._host, src_nic), self._index.leaf_of(dst, dst_nic)
        cables = self._index.host_link(self._host, src_nic), self._index.host_link(dst, dst_nic)
        if (
            None in leaves
            or (self._host, src_nic) == (dst, dst_nic)
            or not all(cable and cable.up for cable in cables)
        ):
            return None
        first, last = str(leaves[0]), str(leaves[1])
        if (first, last) not in self._layers:
            links = self._index.links_between(self._host, src_nic, dst, dst_nic)
            if not links:
                return None
            self._remember(first, last, _find_layers(first, links - set(cables)))
        self._layers.move_to_end((first, last))
        return self._layers[first, last]

    def resolve(self, flow: Flow, seen: Iterable[str]) -> Way | None:
        """Return the way on which all that answered lie, or None when they lie on no shortest way together.

        `seen` are node or node/port; where a switch answers from the port at which the packet came in, parallel
        links can be told apart. Cost: O(links on shortest ways).
        """
        layers = self.layers(flow.src_nic, flow.dst, flow.dst_nic)
        if layers is None:
            return None
        ports = dict(map(split_end, seen))
        choices = _prune(layers, set(ports))
        if not all(choices):
            return None
        hops = tuple(min(choice) if len(choice) == 1 else SILENT for choice in choices)
        if SILENT in hops:
            return Way(hops)
        links, certainty = _choose_links(layers, hops, ports)
        first, last = self._index.host_link(self._host, flow.src_nic), self._index.host_link(flow.dst, flow.dst_nic)
        return Way(hops, tuple(link.id for link in (first, *links, last) if link), certainty)

    def _remember(self, first: str, last: str, layers: Layers) -> None:
        self._layers[first, last] = layers
        if len(self._layers) > _MOST_LEAF_PAIRS:
            self._layers.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Remembered:
    """A way that a flow took, and how well that is confirmed."""

    way: Way
    seen_ns: int
    agreed: int  # traces in a row that found the same way
    generation: int
    is_suspect: bool = False  # a packet was lost on it since

    @property
    def confidence(self) -> float:
        """Rule of succession: how likely the next trace finds the same, after so many that did."""
        return (self.agreed + 1) / (self.agreed + 2) * self.way.certainty


class PathCatalogue:
    """The ways of flows, newest last; the longest unused is forgotten beyond `most` (about 1 KB each)."""

    def __init__(self, fresh_s: float, most: int = 16_384) -> None:
        self._fresh_ns, self._most = int(fresh_s * NS_PER_S), most
        self._known: OrderedDict[Flow, Remembered] = OrderedDict()
        self._generation = 0

    def recall(self, flow: Flow) -> Remembered | None:
        """Return what was last seen, however old."""
        return self._known.get(flow)

    def is_fresh(self, flow: Flow, now_ns: int) -> bool:
        """Return whether a trace would only repeat what is known."""
        known = self._known.get(flow)
        if known is None or known.is_suspect or known.generation != self._generation:
            return False
        return 0 <= now_ns - known.seen_ns < self._fresh_ns

    def learn(self, flow: Flow, way: Way, now_ns: int) -> Remembered:
        """Take in a complete trace. A way that changed makes all others doubtful: a switch that loses a next hop
        also moves flows that did not use it."""
        known = self._known.pop(flow, None)
        has_moved = known is not None and known.way.hops != way.hops
        self._generation += has_moved
        agreed = known.agreed + 1 if known and not has_moved else 1
        self._known[flow] = learnt = Remembered(way, now_ns, agreed, self._generation)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return learnt

    def suspect(self, flow: Flow) -> None:
        """Have a flow traced again at its next turn."""
        if flow in self._known:
            self._known[flow] = replace(self._known[flow], is_suspect=True)


@dataclass(frozen=True, slots=True)
class Atlas:
    """What one host knows of its fabric: the ways there may be, whose an address is, and the ways that were seen."""

    host: str
    ways: WayFinder
    book: AddressBook
    catalogue: PathCatalogue


def _find_layers(leaf: str, links: frozenset[Link]) -> Layers:
    """Return the switches at each distance from the leaf; all links given lie on shortest ways."""
    joined: dict[tuple[str, str], tuple[Link, ...]] = {}
    for link in sorted(links, key=lambda link: link.id):
        a, b = split_end(link.a)[0], split_end(link.b)[0]
        for ends in ((a, b), (b, a)):
            joined[ends] = (*joined.get(ends, ()), link)
    switches, passed, front = [], {leaf}, {leaf}
    while front:
        switches.append(frozenset(front))
        front = {far for near, far in joined if near in front} - passed
        passed |= front
    return Layers(tuple(switches), joined)


def _prune(layers: Layers, seen: set[str]) -> list[set[str]]:
    """Return the switches at each distance that are joined with what was seen before and behind them.

    None is left anywhere as soon as something that was seen contradicts the topology or another answer.
    """
    if not seen <= set().union(*layers.switches):
        return [set()]
    choices = [set(choice & seen or choice) for choice in layers.switches]
    if sum(len(choice & seen) for choice in layers.switches) > sum(bool(c & seen) for c in layers.switches):
        return [set()]  # two switches of one layer on one way
    for order in (range(1, len(choices)), range(len(choices) - 2, -1, -1)):
        step = -1 if order.step > 0 else 1
        for at in order:
            choices[at] = {node for node in choices[at] if any((node, n) in layers.links for n in choices[at + step])}
    return choices


def _choose_links(layers: Layers, hops: Sequence[str], ports: dict[str, str | None]) -> tuple[list[Link], float]:
    """Return the links between the switches of a way, and how certain that is."""
    links, certainty = [], 1.0
    for near, far in pairwise(hops):
        parallel = layers.links[near, far]
        named = [link for link in parallel if ports.get(far) and f"{far}/{ports[far]}" in (link.a, link.b)]
        links.append((named or parallel)[0])
        certainty /= len(named or parallel)
    return links, certainty
