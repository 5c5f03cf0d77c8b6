"""Which rank sits where, who its partners are, and the way each channel of a communicator takes through the hosts."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lockstep.sim.story import ClusterShape, GroupKind, Story

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Placement:
    """The ranks of one attempt of a job; `hosts` are numbers of hosts in the cluster, in the order of the ranks."""

    shape: ClusterShape
    hosts: Ints
    layout: tuple[int, int, int, int, int]  # tp, cp, dp, pp, ep

    @property
    def ranks(self) -> int:
        return len(self.hosts) * self.shape.gpus_per_host

    @cached_property
    def host_of(self) -> Ints:
        """The host of each rank, by its number in the cluster."""
        return np.repeat(self.hosts, self.shape.gpus_per_host)

    @cached_property
    def gpu_of(self) -> Ints:
        """The index of each rank's GPU on its host."""
        return np.arange(self.ranks) % self.shape.gpus_per_host

    @cached_property
    def nic_of(self) -> Ints:
        """The NIC of each rank's GPU, counted over the whole cluster; GPUs share the NICs of a host evenly."""
        gpus_per_nic = self.shape.gpus_per_host // self.shape.nics_per_host
        return self.host_of * self.shape.nics_per_host + self.gpu_of // gpus_per_nic

    def groups(self, kind: GroupKind) -> Ints:
        """Return the members of every group of a kind, one group a row, as world ranks.

        >>> from lockstep.sim.story import ClusterShape
        >>> shape = ClusterShape(hosts=2, gpus_per_host=2, nics_per_host=1, hosts_per_leaf=1, spines=1, nic_gbps=1)
        >>> Placement(shape, np.arange(2), (2, 1, 2, 1, 1)).groups("dp").tolist()
        [[0, 2], [1, 3]]
        """
        tp, cp, dp, pp, ep = self.layout
        grid = np.arange(self.ranks).reshape(pp, dp, cp, tp)
        match kind:
            case "world":
                return grid.reshape(1, -1)
            case "tp":
                return grid.reshape(-1, tp)
            case "cp":
                return grid.transpose(0, 1, 3, 2).reshape(-1, cp)
            case "dp":
                return grid.transpose(0, 2, 3, 1).reshape(-1, dp)
            case "ep":
                return grid.transpose(0, 2, 3, 1).reshape(-1, ep)
            case "pp":
                return grid.transpose(1, 2, 3, 0).reshape(-1, pp)

    def stage_of(self) -> Ints:
        """Return the pipeline stage of each rank."""
        return np.arange(self.ranks) // (self.ranks // self.layout[3])

    def replica_of(self) -> Ints:
        """Return the data-parallel replica of each rank."""
        tp, cp, dp, _, _ = self.layout
        return np.arange(self.ranks) // (tp * cp) % dp


def place(story: Story, hosts: Ints | None = None) -> Placement:
    """Return the ranks of a story's job on its own hosts, or on others; fewer hosts mean fewer replicas."""
    hosts = np.arange(story.cluster.hosts) if hosts is None else hosts
    tp, cp, _, pp, ep = story.layout
    dp = len(hosts) * story.cluster.gpus_per_host // (tp * cp * pp)
    return Placement(story.cluster, hosts, (tp, cp, dp, pp, ep if dp % ep == 0 else 1))


@dataclass(frozen=True)
class Lanes:
    """Every channel of every group of a kind, one a row; a column is a place in the ring or tree.

    The edge of a place goes to the next place. What a lane says of the groups themselves is parallel to its rows.
    """

    members: Ints  # (groups, size): world ranks
    group: Ints  # (lanes,): row of `members`
    channel: Ints  # (lanes,)
    place: Ints  # (lanes, size): which member stands here
    rank: Ints  # (lanes, size): the same as world rank
    crosses: Flags  # (lanes, size): whether the edge to the next place leaves the host
    tx_nic: Ints  # (lanes, size): NIC the edge leaves through, counted over the cluster
    rx_nic: Ints  # (lanes, size): NIC the edge comes in through

    @property
    def size(self) -> int:
        return int(self.members.shape[1])


def build_lanes(placement: Placement, members: Ints, channels: int) -> Lanes:
    """Return the lanes of groups: through each host from GPU to GPU, in and out by another NIC on each channel.

    Channel c enters a host at the GPU of its c-th NIC and leaves at the last GPU of that NIC, or, where a NIC has
    one GPU, at the GPU before it; so a group with whole hosts loads every NIC in both directions.
    """
    group = np.repeat(np.arange(len(members)), channels)
    channel = np.tile(np.arange(channels), len(members))
    lanes = zip(group.tolist(), channel.tolist(), strict=True)
    places = np.array([_order(placement, members[row], number) for row, number in lanes])
    rank = np.take_along_axis(members[group], places, axis=1)
    following = np.roll(rank, -1, axis=1)
    tx, rx = (nics_on(placement, ranks, channel[:, None]) for ranks in (rank, following))
    crosses = placement.host_of[rank] != placement.host_of[following]
    return Lanes(members, group, channel, places, rank, crosses, tx, rx)


def _order(placement: Placement, members: Ints, channel: int) -> Ints:
    """Return the places of members in the ring of a channel: host by host, each begun at another GPU.

    The members of a host are neighbours in every group, because ranks are counted host by host.
    """
    hosts = placement.host_of[members]
    firsts = np.flatnonzero(np.append(True, hosts[1:] != hosts[:-1]))
    if len(firsts) == len(members):
        return np.arange(len(members))
    sizes = np.diff(np.append(firsts, len(members))).tolist()
    inside = {size: _order_in_host(size, channel, placement.shape) for size in set(sizes)}
    return np.concatenate([first + inside[size] for first, size in zip(firsts.tolist(), sizes, strict=True)])


def _order_in_host(size: int, channel: int, shape: ClusterShape) -> Ints:
    nic = channel % shape.nics_per_host
    gpus_per_nic = max(size // shape.nics_per_host, 1)
    entry = nic * gpus_per_nic % size
    last = (entry + gpus_per_nic - 1 if gpus_per_nic > 1 else entry - 1) % size
    between = [place for place in range(size) if place not in (entry, last)]
    return np.array([entry, *between, *([last] if last != entry else [])])


def nics_on(placement: Placement, rank: Ints, plane: Ints) -> Ints:
    """Return the NICs of ranks; on two planes a GPU has one on each, and both ends of a connection take the same."""
    nic = placement.nic_of[rank]
    if placement.shape.fabric != "dual_plane" or placement.shape.nics_per_host < 2:
        return nic
    return nic // 2 * 2 + plane % 2
