"""The pairs between NICs: which links a flow takes, and what is left for it when others take them too.

Links work both ways and are counted twice, once per direction. A flow between leaves takes one of the spines that
both leaves reach, chosen by a hash of its five-tuple as a switch with ECMP does, or as a plan says. Rates are max-min
fair (lockstep/fair_rates.py).
"""

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lockstep.errors import BadScenario
from lockstep.fair_rates import fair_rates
from lockstep.topology import Topology, split_end
from simulator.collectives import Tree, binary_tree
from simulator.job import ChannelTable, Placement, build_channel_table, nics_on
from simulator.pairs import Floats, Ints
from simulator.scenario import GroupKind

BYTES_PER_NS = 1 / 8  # at 1 Gb/s
_HOPS = 4  # up to the leaf, to a spine, to the other leaf, down to the host


class Network:
    """The links of a topology by number: 2 n from a to b and 2 n + 1 back for the n-th link; the last is no link."""

    def __init__(self, topology: Topology, nics_per_host: int) -> None:
        self.links = topology.links
        self.nowhere = 2 * len(topology.links)
        self.capacity = np.append(np.repeat([link.gbps * BYTES_PER_NS for link in topology.links], 2), np.inf)
        switches = [switch.id for switch in topology.switches]
        self._switch = {name: number for number, name in enumerate(switches)}
        self._between = np.full((len(switches), len(switches)), -1)  # directed link from a switch to another
        hosts = {host.id: number for number, host in enumerate(topology.hosts)}
        nics = len(hosts) * nics_per_host
        self._up, self._down, self._leaf = (np.full(nics, -1) for _ in range(3))
        for number, link in enumerate(self.links):
            (a, a_port), (b, _) = split_end(link.a), split_end(link.b)
            if a in hosts:  # fabrics name the host first
                nic = hosts[a] * nics_per_host + int((a_port or "eth0").removeprefix("eth"))
                self._up[nic], self._down[nic], self._leaf[nic] = 2 * number, 2 * number + 1, self._switch[b]
            else:
                low, high = self._switch[a], self._switch[b]
                self._between[low, high], self._between[high, low] = 2 * number, 2 * number + 1
        self._reach = (self._between >= 0) & (self._between.T >= 0)

    def choose_paths(self, src: Ints, dst: Ints, keys: Ints) -> Ints:
        """Return the directed links of each flow from NIC to NIC, four a row, filled up with `nowhere`.

        `keys` choose among the spines that both leaves reach: hashes for ECMP, or numbers in turn for a plan.
        """
        paths = np.full((len(src), _HOPS), self.nowhere)
        paths[:, 0], paths[:, 3] = self._up[src], self._down[dst]
        for leaves in set(zip(self._leaf[src].tolist(), self._leaf[dst].tolist(), strict=True)):
            if leaves[0] != leaves[1]:
                mine = np.flatnonzero((self._leaf[src] == leaves[0]) & (self._leaf[dst] == leaves[1]))
                self._cross(paths, mine, leaves, keys)
        return paths

    def _cross(self, paths: Ints, flows: Ints, leaves: tuple[int, int], keys: Ints) -> None:
        spines = np.flatnonzero(self._reach[leaves[0]] & self._reach[leaves[1]])
        if not len(spines):
            raise BadScenario("two NICs of one job have no way to each other: planes are never joined")
        chosen = spines[keys[flows] % len(spines)]
        paths[flows, 1] = self._between[leaves[0], chosen]
        paths[flows, 2] = self._between[chosen, leaves[1]]

    def links_of(self, name: str) -> list[int]:
        """Return the numbers of a link, in the direction it is written in and back, by its name in verdicts."""
        number = next(number for number, link in enumerate(self.links) if f"{link.a}--{link.b}" == name)
        return [2 * number, 2 * number + 1]

    def links_at(self, switch: str) -> list[int]:
        """Return all directed links of a switch."""
        ends = [(split_end(link.a)[0], split_end(link.b)[0]) for link in self.links]
        return [2 * number + direction for number, pair in enumerate(ends) if switch in pair for direction in (0, 1)]

    def links_of_nic(self, nic: int) -> tuple[int, int]:
        """Return the directed links out of a NIC and into it."""
        return int(self._up[nic]), int(self._down[nic])

    def links_between_switches(self) -> Ints:
        return self._between[self._between >= 0]

    def spread_evenly(self, src: Ints, dst: Ints) -> Ints:
        """Return keys that spread the flows that leave a leaf evenly over its spines."""
        keys = np.zeros(len(src), np.int64)
        away = np.flatnonzero(self._leaf[src] != self._leaf[dst])
        order = away[np.argsort(self._leaf[src][away], kind="stable")]
        leaves = self._leaf[src][order]
        keys[order] = np.arange(len(order)) - np.searchsorted(leaves, leaves)
        return keys


