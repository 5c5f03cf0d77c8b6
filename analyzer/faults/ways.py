"""Over which links and switches a wire runs, as far as the topology tells: for sure, or with a probability.

A wire whose path is known runs over the links of its path. Any other is spread over the shortest ways between its two
leaves as ECMP would do it: a switch takes each of its next hops equally often.

Cost: O(links of a path) per path, O(links on shortest ways) per two leaves, which is remembered.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from analyzer.context import End
from analyzer.wires.matrix import Wire
from lockstep.topology import Link, TopologyIndex, link_name, split_end
from lockstep.verdict import Side


@dataclass(frozen=True, slots=True)
class Hop:
    """A link between switches in the direction of travel, or a switch (then without a side), that a wire may use."""

    name: str  # as in verdicts for a link, the id of a switch
    side: Side | None
    share: float  # probability that a wire runs over it


# What wires share that run over the same links: two hosts and a path, or two leaves between which none is known.
Way = tuple[str, str, tuple[str, ...]] | tuple[str | None, str | None]


class Ways:
    """Answers for one topology; unknown links, hosts and NICs lead nowhere."""

    def __init__(self, topology: TopologyIndex) -> None:
        self._topology = topology
        self._links = {link.id: link for link in topology.topology.links}
        self._switches = frozenset(node.id for node in topology.topology.switches)
        self._spread: dict[tuple[str | None, str | None], tuple[Hop, ...]] = {}

    def hops(self, wire: Wire) -> tuple[Hop, ...]:
        """Return the links between switches and the switches that a wire runs over, each with its probability."""
        if wire.path:
            return tuple(self._walk(wire.src.host, wire.path))
        near, far = self.leaf_of(wire.src), self.leaf_of(wire.dst)
        if (near, far) not in self._spread:
            self._spread[near, far] = tuple(self._spread_over(near, far, wire))
        return self._spread[near, far]

    def way_of(self, wire: Wire) -> Way:
        """Return what a wire has in common with all that run over the same links."""
        if wire.path:
            return wire.src.host, wire.dst.host, wire.path
        return self.leaf_of(wire.src), self.leaf_of(wire.dst)

    def leaf_of(self, end: End) -> str | None:
        """Return the leaf of a NIC; where the NIC is unknown, the one leaf that all NICs of the host are on."""
        if end.nic:
            return self._topology.leaf_of(end.host, end.nic)
        leaves = {self._topology.leaf_of(end.host, each.id) for each in self._topology.nics_of(end.host)}
        return leaves.pop() if len(leaves) == 1 else None

    def _spread_over(self, near: str | None, far: str | None, wire: Wire) -> Iterable[Hop]:
        if near is None or far is None:
            return (Hop(leaf, None, 1.0) for leaf in (near, far) if leaf)
        return _spread(near, far, self._between(wire))

    def _between(self, wire: Wire) -> list[Link]:
        src_nic, dst_nic = self._some_nic(wire.src.host, wire.src.nic), self._some_nic(wire.dst.host, wire.dst.nic)
        links = self._topology.links_between(wire.src.host, src_nic, wire.dst.host, dst_nic)
        return [link for link in links if all(split_end(end)[0] in self._switches for end in (link.a, link.b))]

    def _some_nic(self, host: str, nic: str | None) -> str:
        return nic or self._topology.nics_of(host)[0].id  # it has one, or it would have no leaf

    def _walk(self, here: str, path: Iterable[str]) -> Iterator[Hop]:
        """Yield what a path leads over; what follows a link that is unknown or does not join on is left out."""
        for number in path:
            link = self._links.get(number)
            ends = [split_end(end)[0] for end in (link.a, link.b)] if link else []
            if link is None or here not in ends:
                return
            there = ends[1] if here == ends[0] else ends[0]
            if here in self._switches and there in self._switches:
                yield Hop(link_name(link), "tx" if here == ends[0] else "rx", 1.0)
            if there in self._switches:
                yield Hop(there, None, 1.0)
            here = there


@lru_cache(maxsize=1)
def ways_through(topology: TopologyIndex) -> Ways:
    """Return the ways of a topology, with what earlier looks asked: there are a thousand times as many wires."""
    return Ways(topology)


def _spread(near: str, far: str, links: list[Link]) -> Iterator[Hop]:
    """Yield the links and switches between two leaves with the share of flows that ECMP would send over each."""
    exits = _exits(far, links)
    shares = {near: 1.0}
    while shares:
        passed: dict[str, float] = defaultdict(float)
        for switch, share in shares.items():
            yield Hop(switch, None, share)
            onward = exits.get(switch, []) if switch != far else []
            for there, link in onward:
                side: Side = "tx" if split_end(link.a)[0] == switch else "rx"
                yield Hop(link_name(link), side, share / len(onward))
                passed[there] += share / len(onward)
        shares = passed


def _exits(far: str, links: list[Link]) -> dict[str, list[tuple[str, Link]]]:
    """Return, per switch, the links that lead closer to the far leaf, with the switch at their other end."""
    around: dict[str, list[tuple[str, Link]]] = defaultdict(list)
    for link in sorted(links, key=lambda each: each.id):
        a, b = split_end(link.a)[0], split_end(link.b)[0]
        around[a].append((b, link))
        around[b].append((a, link))
    exits: dict[str, list[tuple[str, Link]]] = {}
    front, seen = {far}, {far}
    while front:
        reached = {near for there in front for near, _ in around[there]} - seen
        for near in reached:
            exits[near] = [(there, link) for there, link in around[near] if there in front]
        front = reached
        seen |= reached
    return exits
