"""The delay matrix: one cell per pair that was compared, and how much slower than its kind it is."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from analyzer.windows.window import End
from lockstep.topology import Link, TopologyIndex, count_hops, join_nodes, link_name, split_end
from lockstep.verdict import Side


class Pair(NamedTuple):  # for the same reason as its ends
    """One way that bytes take from a GPU of a host to a GPU of another, as exactly as it is known."""

    src: End
    dst: End
    src_gpu: int | None = None  # NVML index, on the sending host
    dst_gpu: int | None = None
    path: tuple[str, ...] | None = None  # ids of the links in order of travel; None: not known which way it takes

    def __str__(self) -> str:
        return f"{self.src}--{self.dst}"


@dataclass(frozen=True, slots=True, order=True)
class InnerGroup:
    """GPUs of one host that a communicator joins."""

    host: str
    gpus: tuple[int, ...]  # NVML indices, as far as they are known


@dataclass(frozen=True)
class InnerMatrix:
    """How slow the links inside hosts are; arrays are parallel to `groups`."""

    groups: tuple[InnerGroup, ...]
    ratio: np.ndarray  # duration of the fastest rank over what is normal for groups of its kind; 1 is normal
    sigmas: np.ndarray  # excess in units of the spread between groups
    slow: np.ndarray  # whether it is slow


@dataclass(frozen=True)
class DelayMatrix:
    """The delay of every pair that was compared; arrays are parallel to `pairs`."""

    pairs: tuple[Pair, ...]
    transports: frozenset[str | None]
    ratio: np.ndarray  # delay over what is normal for its kind; 1 is normal
    sigmas: np.ndarray  # excess in units of the spread between pairs
    slow: np.ndarray  # whether it is slow
    ns_per_byte: np.ndarray
    error: np.ndarray  # by which share the ratio may be off, either way, by chance; infinite: nothing tells
    operations: np.ndarray  # that were measured; channels and transfers of one are no others
    shared: np.ndarray  # times as long as others it usually takes, because its links carry more pairs
    hidden: np.ndarray  # whether nothing tells how long the wire takes, be it slow or not
    has_past: np.ndarray  # whether it was held against what it needed before, and not against others alone
    told_since_ns: int | None = None  # of half of the pairs that are judged by samples, when the oldest of these was
    is_stale: bool = False  # nothing of it is newer than the evaluation before
    starved: frozenset[str] = frozenset()  # hosts whose proxy threads do not keep up: their pairs look slow
    inner: InnerMatrix | None = None  # NVLink and PCIe inside hosts; None: no communicators there to compare

    @property
    def slow_senders(self) -> frozenset[str]:
        """Return the hosts that send over a slow pair."""
        return frozenset(self.pairs[number].src.host for number in np.flatnonzero(self.slow).tolist())

    @property
    def slow_hosts(self) -> frozenset[str]:
        """Return the hosts at either end of a slow pair, or with a slow group of GPUs."""
        receivers = {self.pairs[number].dst.host for number in np.flatnonzero(self.slow).tolist()}
        inner = self.inner
        inside = {inner.groups[number].host for number in np.flatnonzero(inner.slow).tolist()} if inner else set()
        return self.slow_senders | receivers | inside


# Looks over five seconds that begin two seconds apart: three of them span nine seconds, several training steps.
MIN_EVALUATIONS = 3
# First a plain mean, so that the past is known after a few evaluations; later it forgets slowly, over some minutes,
# so that a pair that gets worse little by little does not take its past with it.
MOST_EVALUATIONS = 60
# In one evaluation what is usual moves by so many times what it used to differ by, which is at least so much: one in
# which a fault begins must not teach that the pair is slow by nature.
_MOST_SWINGS, _LEAST_SWING = 3.0, 0.02
# A row that was not seen for this many evaluations is forgotten: its communicator is gone, or its size of operation.
FORGOTTEN_AFTER = 300


# Evaluations in which it is remembered who was slowest, and of those the share in which it is as slow or faster.
_RECENT, _OFTEN = 16, 0.75


@dataclass(frozen=True, slots=True)
class SlowPair:
    """One of the slowest pairs of an evaluation."""

    delay: float  # nanoseconds per byte
    src: str  # hosts
    dst: str


def _is_elsewhere(slow: SlowPair, pair: Pair, near: set[str], follows: bool, beside: Set[tuple[str, str]]) -> bool:
    if follows:
        return pair.src.host != slow.src and pair.dst.host != slow.dst
    return slow.src not in near and slow.dst not in near and (slow.src, slow.dst) not in beside


@dataclass(frozen=True)
class Past:
    """What is remembered of some rows."""

    log_delay: np.ndarray  # NaN where too little is known
    swing: np.ndarray  # mean difference from evaluation to evaluation, 0 where unknown


@dataclass(frozen=True)
class PairMemory:
    """The usual delay of every row of the matrix, by key; arrays are parallel and sorted by key."""

    keys: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    log_delay: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of nanoseconds per byte
    swing: np.ndarray = field(
        default_factory=lambda: np.zeros(0)
    )  # by how much that differs from evaluation to evaluation
    evaluations: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # that it was learnt from
    unseen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # looks since
    # Of each kind of delay, by key: its slowest pairs in each of the last evaluations, without those that were named.
    slowest: Mapping[int, tuple[tuple[SlowPair, ...], ...]] = field(default_factory=dict)

    @property
    def has_past(self) -> bool:
        """Return whether anything is known well enough to be held against."""
        return bool((self.evaluations >= MIN_EVALUATIONS).any())

    def recall(self, keys: np.ndarray) -> "Past":
        """Return the usual delay of each row, NaN where too little is known of it."""
        if not len(self.keys):
            return Past(np.full(len(keys), np.nan), np.zeros(len(keys)))
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = (self.keys[index] == keys) & (self.evaluations[index] >= MIN_EVALUATIONS)
        return Past(np.where(known, self.log_delay[index], np.nan), np.where(known, self.swing[index], 0.0))

    def learn(self, keys: np.ndarray, log_delay: np.ndarray) -> "PairMemory":
        """Return the memory after one more look at these rows; of rows with one key, the last counts."""
        keys, first = np.unique(keys[::-1], return_index=True)
        log_delay = log_delay[::-1][first]
        index = np.minimum(np.searchsorted(self.keys, keys), max(len(self.keys) - 1, 0))
        known = self.keys[index] == keys if len(self.keys) else np.zeros(len(keys), bool)
        past, swing, evaluations, unseen = (
            self.log_delay.copy(),
            self.swing.copy(),
            self.evaluations.copy(),
            self.unseen + 1,
        )
        into = index[known]
        evaluations[into] = np.minimum(evaluations[into] + 1, MOST_EVALUATIONS)
        most = _MOST_SWINGS * np.maximum(swing[into], _LEAST_SWING)
        moved = np.clip(log_delay[known] - past[into], -most, most)
        swing[into] += (np.abs(moved) - swing[into]) / (evaluations[into] - 1)
        past[into] += moved / evaluations[into]
        unseen[into] = 0
        kept = unseen <= FORGOTTEN_AFTER
        fresh = ~known
        merged = np.concatenate([self.keys[kept], keys[fresh]])
        order = np.argsort(merged, kind="stable")
        return PairMemory(
            keys=merged[order],
            log_delay=np.concatenate([past[kept], log_delay[fresh]])[order],
            swing=np.concatenate([swing[kept], np.zeros(int(fresh.sum()))])[order],
            evaluations=np.concatenate([evaluations[kept], np.ones(int(fresh.sum()), np.int64)])[order],
            unseen=np.concatenate([unseen[kept], np.zeros(int(fresh.sum()), np.int64)])[order],
            slowest=self.slowest,
        )

    def slowest_elsewhere(self, kind: int, pair: Pair, follows: bool, beside: Set[tuple[str, str]]) -> float:
        """Return what the slowest pair of a kind used to take that is elsewhere; 0: nobody knows.

        That is one that neither begins nor ends where this one does; and where a pair is slow by itself alone, one of
        other hosts, which are not those of a pair that is slow beside it: what a NIC sends is slow along with what it
        receives, and two that are slow at once do not take turns.
        """
        near = {pair.src.host, pair.dst.host}
        most = [
            max((slow.delay for slow in evaluation if _is_elsewhere(slow, pair, near, follows, beside)), default=0.0)
            for evaluation in self.slowest.get(kind, ())
        ]
        return float(np.quantile(most, _OFTEN)) if most else 0.0

    def learn_slowest(self, found: Mapping[int, tuple[SlowPair, ...]]) -> "PairMemory":
        """Return the memory after one more evaluation, with its slowest pairs by kind."""
        known = {kind: (*self.slowest.get(kind, ()), pairs)[-_RECENT:] for kind, pairs in found.items()}
        return replace(self, slowest={**self.slowest, **known})


@dataclass(frozen=True, slots=True)
class Hop:
    """A link between switches in the direction of travel, or a switch (then without a side), that a pair may use."""

    name: str  # as in verdicts for a link, the id of a switch
    side: Side | None
    share: float  # probability that a pair runs over it


# What pairs share that run over the same links: two hosts and a path, or leaves between which none is known, two for
# each port.
PathKey = tuple[str, str, tuple[str, ...]] | tuple[tuple[str | None, str | None], ...]


class Paths:
    """Answers for one topology; unknown links, hosts and NICs lead nowhere."""

    def __init__(self, topology: TopologyIndex) -> None:
        self._topology = topology
        self._links = {link.id: link for link in topology.topology.links}
        self._switches = frozenset(node.id for node in topology.topology.switches)
        self._spread: dict[PathKey, tuple[Hop, ...]] = {}
        self._gbps: dict[tuple[str, str], float] = {}

    def hops(self, pair: Pair) -> tuple[Hop, ...]:
        """Return the links between switches and the switches that a pair runs over, each with its probability.

        NICs that NCCL uses as one carry a part of it each, the first to the first.
        """
        if pair.path:
            return tuple(self._walk(pair.src.host, pair.path))
        key = self.path_of(pair)
        if key not in self._spread:
            shares: dict[tuple[str, Side | None], float] = defaultdict(float)
            ports = _ports_of(pair)
            for ends in ports:
                for hop in self._between_ports(*ends):
                    shares[hop.name, hop.side] += hop.share / len(ports)
            self._spread[key] = tuple(Hop(name, side, share) for (name, side), share in shares.items())
        return self._spread[key]

    def _between_ports(self, src: End, dst: End) -> Iterator[Hop]:
        near, far = self.leaf_of(src), self.leaf_of(dst)
        if near is None or far is None:
            return (Hop(leaf, None, 1.0) for leaf in (near, far) if leaf)
        return _spread(near, far, self._between(src, dst))

    def path_of(self, pair: Pair) -> PathKey:
        """Return what a pair has in common with all that run over the same links."""
        if pair.path:
            return pair.src.host, pair.dst.host, pair.path
        return tuple((self.leaf_of(src), self.leaf_of(dst)) for src, dst in _ports_of(pair))

    def gbps_of(self, pair: Pair) -> float:
        """Return what the links between a pair's leaves let one flow have, on the widest way; infinite: unknown."""
        if pair.path:
            return min((self._links[link].gbps for link in pair.path if link in self._links), default=math.inf)
        near, far = self.leaf_of(pair.src), self.leaf_of(pair.dst)
        if near is None or far is None or near == far:
            return math.inf
        if (near, far) not in self._gbps:
            self._gbps[near, far] = _widest(near, far, self._between(pair.src, pair.dst))
        return self._gbps[near, far]

    def leaf_of(self, end: End) -> str | None:
        """Return the leaf of a NIC; where the NIC is unknown, the one leaf that all NICs of the host are on."""
        if end.nic:
            return self._topology.leaf_of(end.host, end.nic)
        leaves = {self._topology.leaf_of(end.host, each.id) for each in self._topology.nics_of(end.host)}
        return leaves.pop() if len(leaves) == 1 else None

    def _between(self, src: End, dst: End) -> list[Link]:
        src_nic, dst_nic = self._some_nic(src.host, src.nic), self._some_nic(dst.host, dst.nic)
        links = self._topology.links_between(src.host, src_nic, dst.host, dst_nic)
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


