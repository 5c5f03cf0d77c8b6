"""Probes across a fat tree, each over a known way, of which faulty links lose some; everything from a seed."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from lockstep.fabrics import fat_tree
from lockstep.topology import Link, Nic, Node, Topology, TopologyIndex, link_name, split_end

Way = tuple[str, str]  # from node to node; hosts without their NIC
RTT_NS = 10_000  # per hop


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

    def way(self, src: int, dst: int, random: np.random.Generator) -> list[str]:
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
    is_late: bool = False


def probes(fabric: Fabric, flows: int, each: int, losing: Losing, seed: int, *, unknown: float = 0.0) -> pa.Table:
    """Return probes of so many flows, so many each; a share of the flows does not know its way."""
    random = np.random.default_rng(seed)
    src = random.integers(fabric.hosts, size=flows)
    dst = (src + random.integers(1, fabric.hosts, size=flows)) % fabric.hosts
    ways = [fabric.way(a, b, random) for a, b in zip(src.tolist(), dst.tolist(), strict=True)]
    routes = [[f"h{a}", *way, f"h{b}"] for a, way, b in zip(src.tolist(), ways, dst.tolist(), strict=True)]
    survives = np.array([_survival(route, losing) for route in routes])
    hidden = random.random(flows) < unknown
    number = np.repeat(np.arange(flows), each)
    is_hit = random.random(len(number)) >= survives[number]
    rtt = RTT_NS * np.array([len(way) for way in ways])[number] * random.normal(1.0, 0.05, len(number))
    rtt = np.where(is_hit & losing.is_late, 5 * rtt, rtt).astype(np.int64)
    hops = pa.array([[] if is_hidden else way for way, is_hidden in zip(ways, hidden.tolist(), strict=True)])
    return pa.table(
        {
            "host": pa.array([f"h{a}" for a in src.tolist()]).take(pa.array(number)),
            "src_nic": pa.array(["eth0"] * len(number)),
            "dst": pa.array([f"h{b}" for b in dst.tolist()]).take(pa.array(number)),
            "dst_nic": pa.array(["eth0"] * len(number)),
            "rtt_ns": pa.array(rtt, mask=is_hit & (not losing.is_late)),
            "hops": hops.take(pa.array(number)),
        }
    )


def _survival(route: list[str], losing: Losing) -> float:
    ways = pairwise(route)
    return float(np.prod([1 - losing.loss.get(way, losing.background) for way in ways]))


def some_ways(fabric: Fabric, count: int, seed: int) -> list[tuple[Way, str]]:
    """Return so many links between switches, one direction each, with their names in verdicts."""
    random = np.random.default_rng([seed, 1])
    links = [link for link in fabric.index.topology.links if split_end(link.a)[1] is None]
    chosen = [links[number] for number in random.choice(len(links), count, replace=False).tolist()]
    pairs = zip(chosen, (random.random(count) < 0.5).tolist(), strict=True)
    return [((link.b, link.a) if back else (link.a, link.b), link_name(link)) for link, back in pairs]
