"""The communicators of an attempt: their ids, members and channels, and the way of every connection between hosts."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lockstep.sim.collectives import Tree, binary_tree
from lockstep.sim.network import Floats, Network, fair_rates, flow_key
from lockstep.sim.placement import Ints, Lanes, Placement, build_lanes, nics_on
from lockstep.sim.story import GroupKind

_FIRST_PORT, _PORTS = 49152, 16384  # RoCE's and the kernel's range of source ports


@dataclass(frozen=True)
class Flows:
    """Connections of some groups: between whom, through which NICs and links; all arrays have the same shape."""

    group: Ints  # row of the communicators
    channel: Ints
    src_place: Ints  # rank inside the communicator
    dst_place: Ints
    src: Ints  # world rank
    dst: Ints
    tx_nic: Ints
    rx_nic: Ints
    crosses: NDArray[np.bool_]
    sport: Ints
    paths: Ints  # one more dimension: the directed links

    def rates(self, capacity: Floats, nvlink: float, share: Ints | float = 1) -> Floats:
        """Return bytes per nanosecond of each connection when all of them send."""
        rates = np.full(self.src.shape, nvlink) / share
        rates[self.crosses] = fair_rates(self.paths[self.crosses], capacity)
        return rates


class Communicators:
    """All groups of a kind in one attempt."""

    def __init__(self, kind: GroupKind, placement: Placement, network: Network, attempt: int) -> None:
        self.kind, self.placement, self._network = kind, placement, network
        self.members = placement.groups(kind)
        self.ids = np.array([_comm_id(attempt, kind, row) for row in range(len(self.members))], np.uint64)
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
    def lanes(self) -> Lanes:
        return build_lanes(self.placement, self.members, self.channels)

    def lanes_of(self, groups: Ints) -> Ints:
        """Return the rows of the lanes of some groups, those of a group together."""
        return (groups[:, None] * self.channels + np.arange(self.channels)).ravel()

    def ring_flows(self, groups: Ints) -> Flows:
        """Return the edges of the rings of some groups, shaped like their lanes."""
        key = b"ring" + groups.tobytes()
        if key not in self._flows:
            rows, lanes = self.lanes_of(groups), self.lanes
            place, rank = lanes.place[rows], lanes.rank[rows]
            group, channel = (np.broadcast_to(v[rows][:, None], place.shape) for v in (lanes.group, lanes.channel))
            ends = (place, np.roll(place, -1, axis=1), rank, np.roll(rank, -1, axis=1))
            self._flows[key] = self._connect(group, channel, ends, lanes.tx_nic[rows], lanes.rx_nic[rows])
        return self._flows[key]

    def tree(self, groups: Ints) -> Tree:
        return binary_tree(len(groups) * self.channels, self.size)

    def tree_flows(self, groups: Ints, tree: Tree, up: bool) -> Flows:
        """Return the edges of the trees of some groups, towards the root or away from it."""
        key = (b"up" if up else b"down") + groups.tobytes()
        if key not in self._flows:
            lane = self.lanes_of(groups)[tree.lane]
            src, dst = (tree.child, tree.parent) if up else (tree.parent, tree.child)
            src_place, dst_place = self.lanes.place[lane, src], self.lanes.place[lane, dst]
            group, channel = self.lanes.group[lane], self.lanes.channel[lane]
            self._flows[key] = self._between(group, channel, src_place, dst_place)
        return self._flows[key]

    def pair_flows(self, group: Ints, src_place: Ints, dst_place: Ints) -> Flows:
        """Return one connection per pair of members."""
        key = b"pair" + group.tobytes() + src_place.tobytes() + dst_place.tobytes()
        if key not in self._flows:
            self._flows[key] = self._between(group, np.zeros_like(group), src_place, dst_place)
        return self._flows[key]

    def _between(self, group: Ints, channel: Ints, src_place: Ints, dst_place: Ints) -> Flows:
        src, dst = self.members[group, src_place], self.members[group, dst_place]
        plane = channel + src_place + dst_place
        tx, rx = (nics_on(self.placement, ranks, plane) for ranks in (src, dst))
        return self._connect(group, channel, (src_place, dst_place, src, dst), tx, rx)

    def _connect(self, group: Ints, channel: Ints, ends: tuple[Ints, Ints, Ints, Ints], tx: Ints, rx: Ints) -> Flows:
        src_place, dst_place, src, dst = ends
        crosses = self.placement.host_of[src] != self.placement.host_of[dst]
        words = zip(
            self.ids[group[crosses]].tolist(),
            src[crosses].tolist(),
            dst[crosses].tolist(),
            channel[crosses].tolist(),
            strict=True,
        )
        keys = np.array([flow_key(*word) for word in words], np.int64)
        sport, paths = np.zeros(src.shape, np.int64), np.full((*src.shape, 4), self._network.nowhere)
        sport[crosses] = _FIRST_PORT + keys % _PORTS
        is_hashed = self.placement.shape.routing == "ecmp"
        chosen = keys // _PORTS if is_hashed else self._network.in_turn(tx[crosses], rx[crosses])
        paths[crosses] = self._network.choose_paths(tx[crosses], rx[crosses], chosen)
        return Flows(group, channel, src_place, dst_place, src, dst, tx, rx, crosses, sport, paths)


def _comm_id(attempt: int, kind: str, row: int) -> int:
    return flow_key("comm", attempt, kind, row) << 32 | flow_key(row, kind, attempt)