def _ports_of(pair: Pair) -> tuple[tuple[End, End], ...]:
    """Return the ends of a pair port by port, where NICs are known as several.

    >>> [(str(src), str(dst)) for src, dst in _ports_of(Pair(End("h0", "eth0,eth1"), End("h1", "eth2,eth3")))]
    [('h0/eth0', 'h1/eth2'), ('h0/eth1', 'h1/eth3')]
    """
    near, far = ((end.nic or "").split(",") for end in (pair.src, pair.dst))
    if len(near) == len(far) == 1:
        return ((pair.src, pair.dst),)
    return tuple(
        (End(pair.src.host, near[port % len(near)] or None), End(pair.dst.host, far[port % len(far)] or None))
        for port in range(max(len(near), len(far)))
    )


@lru_cache(maxsize=1)
def paths_through(topology: TopologyIndex) -> Paths:
    """Return the paths of a topology, kept: there are a thousand times as many pairs."""
    return Paths(topology)


def _widest(near: str, far: str, links: list[Link]) -> float:
    """Return the highest rate of which every link has as much on some way; infinite where none is known.

    >>> links = [Link(id=str(gbps), a="leaf0/1", b="leaf1/1", gbps=gbps) for gbps in (40, 100)]
    >>> _widest("leaf0", "leaf1", links)
    100.0
    """
    for gbps in sorted({link.gbps for link in links}, reverse=True):
        ends = [(split_end(link.a)[0], split_end(link.b)[0]) for link in links if link.gbps >= gbps]
        if far in count_hops(join_nodes(ends, [near]), near):
            return gbps
    return math.inf


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
    hops = count_hops(join_nodes(((here, there) for here in around for there, _ in around[here]), [far]), far)
    return {
        here: [(there, link) for there, link in around[here] if hops[there] < hops[here]]
        for here in hops
        if here != far
    }
