"""A topology as arrays: directed lanes with their rates, and the ways up from each leaf to each switch above it.

A cable is two lanes, 2i from a to b and 2i+1 back, so `lane ^ 1` is the other direction. In a Clos fabric the
shortest way between two leaves climbs to a switch above both and descends again, so it is told by that switch, its
*top*, alone: ways are not searched but composed of two climbs. Where two switches share several cables, each is a top
of its own.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from lockstep.errors import BadInput
from lockstep.topology import Topology, link_name, split_end

_HEIGHT = {"leaf": 1, "spine": 2, "core": 3}
NONE = -1


@dataclass(frozen=True)
class Climbs:
    """All climbs of one height: from each leaf to each top, the lanes in order, NONE where there is no way."""

    tops: tuple[str, ...]  # names, such as spine2, or spine2#1 for its second cable
    lanes: np.ndarray  # [leaf, top, step]
    bundles: tuple[tuple[int, ...], ...] = ()  # tops that are one switch, reached over several cables

    @cached_property
    def exists(self) -> np.ndarray:
        """Return which leaf is cabled to which top, whether the cables are up or not."""
        there: np.ndarray = self.lanes[:, :, 0] != NONE
        return there

    @cached_property
    def joined(self) -> np.ndarray:
        """Return a number for each leaf, equal where these climbs join them."""
        leaves, tops = self.exists.shape
        near, far = np.nonzero(self.exists)
        edges = csr_array((np.ones(len(near), np.int8), (near, far + leaves)), shape=(leaves + tops, leaves + tops))
        numbers = connected_components(edges, directed=False)[1][:leaves]
        together: np.ndarray = np.unique(numbers, return_inverse=True)[1]
        return together


@dataclass(frozen=True)
class Network:
    """A fabric to plan on."""

    topology: Topology
    gbps: np.ndarray  # of each lane; 0: it carries nothing
    ports: Mapping[str, tuple[int, int]]  # host/nic: its lane into the fabric and the number of its leaf
    leaves: tuple[str, ...]
    climbs: tuple[Climbs, ...]  # by height, the lowest first
    fabric: np.ndarray  # bool, which lanes are between switches: only among those there is a choice
    parts: Mapping[str, list[int]]  # lanes of each link, switch, NIC and host, by id and by name

    @property
    def lanes(self) -> int:
        return len(self.gbps)

    def name_lane(self, lane: int) -> str:
        """Return a lane as people read it, such as leaf0 -> spine1."""
        link = self.topology.links[lane // 2]
        ends = (link.a, link.b) if lane % 2 == 0 else (link.b, link.a)
        return " -> ".join(ends)

    def link_of(self, lane: int) -> str:
        """Return the id of a lane's cable."""
        return self.topology.links[lane // 2].id


def build_network(topology: Topology) -> Network:
    """Return the arrays of a sound topology; links that are down are there, with rate 0."""
    carried = np.repeat([link.gbps if link.up else 0.0 for link in topology.links], 2)
    return with_gbps(build_intact(topology), carried)


def build_intact(topology: Topology) -> Network:
    """Return the arrays of a sound topology as if all its links were up."""
    height = _find_heights(topology)
    rates = np.repeat([link.gbps for link in topology.links], 2)
    switches = [name for name in height if height[name]]
    leaves = tuple(name for name in switches if height[name] == 1)
    number = {leaf: place for place, leaf in enumerate(leaves)}
    upward, ports = _sort_lanes(topology, height, number)
    inside = np.ones(len(rates), bool)
    ends = np.array([lane for lane, _ in ports.values()], np.int64)
    inside[ends] = inside[ends ^ 1] = False
    climbs = tuple(_climb(leaves, upward))
    return Network(topology, rates, ports, leaves, climbs, fabric=inside, parts=_name_parts(topology))


def without(network: Network, names: Iterable[str]) -> Network:
    """Return the network in which some parts carry nothing: link ids, or names as verdicts give them."""
    dead = find_lanes(network, names)
    gbps = network.gbps.copy()
    gbps[dead] = 0.0
    return with_gbps(network, gbps)


def with_rates(network: Network, rates: Mapping[str, float]) -> Network:
    """Return the network in which some parts, by name, carry only a share of their rate, 0 to 1."""
    gbps = network.gbps.copy()
    for name, share in rates.items():
        gbps[find_lanes(network, [name])] *= share
    return with_gbps(network, gbps)


def with_gbps(network: Network, gbps: np.ndarray) -> Network:
    """Return the network with other rates of its lanes.

    A leaf that lost one of several cables to a switch uses the others in its place: the way down from that switch
    need not be over the cable of the same number.
    """
    return replace(network, gbps=gbps, climbs=tuple(_reseat(climbs, gbps > 0) for climbs in network.climbs))


def _reseat(climbs: Climbs, alive: np.ndarray) -> Climbs:
    if not climbs.bundles:
        return climbs
    lanes = climbs.lanes.copy()
    for bundle in climbs.bundles:
        works = (
            alive[lanes[:, bundle]].all(axis=2) & alive[lanes[:, bundle] ^ 1].all(axis=2) & climbs.exists[:, bundle]
        )
        for leaf in np.flatnonzero(works.any(axis=1) & ~works.all(axis=1)).tolist():
            rest = climbs.lanes[leaf, np.array(bundle)[works[leaf]]]
            for turn, seat in enumerate(np.array(bundle)[~works[leaf]].tolist()):
                lanes[leaf, seat] = rest[turn % len(rest)]
    return replace(climbs, lanes=lanes)


def find_lanes(network: Network, names: Iterable[str]) -> np.ndarray:
    """Return the lanes of links, switches, NICs and hosts, or raise BadInput with all names that are unknown."""
    wanted = list(names)
    if unknown := [name for name in wanted if name not in network.parts]:
        raise BadInput(f"this topology has no part named {', '.join(unknown)}")
    return np.array(sorted({lane for name in wanted for lane in network.parts[name]}), np.int64)


def _name_parts(topology: Topology) -> dict[str, list[int]]:
    kinds = {node.id: node.kind for node in topology.nodes}
    known: dict[str, list[int]] = defaultdict(list)
    for place, link in enumerate(topology.links):
        names = {link.id, link_name(link), f"link:{link.id}"}
        for end in (link.a, link.b):
            node, _ = split_end(end)
            names |= {node, f"{kinds[node]}:{node}", end, f"nic:{end}"}
        for name in names:
            known[name] += [2 * place, 2 * place + 1]
    return known


def _find_heights(topology: Topology) -> dict[str, int]:
    """Return how high each node is: hosts 0, leaves 1, and so on, as told or by the distance from hosts."""
    height = {node.id: 0 if node.kind == "host" else _HEIGHT.get(node.tier or "") for node in topology.nodes}
    neighbours: dict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        a, b = split_end(link.a)[0], split_end(link.b)[0]
        neighbours[a].append(b)
        neighbours[b].append(a)
    front, level = [name for name, known in height.items() if known == 0], 0
    while front:
        level += 1
        front = [far for near in front for far in neighbours[near] if height[far] is None]
        height |= dict.fromkeys(front, level)
    return {name: known for name, known in height.items() if known is not None}


def _sort_lanes(
    topology: Topology, height: Mapping[str, int], leaf_number: Mapping[str, int]
) -> tuple[dict[str, list[tuple[str, int]]], dict[str, tuple[int, int]]]:
    """Return the lanes that go up, by the switch where they begin, and the ports of hosts."""
    upward: dict[str, list[tuple[str, int]]] = defaultdict(list)
    ports: dict[str, tuple[int, int]] = {}
    for place, link in enumerate(topology.links):
        for near, far, lane in ((link.a, link.b, 2 * place), (link.b, link.a, 2 * place + 1)):
            low, high = split_end(near)[0], split_end(far)[0]
            if height.get(low) == 0 and high in leaf_number:
                ports[near] = lane, leaf_number[high]
            elif 0 < height.get(low, 0) < height.get(high, 0):
                upward[low].append((high, lane))
    return upward, ports


def _climb(leaves: tuple[str, ...], upward: Mapping[str, list[tuple[str, int]]]) -> Iterable[Climbs]:
    """Yield the climbs of ever greater height, while there is anything higher."""
    reached: list[list[tuple[str, tuple[int, ...]]]] = [[(leaf, ())] for leaf in leaves]
    while True:
        reached = [
            [(high, (*lanes, lane)) for top, lanes in climbs for high, lane in upward.get(top, ())]
            for climbs in reached
        ]
        if not any(reached):
            return
        yield _tabulate(reached)


def _tabulate(reached: list[list[tuple[str, tuple[int, ...]]]]) -> Climbs:
    """Return climbs as a table; a leaf with fewer cables to a switch than others uses them by turns."""
    by_top: list[dict[str, list[tuple[int, ...]]]] = []
    for climbs in reached:
        mine: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        for top, lanes in climbs:
            mine[top].append(lanes)
        by_top.append(mine)
    names = list(dict.fromkeys(top for mine in by_top for top in mine))
    times = {top: max(len(mine.get(top, ())) for mine in by_top) for top in names}
    seats = [(top, turn) for top in names for turn in range(times[top])]
    steps = len(next(lanes for climbs in reached for _, lanes in climbs))
    table = np.full((len(reached), len(seats), steps), NONE, np.int64)
    for leaf, mine in enumerate(by_top):
        for seat, (top, turn) in enumerate(seats):
            if ways := mine.get(top):
                table[leaf, seat] = ways[turn % len(ways)]
    bundles = tuple(
        tuple(seat for seat, (name, _) in enumerate(seats) if name == top) for top in names if times[top] > 1
    )
    return Climbs(tuple(top if times[top] == 1 else f"{top}#{turn}" for top, turn in seats), table, bundles)
