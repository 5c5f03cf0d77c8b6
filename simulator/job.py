"""Which rank sits where, who its partners are, and the way each channel of a communicator takes through the hosts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from simulator.pairs import Flags, Floats, Ints
from simulator.scenario import Algo, ClusterShape, Doing, GroupKind, JobShape, Scenario


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

        >>> from simulator.scenario import ClusterShape
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


def place_ranks(scenario: Scenario, hosts: Ints | None = None) -> Placement:
    """Return the ranks of a scenario's job on its own hosts, or on others; fewer hosts mean fewer replicas."""
    hosts = np.arange(scenario.cluster.hosts) if hosts is None else hosts
    tp, cp, _, pp, ep = scenario.layout
    dp = len(hosts) * scenario.cluster.gpus_per_host // (tp * cp * pp)
    return Placement(scenario.cluster, hosts, (tp, cp, dp, pp, ep if dp % ep == 0 else 1))


@dataclass(frozen=True)
class ChannelTable:
    """Every channel of every group of a kind, one a row; a column is a position in the ring or tree.

    The edge of a position goes to the next position.
    """

    group: Ints  # (rows,): which group
    channel: Ints  # (rows,)
    index: Ints  # (rows, size): which member is here
    rank: Ints  # (rows, size): the same as world rank
    crosses: Flags  # (rows, size): whether the edge to the next position leaves the host
    tx_nic: Ints  # (rows, size): NIC the edge leaves through, counted over the cluster
    rx_nic: Ints  # (rows, size): NIC the edge comes in through


def build_channel_table(placement: Placement, members: Ints, channels: int) -> ChannelTable:
    """Return the channels of groups: through each host from GPU to GPU, in and out by another NIC on each channel.

    Channel c enters a host at the GPU of its c-th NIC and leaves at the last GPU of that NIC, or, where a NIC has
    one GPU, at the GPU before it; so a group with whole hosts loads every NIC in both directions.
    """
    group = np.repeat(np.arange(len(members)), channels)
    channel = np.tile(np.arange(channels), len(members))
    rows = zip(group.tolist(), channel.tolist(), strict=True)
    indices = np.array([_order(placement, members[row], number) for row, number in rows])
    rank = np.take_along_axis(members[group], indices, axis=1)
    following = np.roll(rank, -1, axis=1)
    tx, rx = (nics_on(placement, ranks, channel[:, None]) for ranks in (rank, following))
    crosses = placement.host_of[rank] != placement.host_of[following]
    return ChannelTable(group, channel, indices, rank, crosses, tx, rx)


