"""A topology as arrays: directed links with their rates, and the paths up from each leaf to each switch above it.

A cable is two directed links, 2i from a to b and 2i+1 back, so `link ^ 1` is the other direction. In a Clos fabric
the shortest path between two leaves goes up to a switch above both, here called its *spine* whatever its tier, and
down again, so it is known by that switch alone: paths are not searched but composed of two up paths. Where two
switches share several cables, each is a spine of its own. At the end: what stock NCCL can be advised to do on it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from lockstep.errors import BadInput
from lockstep.topology import Topology, count_hops, join_nodes, link_name, split_end

_HEIGHT = {"leaf": 1, "spine": 2, "core": 3}
NONE = -1


@dataclass(frozen=True)
class UpPaths:
    """All up paths of one height: from each leaf to each spine, the links in order, NONE where there is no path."""

    spines: tuple[str, ...]  # names, such as spine2, or spine2#1 for its second cable
    links: np.ndarray  # [leaf, spine, step]
    bundles: tuple[tuple[int, ...], ...] = ()  # spines that are one switch, reached over several cables

    @cached_property
    def exists(self) -> np.ndarray:
        """Return which leaf is cabled to which spine, whether the cables are up or not."""
        there: np.ndarray = self.links[:, :, 0] != NONE
        return there

    def usable(self, alive: np.ndarray) -> np.ndarray:
        """Return which leaf can reach which spine, and come back, over directed links that carry something."""
        there: np.ndarray = self.exists & alive[self.links].all(axis=2) & alive[self.links ^ 1].all(axis=2)
        return there

    @cached_property
    def joined(self) -> np.ndarray:
        """Return a number for each leaf, equal where these up paths join them."""
        leaves, spines = self.exists.shape
        near, far = np.nonzero(self.exists)
        edges = csr_array(
            (np.ones(len(near), np.int8), (near, far + leaves)), shape=(leaves + spines, leaves + spines)
        )
        numbers = connected_components(edges, directed=False)[1][:leaves]
        together: np.ndarray = np.unique(numbers, return_inverse=True)[1]
        return together


@dataclass(frozen=True)
class Network:
    """A fabric to plan on."""

    topology: Topology
    gbps: np.ndarray  # of each directed link; 0: it carries nothing
    ports: Mapping[str, tuple[int, int]]  # host/nic: its directed link into the fabric and the number of its leaf
    leaves: tuple[str, ...]
    up_paths: tuple[UpPaths, ...]  # by height, the lowest first
    fabric: np.ndarray  # bool, which directed links are between switches: only among those there is a choice
    parts: Mapping[str, list[int]]  # directed links of each link, switch, NIC and host, by id and by name

    @property
    def directed_links(self) -> int:
        return len(self.gbps)

    def joined_below(self, height: int) -> np.ndarray:
        """Return a number for each leaf, equal where they are joined without going higher than that."""
        return self.up_paths[height - 1].joined if height > 0 else np.arange(len(self.leaves))

    def name_directed_link(self, directed_link: int) -> str:
        """Return a directed link as people read it, such as leaf0 -> spine1."""
        link = self.topology.links[directed_link // 2]
        ends = (link.a, link.b) if directed_link % 2 == 0 else (link.b, link.a)
        return " -> ".join(ends)

    def link_of(self, link: int) -> str:
        """Return the id of a directed link's cable."""
        return self.topology.links[link // 2].id


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
    number = {leaf: index for index, leaf in enumerate(leaves)}
    upward, ports = _sort_directed_links(topology, height, number)
    inside = np.ones(len(rates), bool)
    ends = np.array([directed_link for directed_link, _ in ports.values()], np.int64)
    inside[ends] = inside[ends ^ 1] = False
    up_paths = tuple(_find_up_paths(leaves, upward))
    return Network(topology, rates, ports, leaves, up_paths, fabric=inside, parts=_name_parts(topology))


def without(network: Network, names: Iterable[str]) -> Network:
    """Return the network in which some parts carry nothing: link ids, or names as verdicts give them."""
    dead = find_directed_links(network, names)
    gbps = network.gbps.copy()
    gbps[dead] = 0.0
    return with_gbps(network, gbps)


def with_rates(network: Network, rates: Mapping[str, float]) -> Network:
    """Return the network in which some parts, by name, carry only a share of their rate, 0 to 1."""
    gbps = network.gbps.copy()
    for name, share in rates.items():
        gbps[find_directed_links(network, [name])] *= share
    return with_gbps(network, gbps)


def with_gbps(network: Network, gbps: np.ndarray) -> Network:
    """Return the network with other rates of its directed links.

    A leaf that lost one of several cables to a switch uses the others in its place: the path down from that switch
    need not be over the cable of the same number.
    """
    return replace(network, gbps=gbps, up_paths=tuple(_reseat(up_paths, gbps > 0) for up_paths in network.up_paths))


def _reseat(up_paths: UpPaths, alive: np.ndarray) -> UpPaths:
    if not up_paths.bundles:
        return up_paths
    links, usable = up_paths.links.copy(), up_paths.usable(alive)
    for bundle in up_paths.bundles:
        works = usable[:, bundle]
        for leaf in np.flatnonzero(works.any(axis=1) & ~works.all(axis=1)).tolist():
            rest = up_paths.links[leaf, np.array(bundle)[works[leaf]]]
            for number, seat in enumerate(np.array(bundle)[~works[leaf]].tolist()):
                links[leaf, seat] = rest[number % len(rest)]
    return replace(up_paths, links=links)


def find_directed_links(network: Network, names: Iterable[str]) -> np.ndarray:
    """Return the links of links, switches, NICs and hosts, or raise BadInput with all names that are unknown."""
    wanted = list(names)
    if unknown := [name for name in wanted if name not in network.parts]:
        raise BadInput(f"this topology has no part named {', '.join(unknown)}")
    return np.array(sorted({link for name in wanted for link in network.parts[name]}), np.int64)


def _name_parts(topology: Topology) -> dict[str, list[int]]:
    kinds = {node.id: node.kind for node in topology.nodes}
    known: dict[str, list[int]] = defaultdict(list)
    for index, link in enumerate(topology.links):
        names = {link.id, link_name(link), f"link:{link.id}"}
        for end in (link.a, link.b):
            node, _ = split_end(end)
            names |= {node, f"{kinds[node]}:{node}", end, f"nic:{end}"}
        for name in names:
            known[name] += [2 * index, 2 * index + 1]
    return known


def _find_heights(topology: Topology) -> dict[str, int]:
    """Return how high each node is: hosts 0, leaves 1, and so on, as told or by the distance from hosts."""
    reported = {node.id: 0 if node.kind == "host" else _HEIGHT.get(node.tier or "") for node in topology.nodes}
    pairs = ((split_end(link.a)[0], split_end(link.b)[0]) for link in topology.links)
    # What is told is not searched: a switch of unknown tier is as high as it is far from hosts over others like it.
    unknown = join_nodes(pairs, reported).subgraph([name for name, height in reported.items() if not height])
    found = count_hops(unknown, *(name for name, height in reported.items() if height == 0))
    return {name: height for name in reported if (height := reported[name] or found.get(name)) is not None}


def _sort_directed_links(
    topology: Topology, height: Mapping[str, int], leaf_number: Mapping[str, int]
) -> tuple[dict[str, list[tuple[str, int]]], dict[str, tuple[int, int]]]:
    """Return the directed links that go up, by the switch where they begin, and the ports of hosts."""
    upward: dict[str, list[tuple[str, int]]] = defaultdict(list)
    ports: dict[str, tuple[int, int]] = {}
    for index, link in enumerate(topology.links):
        for near, far, directed_link in ((link.a, link.b, 2 * index), (link.b, link.a, 2 * index + 1)):
            low, high = split_end(near)[0], split_end(far)[0]
            if height.get(low) == 0 and high in leaf_number:
                ports[near] = directed_link, leaf_number[high]
            elif 0 < height.get(low, 0) < height.get(high, 0):
                upward[low].append((high, directed_link))
    return upward, ports


def _find_up_paths(leaves: tuple[str, ...], upward: Mapping[str, list[tuple[str, int]]]) -> Iterable[UpPaths]:
    """Yield the up paths of ever greater height, while there is anything higher."""
    reached: list[list[tuple[str, tuple[int, ...]]]] = [[(leaf, ())] for leaf in leaves]
    while True:
        reached = [
            [(high, (*links, link)) for spine, links in up_paths for high, link in upward.get(spine, ())]
            for up_paths in reached
        ]
        if not any(reached):
            return
        yield _tabulate(reached)


def _tabulate(reached: list[list[tuple[str, tuple[int, ...]]]]) -> UpPaths:
    """Return up paths as a table; a leaf with fewer cables to a switch than others uses them by turns."""
    by_spine: list[dict[str, list[tuple[int, ...]]]] = []
    for up_paths in reached:
        mine: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        for spine, links in up_paths:
            mine[spine].append(links)
        by_spine.append(mine)
    names = list(dict.fromkeys(spine for mine in by_spine for spine in mine))
    times = {spine: max(len(mine.get(spine, ())) for mine in by_spine) for spine in names}
    seats = [(spine, number) for spine in names for number in range(times[spine])]
    steps = len(next(links for up_paths in reached for _, links in up_paths))
    table = np.full((len(reached), len(seats), steps), NONE, np.int64)
    for leaf, mine in enumerate(by_spine):
        for seat, (spine, number) in enumerate(seats):
            if paths := mine.get(spine):
                table[leaf, seat] = paths[number % len(paths)]
    bundles = tuple(
        tuple(seat for seat, (name, _) in enumerate(seats) if name == spine) for spine in names if times[spine] > 1
    )
    return UpPaths(
        tuple(spine if times[spine] == 1 else f"{spine}#{number}" for spine, number in seats), table, bundles
    )


# NCCL over RoCE and InfiniBand takes no source port from anybody; over RoCE path_shim can give it one. What it
# honours are variables, the order of ranks and a topology file. Hosts that share a leaf belong next to each other: a
# hop of a ring that stays inside a leaf is no load for the fabric. And NICs keep to their rail and plane.

_MOST_QUEUE_PAIRS = 4  # of a connection: more add memory and little evenness, 4 over 8 spines are even in practice


@dataclass(frozen=True, slots=True)
class NcclAdvice:
    """For one job: variables that all its processes get, those of single hosts, and the order of hosts."""

    variables: dict[str, str]
    by_host: dict[str, dict[str, str]] = field(default_factory=dict)
    host_order: tuple[str, ...] = ()
    crossings: tuple[int, int] = (0, 0)  # hops of a ring that leave a leaf: as given, and in this order
    notes: tuple[str, ...] = ()


def advise_nccl(network: Network, hosts: Sequence[str]) -> NcclAdvice:
    """Return what to set for a job on these hosts, whose NICs are named as the RDMA devices are."""
    order = order_hosts(network, hosts)
    spines = max((len(up_paths.spines) for up_paths in network.up_paths), default=0)
    several = min(_MOST_QUEUE_PAIRS, spines)
    variables = {"NCCL_CROSS_NIC": "0"}  # a ring uses the same NIC on all hosts: left to left, rail to rail
    if network.topology.routing == "ecmp" and several > 1:
        variables |= {"NCCL_IB_QPS_PER_CONNECTION": str(several), "NCCL_IB_SPLIT_DATA_ON_QPS": "1"}
    if network.topology.routing == "adaptive":
        variables |= {"NCCL_IB_ADAPTIVE_ROUTING": "1"}
    by_host = dict(_choose_nics(network, order))
    crossings = count_crossings(network, hosts), count_crossings(network, order)
    return NcclAdvice(variables, by_host, tuple(order), crossings, tuple(_note(crossings, by_host)))


def order_hosts(network: Network, hosts: Sequence[str]) -> list[str]:
    """Return hosts so that those under one leaf, and then those of one pod, follow each other."""
    pods = network.joined_below(min(len(network.up_paths), 1))
    leaves = _leaves_of(network)
    leaf_of = {host: leaves.get(host, -1) for host in hosts}  # those that the topology does not know come first
    return sorted(hosts, key=lambda host: (pods[leaf_of[host]] if leaf_of[host] >= 0 else -1, leaf_of[host]))


def count_crossings(network: Network, hosts: Sequence[str]) -> int:
    """Return how many hops of a ring over these hosts, in this order, leave a leaf."""
    known = _leaves_of(network)
    leaves = [known.get(host, -1) for host in hosts]
    return sum(near != far for near, far in zip(leaves, leaves[1:] + leaves[:1], strict=True))


def _choose_nics(network: Network, hosts: Iterable[str]) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield for each host the NICs whose cables carry something, where that is not all of them."""
    nics: dict[str, list[tuple[str, bool]]] = {}
    for name, (link, _) in network.ports.items():
        host, _, nic = name.partition("/")
        nics.setdefault(host, []).append((nic, bool(network.gbps[link] > 0)))
    for host in hosts:
        alive = [nic for nic, is_alive in nics.get(host, ()) if is_alive]
        if 0 < len(alive) < len(nics[host]):
            yield host, {"NCCL_IB_HCA": "=" + ",".join(alive)}


def _leaves_of(network: Network) -> dict[str, int]:
    """Return the leaf of each host; of several, the first."""
    leaves: dict[str, int] = {}
    for name, (_, leaf) in network.ports.items():
        host = name.partition("/")[0]
        leaves[host] = min(leaf, leaves.get(host, leaf))
    return leaves


def _note(crossings: tuple[int, int], by_host: dict[str, dict[str, str]]) -> Iterable[str]:
    yield "this is advice: NCCL takes no source port over RoCE and InfiniBand; over RoCE path_shim gives it one"
    if crossings[1] < crossings[0]:
        yield f"in this order of hosts {crossings[1]} hops of a ring leave a leaf instead of {crossings[0]}"
    for host, variables in by_host.items():
        yield f"{host} goes without the NICs that carry nothing: NCCL_IB_HCA{variables['NCCL_IB_HCA']}"
