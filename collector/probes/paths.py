"""Which way a flow takes: the switches that answered choose among the shortest ways that the topology allows."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from itertools import pairwise

from collector.probes.packets import Flow
from lockstep.clock import NS_PER_S
from lockstep.topology import Link, Topology, TopologyIndex, count_hops, join_nodes, split_end


def addresses_in(topology: Topology) -> dict[str, str | Sequence[str]]:
    """Return the addresses that a topology tells, by NIC and by switch."""
    nics = {f"{host.id}/{nic.id}": nic.address for host in topology.hosts for nic in host.nics if nic.address}
    return {**nics, **{switch.id: switch.addresses for switch in topology.switches if switch.addresses}}


class AddressBook:
    """Addresses of hosts' NICs (`h3/eth1`) and of switches or their ports (`spine0`, `leaf1/swp7`).

    An entry whose node is not in the topology, or whose address is no IPv4 address or was given before, is left
    out; `complaints` names each of them.
    """

    def __init__(self, topology: Topology, addresses: Mapping[str, str | Sequence[str]]) -> None:
        self._nics = {node.id: {nic.id for nic in node.nics} for node in topology.hosts}
        self._switches = {node.id for node in topology.switches}
        self._ends: dict[str, str] = {}
        self._first: dict[str, str] = {}
        self.complaints = tuple(self._take(addresses))

    def address_of(self, host: str, nic: str) -> str | None:
        """Return the address of a NIC, the first where it has several."""
        return self._first.get(f"{host}/{nic}")

    def end_at(self, address: str) -> str | None:
        """Return who answers from an address: host/nic, switch or switch/port."""
        return self._ends.get(address)

    def host_at(self, address: str) -> str | None:
        """Return the host that has an address; None for switches and strangers."""
        node = split_end(self._ends.get(address, ""))[0]
        return node if node in self._nics else None

    def addresses_of(self, host: str) -> list[str]:
        """Return the first address of each NIC of a host, in the order in which they were given."""
        return [address for end, address in self._first.items() if split_end(end)[0] == host]

    def _take(self, addresses: Mapping[str, str | Sequence[str]]) -> Iterator[str]:
        for end, given in addresses.items():
            node, port = split_end(end)
            if node not in self._switches and port not in self._nics.get(node, ()):
                yield f"{end} is no NIC and no switch of the topology"
                continue
            for text in [given] if isinstance(given, str) else given:
                yield from self._take_one(end, text)

    def _take_one(self, end: str, text: str) -> Iterator[str]:
        try:
            address = str(IPv4Address(text))
        except ValueError:
            yield f"{text!r} of {end} is no IPv4 address"
            return
        if address in self._ends:
            yield f"{address} of {end} already belongs to {self._ends[address]}"
            return
        self._ends[address] = end
        self._first.setdefault(end, address)


SILENT = "*"  # a hop that did not answer and that the topology leaves open, as traceroute writes it

_MOST_LEAF_PAIRS = 128  # whose layers are remembered: about 50 KB each on a fabric of 64 spines


@dataclass(frozen=True, slots=True)
class FlowPath:
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


class PathFinder:
    """Answers for the flows of one host."""

    def __init__(self, topology: Topology, host: str) -> None:
        self._index, self._host = TopologyIndex(topology), host
        self._layers: OrderedDict[tuple[str, str], Layers] = OrderedDict()  # by leaves: many pairs of NICs share one

    def layers(self, src_nic: str, dst: str, dst_nic: str) -> Layers | None:
        """Return what lies between two NICs, or None when the topology knows no way over switches."""
        leaves = self._index.leaf_of(self._host, src_nic), self._index.leaf_of(dst, dst_nic)
        cables = self._index.host_link(self._host, src_nic), self._index.host_link(dst, dst_nic)
        is_itself = (self._host, src_nic) == (dst, dst_nic)
        if None in leaves or is_itself or not all(cable and cable.up for cable in cables):
            return None
        first, last = str(leaves[0]), str(leaves[1])
        if (first, last) not in self._layers:
            links = self._index.links_between(self._host, src_nic, dst, dst_nic)
            if not links:
                return None
            self._layers[first, last] = _find_layers(first, links - set(cables))
            if len(self._layers) > _MOST_LEAF_PAIRS:
                self._layers.popitem(last=False)
        self._layers.move_to_end((first, last))
        return self._layers[first, last]

    def resolve(self, flow: Flow, seen: Iterable[str]) -> FlowPath | None:
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
            return FlowPath(hops)
        links, certainty = _choose_links(layers, hops, ports)
        first, last = self._index.host_link(self._host, flow.src_nic), self._index.host_link(flow.dst, flow.dst_nic)
        return FlowPath(hops, tuple(link.id for link in (first, *links, last) if link), certainty)


@dataclass(frozen=True, slots=True)
class Remembered:
    """A way that a flow took, and how well that is confirmed."""

    path: FlowPath
    seen_ns: int
    agreed: int  # traces in a row that found the same way
    generation: int
    is_suspect: bool = False  # a packet was lost on it since

    @property
    def confidence(self) -> float:
        """Rule of succession: how likely the next trace finds the same, after so many that did."""
        return (self.agreed + 1) / (self.agreed + 2) * self.path.certainty


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

    def learn(self, flow: Flow, path: FlowPath, now_ns: int) -> Remembered:
        """Take in a complete trace. A way that changed makes all others doubtful: a switch that loses a next hop
        also moves flows that did not use it."""
        known = self._known.pop(flow, None)
        has_moved = known is not None and known.path.hops != path.hops
        self._generation += has_moved
        agreed = known.agreed + 1 if known and not has_moved else 1
        self._known[flow] = learnt = Remembered(path, now_ns, agreed, self._generation)
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
    paths: PathFinder
    book: AddressBook
    catalogue: PathCatalogue


def _find_layers(leaf: str, links: frozenset[Link]) -> Layers:
    """Return the switches at each distance from the leaf; all links given lie on shortest ways."""
    joined: dict[tuple[str, str], tuple[Link, ...]] = {}
    for link in sorted(links, key=lambda link: link.id):
        a, b = split_end(link.a)[0], split_end(link.b)[0]
        for ends in ((a, b), (b, a)):
            joined[ends] = (*joined.get(ends, ()), link)
    hops = count_hops(join_nodes(joined, [leaf]), leaf)
    distances = range(max(hops.values()) + 1)
    switches = (frozenset(switch for switch in hops if hops[switch] == distance) for distance in distances)
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
