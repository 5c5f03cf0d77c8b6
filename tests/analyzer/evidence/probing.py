"""Flows of probes across a fat tree, each over a known route, of which faulty links lose some; from a seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from analyzer.evidence.probe_routes import JOIN, Flows
from lockstep.fabrics import fat_tree
from lockstep.topology import Link, Nic, Node, Topology, TopologyIndex, link_name, split_end

Way = tuple[str, str]  # from node to node; hosts without their NIC


def tree(k: int, hosts_per_leaf: int | None = None) -> TopologyIndex:
    """Return a fat tree of switches with k ports, with as many hosts on a leaf as wanted."""
    bare = fat_tree(k)
    leaves = [node.id for node in bare.switches if node.tier == "leaf"]
    homes = [leaf for leaf in leaves for _ in range(hosts_per_leaf or k // 2)]
    hosts = [Node(id=f"h{number}", kind="host", nics=(Nic(id="eth0"),)) for number in range(len(homes))]
    cables = [Link(id=f"h{n}/eth0--{leaf}", a=f"h{n}/eth0", b=leaf, gbps=400) for n, leaf in enumerate(homes)]
    above = [link for link in bare.links if split_end(link.a)[1] is None]
    return TopologyIndex(Topology(routing="ecmp", nodes=(*hosts, *bare.switches), links=(*cables, *above)))


@dataclass(frozen=True)
class Fabric:
    """A fat tree and where everything is in it, for choosing ways quickly."""

    index: TopologyIndex
    k: int

    @property
    def hosts(self) -> int:
        return len(self.index.topology.hosts)

    def directed_link(self, src: int, dst: int, random: np.random.Generator) -> list[str]:
        """Return the switches on one of the shortest ways between two hosts."""
        half, per_leaf = self.k // 2, self.hosts * 2 // self.k**2
        (a, b), (up, over) = divmod(src // per_leaf, half), random.integers(half, size=2).tolist()
        c, d = divmod(dst // per_leaf, half)
        first, last = f"pod{a}-leaf{b}", f"pod{c}-leaf{d}"
        if first == last:
            return [first]
        if a == c:
            return [first, f"pod{a}-spine{up}", last]
        return [first, f"pod{a}-spine{up}", f"core{up * half + over}", f"pod{c}-spine{up}", last]


@dataclass(frozen=True)
class Losing:
    """How much each way of a link loses or delays; everything else loses `background`."""

    loss: Mapping[Way, float]
    background: float = 1e-5
    is_delayed: bool = False


def flows(fabric: Fabric, count: int, each: int, losing: Losing, seed: int, *, unknown: float = 0.0) -> Flows:
    """Return so many flows of so many probes each; a share of the flows does not know its route."""
    random = np.random.default_rng(seed)
    src = random.integers(fabric.hosts, size=count)
    dst = (src + random.integers(1, fabric.hosts, size=count)) % fabric.hosts
    ends = list(zip((f"h{a}" for a in src.tolist()), (f"h{b}" for b in dst.tolist()), strict=True))
    routes = [fabric.directed_link(a, b, random) for a, b in zip(src.tolist(), dst.tolist(), strict=True)]
    survives = [_survival([a, *route, b], losing) for (a, b), route in zip(ends, routes, strict=True)]
    hidden = (random.random(count) < unknown).tolist()
    hit = random.binomial(each, 1 - np.array(survives)).astype(np.float64)
    nics = ["eth0"] * count
    keys = {"host": [a for a, _ in ends], "src_nic": nics, "dst": [b for _, b in ends], "dst_nic": nics}
    told = ["" if is_hidden else JOIN.join(route) for route, is_hidden in zip(routes, hidden, strict=True)]
    none = np.zeros(count)
    lost, delayed = (none, hit) if losing.is_delayed else (hit, none)
    return Flows(pa.table({**keys, "route": told}), np.full(count, float(each)), lost, delayed)


def _survival(route: list[str], losing: Losing) -> float:
    directed_links = pairwise(route)
    return float(np.prod([1 - losing.loss.get(directed_link, losing.background) for directed_link in directed_links]))


def some_ways(fabric: Fabric, count: int, seed: int) -> list[tuple[Way, str]]:
    """Return so many links between switches, one direction each, with their names in verdicts."""
    random = np.random.default_rng([seed, 1])
    links = [link for link in fabric.index.topology.links if split_end(link.a)[1] is None]
    chosen = [links[number] for number in random.choice(len(links), count, replace=False).tolist()]
    pairs = zip(chosen, (random.random(count) < 0.5).tolist(), strict=True)
    return [((link.b, link.a) if back else (link.a, link.b), link_name(link)) for link, back in pairs]