def _order(placement: Placement, members: Ints, channel: int) -> Ints:
    """Return the positions of members in the ring of a channel: host by host, each begun at another GPU.

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
    between = [index for index in range(size) if index not in (entry, last)]
    return np.array([entry, *between, *([last] if last != entry else [])])


def nics_on(placement: Placement, rank: Ints, plane: Ints) -> Ints:
    """Return the NICs of ranks; on two planes a GPU has one on each, and both ends of a connection take the same."""
    nic = placement.nic_of[rank]
    if placement.shape.fabric != "dual_plane" or placement.shape.nics_per_host < 2:
        return nic
    return nic // 2 * 2 + plane % 2


@dataclass(frozen=True)
class Compute:
    """Kernels of some ranks; everybody else goes on."""

    ranks: Ints
    ns: Floats


@dataclass(frozen=True)
class Collective:
    """One operation in some groups of a kind at once."""

    kind: GroupKind
    groups: Ints  # rows of Placement.groups(kind)
    func: str
    algo: Algo
    bytes: int


@dataclass(frozen=True)
class Exchange:
    """Everybody sends to everybody else in each group of a kind: sends and receives in one group call."""

    kind: GroupKind
    bytes: int  # that a rank sends in all


@dataclass(frozen=True)
class Handover:
    """One send and one receive per pair of pipeline neighbours."""

    groups: Ints  # rows of Placement.groups("pp")
    src_stage: Ints
    dst_stage: Ints
    bytes: int


Wave = Compute | Collective | Exchange | Handover


def plan_step(doings: Sequence[Doing], job: JobShape, placement: Placement) -> list[Wave]:
    """Return the waves of a step."""
    return [wave for doing in doings for _ in range(doing.times) for wave in _waves(doing, job, placement)]


def _waves(doing: Doing, job: JobShape, placement: Placement) -> Iterator[Wave]:
    size = int(doing.mb * 1e6)
    everyone = np.arange(placement.ranks)
    match doing.do:
        case "compute":
            yield Compute(everyone, np.full(placement.ranks, doing.ms * 1e6))
        case "pipeline":
            yield from _pipeline(doing, job, placement)
        case "AllToAll":
            yield Exchange(doing.group, size)
        case func:
            groups = placement.groups(doing.group)
            if groups.shape[1] > 1:  # a group of one has nobody to talk to
                yield Collective(doing.group, np.arange(len(groups)), func, doing.algo, size)


@dataclass(frozen=True)
class _Task:
    stage: int
    batch: int
    forward: bool


def one_forward_one_backward(stages: int, batches: int) -> list[list[tuple[int, int, bool]]]:
    """Return rounds of (stage, micro-batch, forward) in which each stage does what it can, in the order of 1F1B.

    >>> one_forward_one_backward(2, 1)
    [[(0, 0, True)], [(1, 0, True)], [(1, 0, False)], [(0, 0, False)]]
    """
    todo = [_order_of_stage(stage, stages, batches) for stage in range(stages)]
    done: set[_Task] = set()
    rounds = []
    while any(todo):
        ready = [tasks[0] for tasks in todo if tasks and _is_ready(tasks[0], stages, done)]
        for task in ready:
            todo[task.stage].pop(0)
        done |= set(ready)
        rounds.append([(task.stage, task.batch, task.forward) for task in ready])
    return rounds


def _order_of_stage(stage: int, stages: int, batches: int) -> list[_Task]:
    ahead = min(stages - stage - 1, batches)
    order = [_Task(stage, batch, True) for batch in range(ahead)]
    for batch in range(batches - ahead):
        order += [_Task(stage, batch + ahead, True), _Task(stage, batch, False)]
    return order + [_Task(stage, batch, False) for batch in range(batches - ahead, batches)]


def _is_ready(task: _Task, stages: int, done: set[_Task]) -> bool:
    before = task.stage - 1 if task.forward else task.stage + 1
    if 0 <= before < stages:
        return _Task(before, task.batch, task.forward) in done
    return task.forward or _Task(task.stage, task.batch, True) in done


def _pipeline(doing: Doing, job: JobShape, placement: Placement) -> Iterator[Wave]:
    stages = placement.layout[3]
    chains = placement.groups("pp")
    stage_of = placement.stage_of()
    tp_groups = placement.groups("tp")
    for tasks in one_forward_one_backward(stages, job.micro_batches):
        moves = [(stage - 1 if forward else stage + 1, stage) for stage, _, forward in tasks]
        moves = [(src, dst) for src, dst in moves if 0 <= src < stages]
        if moves and doing.mb:
            src, dst = (np.repeat(side, len(chains)) for side in zip(*moves, strict=True))
            yield Handover(np.tile(np.arange(len(chains)), len(moves)), src, dst, int(doing.mb * 1e6))
        spent = {stage: _stage_ms(doing, stage, stages, forward) for stage, _, forward in tasks}
        ranks = np.flatnonzero(np.isin(stage_of, list(spent)))
        yield Compute(ranks, np.array([spent[int(stage)] * 1e6 for stage in stage_of[ranks]]))
        if doing.tp_mb and tp_groups.shape[1] > 1:
            groups = np.flatnonzero(np.isin(stage_of[tp_groups[:, 0]], list(spent)))
            yield Collective("tp", groups, "AllReduce", "RING", int(doing.tp_mb * 1e6))


def _stage_ms(doing: Doing, stage: int, stages: int, forward: bool) -> float:
    more = (doing.first_ms if stage == 0 else 0.0) + (doing.last_ms if stage == stages - 1 else 0.0)
    return more + (doing.ms if forward else doing.backward_ms)


def swap_order(rank: int, waves: Sequence[Wave], placement: Placement) -> dict[int, Wave]:
    """Return what each confused rank leaves out, so that it enters another communicator first, and all wait for good.

    The rank leaves out its last operation before one in another communicator, and waits there. When nobody but
    itself is in both, that alone only delays: tp and dp cross in one rank. Then the rank across the square, which
    shares one communicator each with the partners of both, makes the same mistake, and the four wait in a circle.
    """
    rings = [wave for wave in waves if isinstance(wave, Collective)]
    left, entered = next(((one, two) for one, two in pairwise(rings) if one.kind != two.kind), (None, None))
    if left is None or entered is None:
        return {}
    mine, other = (next(row for row in placement.groups(wave.kind) if rank in row) for wave in (left, entered))
    misordered: dict[int, Wave] = {rank: left}
    if len(np.intersect1d(mine, other)) == 1:
        index, index_across = (int(np.flatnonzero(row == rank)[0]) for row in (mine, other))
        neighbour = other[(index_across + 1) % len(other)]
        theirs = next(row for row in placement.groups(left.kind) if neighbour in row)
        misordered[int(theirs[(index + 1) % len(theirs)])] = left
    return misordered