def flow_key(*words: object) -> int:
    """Return a number that is as good as random, and the same each time: the hash of a five-tuple."""
    return zlib.crc32(":".join(map(str, words)).encode())


@dataclass(frozen=True)
class Ports:
    """Ports in a fixed order; all columns have the same length."""

    owner: pa.Array  # host or switch
    name: pa.Array
    tx: Ints  # directed link that it sends into
    rx: Ints  # directed link that it receives from
    mbps: Ints

    def __len__(self) -> int:
        return len(self.tx)


def nic_ports(topology: Topology, network: Network) -> Ports:
    """Return the NICs of all hosts, in the order in which the simulation counts them."""
    names = [(host.id, nic.id) for host in topology.hosts for nic in host.nics]
    links = [network.links_of_nic(number) for number in range(len(names))]
    return _ports(topology, [(*name, *directed) for name, directed in zip(names, links, strict=True)])


def switch_ports(topology: Topology) -> Ports:
    """Return the ports of all switches, named after what they lead to: fabrics do not name them."""
    switches = {switch.id for switch in topology.switches}
    ends = [
        (split_end(near)[0], far, 2 * number + direction, 2 * number + 1 - direction)
        for number, link in enumerate(topology.links)
        for direction, (near, far) in enumerate(((link.a, link.b), (link.b, link.a)))
    ]
    return _ports(topology, [end for end in ends if end[0] in switches])


