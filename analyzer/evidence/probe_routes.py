"""Probes by the way they took: how many were sent, lost and late on each.

A probe is late when its round trip is far above what is usual for as many hops. What is usual is the median over all
probes, so that it stands as long as fewer than half of them are slow.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.delay_matrix.matrix import Pair, Paths
from analyzer.windows.columns import filled
from analyzer.windows.window import End, Window
from lockstep.store.store import Store
from lockstep.topology import Link, TopologyIndex, link_name, split_end
from lockstep.verdict import Side

JOIN = ">"  # between the hops of a route; no node's name may hold it, or it would be two
_LATE_TIMES = 1.5  # a queue may double what the path takes, so less would find nothing but load
_LATE_SIGMAS = 6.0  # of the spread between probes: one in 10^9, if round trips were normal
_MAD_TO_SIGMA = 1.4826  # for normally distributed round trips
_KEYS = ("host", "src_nic", "dst", "dst_nic", "route")

_USUAL = """
SELECT /*ask,*/ length(hops) AS hop_count, quantileExact(0.5)(rtt_ns) AS middle_ns,
       quantileExact(0.75)(rtt_ns) - quantileExact(0.25)(rtt_ns) AS between_ns
FROM probes WHERE rtt_ns IS NOT NULL AND ts_ns >= {start:Int64} AND ts_ns < {end:Int64} GROUP BY /*ask,*/ hop_count
"""
_FLOWS = """
SELECT /*ask,*/ host, src_nic, dst, dst_nic, arrayStringConcat(hops, '>') AS route, count() AS sent,
       countIf(rtt_ns IS NULL) AS lost,
       countIf(rtt_ns > transform(length(hops), {counts:Array(UInt64)}, {limits:Array(Float64)}, inf)) AS delayed
FROM probes WHERE ts_ns >= {start:Int64} AND ts_ns < {end:Int64}
GROUP BY /*ask,*/ host, src_nic, dst, dst_nic, route ORDER BY host, src_nic, dst, dst_nic, route
"""


@dataclass(frozen=True)
class Flows:
    """One row per way that probes took, in parallel arrays."""

    keys: pa.Table  # host, src_nic, dst, dst_nic, route (node ids joined; empty: unknown)
    sent: np.ndarray
    lost: np.ndarray
    delayed: np.ndarray  # of those that were answered

    def __len__(self) -> int:
        return len(self.sent)


def read_flows(store: Store, window: Window) -> Flows:
    """Return the probes that were sent in a stretch of time."""
    span = {"start": window.start_ns, "end": window.end_ns}
    usual = store.query(_USUAL, span)
    middle, between = (_numbers(usual[name]) for name in ("middle_ns", "between_ns"))
    # Half of what lies between the quartiles is the median deviation.
    limits = np.maximum(_LATE_TIMES * middle, middle + _LATE_SIGMAS * _MAD_TO_SIGMA * between / 2)
    counts = usual["hop_count"].to_pylist()
    rows = store.query(_FLOWS, {**span, "counts": counts or [0], "limits": limits.tolist() or [np.inf]})
    sent, lost, delayed = (_numbers(rows[name]) for name in ("sent", "lost", "delayed"))
    return Flows(rows.select(list(_KEYS)), sent, lost, delayed)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return filled(column.cast(pa.float64()), 0.0)


@dataclass(frozen=True)
class Routes:
    """Directed links by number (2 n from a to b of link n, 2 n + 1 back), and an entry per flow and link."""

    links: tuple[Link, ...]
    flow: np.ndarray
    directed_link: np.ndarray  # number of the directed link
    share: np.ndarray  # probability that the flow crosses it; 1 where the route is known
    hosts: frozenset[str]

    def is_plug(self, end: str) -> bool:
        """Return whether an end of a link is a host's."""
        return split_end(end)[0] in self.hosts

    def name(self, directed_link: int) -> tuple[str, Side]:
        """Return the link of a directed link, and which direction it is."""
        return link_name(self.links[directed_link // 2]), "rx" if directed_link % 2 else "tx"


def find_routes(flows: Flows, topology: TopologyIndex) -> Routes:
    """Return what each flow crosses; what the topology does not know is left out."""
    links = topology.topology.links
    hosts = frozenset(host.id for host in topology.topology.hosts)
    flow, directed_link = _known_routes(flows, links, hosts)
    pieces = [(flow, directed_link, np.ones(len(flow))), *_unknown_routes(flows, topology)]
    flows_of, directed_links, shares = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return Routes(links, flows_of, directed_links, shares, hosts)


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
    directed_links = _find_directed_links(codes[here], codes[here + 1], node.dictionary.to_pylist(), links, hosts)
    return flow[here][directed_links >= 0], directed_links[directed_links >= 0]


def _find_directed_links(
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
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[index] == wanted, known[first[index], 2], -1)


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
        pair = Pair(End(key["host"], key["src_nic"]), End(key["dst"], key["dst_nic"]))
        if leaves := spread.leaves(pair):
            numbers[leaves].append((number, pair))
    for same in numbers.values():
        directed_links, share = spread.between(same[0][1])
        flow = np.array([number for number, _ in same])
        yield np.repeat(flow, len(directed_links)), np.tile(directed_links, len(flow)), np.tile(share, len(flow))
        plugs = np.array([spread.plugs(pair) for _, pair in same])
        yield np.repeat(flow, 2), plugs.ravel(), np.ones(2 * len(flow))


class Spread:
    """Where flows of unknown route go: their own cables for sure, and all shortest ways between their leaves."""

    def __init__(self, topology: TopologyIndex) -> None:
        self._topology, self._paths = topology, Paths(topology)
        self._number = {link_name(link): number for number, link in enumerate(topology.topology.links)}

    def leaves(self, pair: Pair) -> tuple[str, str] | None:
        """Return the leaves of both ends, or None where one of them is not known."""
        near, far = (self._topology.leaf_of(end.host, end.nic or "") for end in (pair.src, pair.dst))
        return (near, far) if near and far else None

    def between(self, pair: Pair) -> tuple[np.ndarray, np.ndarray]:
        """Return the directed links between the leaves of a pair, and the share of flows that each of them takes."""
        hops = [hop for hop in self._paths.hops(pair) if hop.side]
        directed_links = [2 * self._number[hop.name] + (hop.side == "rx") for hop in hops]
        return np.array(directed_links, np.int64), np.array([hop.share for hop in hops], np.float64)

    def plugs(self, pair: Pair) -> tuple[int, int]:
        """Return the directed links that lead from the source to its leaf, and from the other leaf to the target."""
        return self._plug(pair.src, 0), self._plug(pair.dst, 1)

    def _plug(self, end: End, inwards: int) -> int:
        link = self._topology.host_link(end.host, end.nic or "")
        if link is None:
            raise ValueError(f"{end} has a leaf, but no cable")
        return 2 * self._number[link_name(link)] + (inwards if link.a == str(end) else 1 - inwards)