def _ports(topology: Topology, rows: list[tuple[str, str, int, int]]) -> Ports:
    owner, name, tx, rx = zip(*rows, strict=True)
    mbps = np.rint([link.gbps * 1e3 for link in topology.links]).astype(np.int64)
    return Ports(pa.array(owner), pa.array(name), np.array(tx), np.array(rx), mbps[np.array(tx) // 2])


_FIRST_PORT, _PORTS = 49152, 16384  # RoCE's and the kernel's range of source ports


@dataclass(frozen=True)
class Flows:
    """Connections of some groups: between whom, through which NICs and links; all arrays have the same shape."""

    group: Ints  # row of the communicators
    channel: Ints
    src_index: Ints  # rank inside the communicator
    dst_index: Ints
    src: Ints  # world rank
    dst: Ints
    tx_nic: Ints
    rx_nic: Ints
    crosses: NDArray[np.bool_]
    sport: Ints
    paths: Ints  # one more dimension: the directed links

    def rates(self, capacity: Floats, nvlink: float) -> Floats:
        """Return bytes per nanosecond of each connection when all of them send."""
        rates = np.full(self.src.shape, nvlink)
        rates[self.crosses] = fair_rates(self.paths[self.crosses], capacity)
        return rates


class Communicators:
    """All groups of a kind in one attempt."""

    def __init__(self, kind: GroupKind, placement: Placement, network: Network, attempt: int) -> None:
        self.kind, self.placement, self._network = kind, placement, network
        self.members = placement.groups(kind)
        rows = range(len(self.members))
        numbers = [flow_key("comm", attempt, kind, row) << 32 | flow_key(row, kind, attempt) for row in rows]
        self.ids = np.array(numbers, np.uint64)
        self.hosts_in = [len(np.unique(placement.host_of[row])) for row in self.members]
        self._flows: dict[bytes, Flows] = {}

    @property
    def size(self) -> int:
        return int(self.members.shape[1])

    @cached_property
    def channels(self) -> int:
        """One per NIC where a host has several members, else two: NCCL's usual for one GPU a node, and inside one."""
        spans = max(self.hosts_in) > 1
        return self.placement.shape.nics_per_host if spans and self.size > max(self.hosts_in) else 2

    @cached_property
    def channel_table(self) -> ChannelTable:
        return build_channel_table(self.placement, self.members, self.channels)

    def channel_rows(self, groups: Ints) -> Ints:
        """Return the rows of some groups, those of a group together."""
        return (groups[:, None] * self.channels + np.arange(self.channels)).ravel()

    def ring_flows(self, groups: Ints) -> Flows:
        """Return the edges of the rings of some groups, shaped like their rows of the channel table."""
        key = b"ring" + groups.tobytes()
        if key not in self._flows:
            rows, table = self.channel_rows(groups), self.channel_table
            index, rank = table.index[rows], table.rank[rows]
            group, channel = (np.broadcast_to(v[rows][:, None], index.shape) for v in (table.group, table.channel))
            ends = (index, np.roll(index, -1, axis=1), rank, np.roll(rank, -1, axis=1))
            self._flows[key] = self._connect(group, channel, ends, table.tx_nic[rows], table.rx_nic[rows])
        return self._flows[key]

    def tree(self, groups: Ints) -> Tree:
        return binary_tree(len(groups) * self.channels, self.size)

    def tree_flows(self, groups: Ints, tree: Tree, up: bool) -> Flows:
        """Return the edges of the trees of some groups, towards the root or away from it."""
        key = (b"up" if up else b"down") + groups.tobytes()
        if key not in self._flows:
            row = self.channel_rows(groups)[tree.row]
            src, dst = (tree.child, tree.parent) if up else (tree.parent, tree.child)
            src_index, dst_index = self.channel_table.index[row, src], self.channel_table.index[row, dst]
            group, channel = self.channel_table.group[row], self.channel_table.channel[row]
            self._flows[key] = self._between(group, channel, src_index, dst_index)
        return self._flows[key]

    def pair_flows(self, group: Ints, src_index: Ints, dst_index: Ints) -> Flows:
        """Return one connection per pair of members."""
        key = b"pair" + group.tobytes() + src_index.tobytes() + dst_index.tobytes()
        if key not in self._flows:
            self._flows[key] = self._between(group, np.zeros_like(group), src_index, dst_index)
        return self._flows[key]

    def _between(self, group: Ints, channel: Ints, src_index: Ints, dst_index: Ints) -> Flows:
        src, dst = self.members[group, src_index], self.members[group, dst_index]
        plane = channel + src_index + dst_index
        tx, rx = (nics_on(self.placement, ranks, plane) for ranks in (src, dst))
        return self._connect(group, channel, (src_index, dst_index, src, dst), tx, rx)

    def _connect(self, group: Ints, channel: Ints, ends: tuple[Ints, Ints, Ints, Ints], tx: Ints, rx: Ints) -> Flows:
        src_index, dst_index, src, dst = ends
        crosses = self.placement.host_of[src] != self.placement.host_of[dst]
        columns = (self.ids[group[crosses]], src[crosses], dst[crosses], channel[crosses])
        words = zip(*(column.tolist() for column in columns), strict=True)
        keys = np.array([flow_key(*word) for word in words], np.int64)
        sport, paths = np.zeros(src.shape, np.int64), np.full((*src.shape, 4), self._network.nowhere)
        sport[crosses] = _FIRST_PORT + keys % _PORTS
        is_hashed = self.placement.shape.routing == "ecmp"
        chosen = keys // _PORTS if is_hashed else self._network.spread_evenly(tx[crosses], rx[crosses])
        paths[crosses] = self._network.choose_paths(tx[crosses], rx[crosses], chosen)
        return Flows(group, channel, src_index, dst_index, src, dst, tx, rx, crosses, sport, paths)
