"""A job on paper: which rank sits where, which groups there are, what every step does; and as its ranks read it.

Ranks count as Megatron's do: neighbours share a tensor-parallel group, then come replicas, then pipeline stages.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["world", "tp", "dp", "pp"]
Func = Literal["AllReduce", "AllGather", "ReduceScatter", "Broadcast"]

KIB = 1024
ALONE = -1  # no peer


@dataclass(frozen=True)
class Compute:
    """The GPU is busy for so long; `noise` is the standard deviation as a share of that."""

    ms: float
    noise: float = 0.0


@dataclass(frozen=True)
class Collective:
    """An operation of all ranks of a group; `bytes` as NCCL counts them, so of one rank in AllGather."""

    comm: Kind
    func: Func
    bytes: int
    algo: Literal["RING", "TREE"] = "RING"
    channels: int = 2


@dataclass(frozen=True)
class Hop:
    """A send to, or a receive from, the rank so many places on in the group; who has none there passes over it."""

    func: Literal["Send", "Recv"]
    offset: int
    bytes: int
    comm: Kind = "pp"
    joined: bool = False  # in one group with the hop before, so that neither waits for the other
    channels: int = 1


Item = Compute | Collective | Hop


@dataclass(frozen=True)
class Layout:
    """How a job is split: tensor-parallel width, pipeline stages, replicas."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    def group_of(self, kind: Kind, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group of this kind that a rank is in.

        >>> Layout(tp=2, pp=2, dp=2).group_of("dp", 3)
        (1, 3)
        """
        tp, dp = self.tp, self.dp
        stage_begin = rank // (tp * dp) * tp * dp
        match kind:
            case "world":
                return tuple(range(self.ranks))
            case "tp":
                return tuple(range(rank // tp * tp, rank // tp * tp + tp))
            case "dp":
                return tuple(range(stage_begin + rank % tp, stage_begin + tp * dp, tp))
            case "pp":
                return tuple(range(rank % (tp * dp), self.ranks, tp * dp))


@dataclass(frozen=True)
class JobPlan:
    """A job: `hosts` has the host of every rank, `nics` what every host has, in the order of NCCL's devices.

    Channel c uses NIC c modulo their number. The kernel's buffers are small, so that a slow link makes senders wait
    instead of hiding in them.
    """

    job: str
    hosts: tuple[str, ...]
    layout: Layout
    step: tuple[Item, ...]
    nics: tuple[str, ...] = ("eth0",)
    steps: int = 0  # none: until it is told to leave
    seed: int = 0
    second_step: tuple[Item, ...] = ()  # what ranks do from the step on that the line `second STEP` names
    # By group, channel, from rank, to rank.
    source_ports: Mapping[tuple[Kind, int, int, int], int] = field(default_factory=dict)
    chunk_bytes: int = 128 * KIB
    buffer_bytes: int = 64 * KIB

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The groups that ranks need; the world is always one, as in every framework."""
        items = (*self.step, *self.second_step)
        used: list[Kind] = [item.comm for item in items if not isinstance(item, Compute)]
        return tuple(dict.fromkeys(["world", *used]))

    def comm_id(self, kind: Kind, group: tuple[int, ...]) -> int:
        """Return a communicator's id, which all its ranks know and no other job has."""
        words = f"{self.job} {kind} {group}"
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big")

    def local_rank(self, rank: int) -> int:
        return self.hosts[:rank].count(self.hosts[rank])


def write_job(plan: JobPlan, rank: int, addresses: Sequence[str]) -> str:
    kinds = plan.kinds
    indices = {kind: index for index, kind in enumerate(kinds)}
    lines = [
        f"rank {rank} {plan.layout.ranks}",
        *(f"host {other} {host}" for other, host in enumerate(plan.hosts)),
        *(f"nic {name} {address}" for name, address in zip(plan.nics, addresses, strict=True)),
        f"sizes {plan.chunk_bytes} {plan.buffer_bytes}",
        f"steps {plan.steps} {plan.seed}",
        *(_comm_line(plan, rank, kind) for kind in kinds),
        *_port_lines(plan, rank, indices),
        *_item_lines(plan, rank, plan.step, indices),
        *(["second", *_item_lines(plan, rank, plan.second_step, indices)] if plan.second_step else []),
    ]
    return "\n".join(lines) + "\n"


def _comm_line(plan: JobPlan, rank: int, kind: Kind) -> str:
    group = plan.layout.group_of(kind, rank)
    return f"comm {plan.comm_id(kind, group):x} {kind} {' '.join(map(str, group))}"


def _port_lines(plan: JobPlan, rank: int, indices: Mapping[Kind, int]) -> Iterator[str]:
    for (kind, channel, src, dst), port in plan.source_ports.items():
        if src == rank and kind in indices:
            peer = plan.layout.group_of(kind, rank).index(dst)
            yield f"port {indices[kind]} {channel} {peer} {port}"


def _item_lines(plan: JobPlan, rank: int, items: Sequence[Item], indices: Mapping[Kind, int]) -> Iterator[str]:
    begins_group = True  # whether the hop that opens the present group was passed over, or there is none
    for item in items:
        line = _item_line(plan, rank, item, indices)
        is_joined = isinstance(item, Hop) and item.joined
        if line:
            yield f"with {line}" if is_joined and not begins_group else _opening(item, line)
            begins_group = isinstance(item, Compute)
        elif not is_joined:
            begins_group = True


def _opening(item: Item, line: str) -> str:
    return line if isinstance(item, Compute) else f"op {line}"


def _item_line(plan: JobPlan, rank: int, item: Item, indices: Mapping[Kind, int]) -> str:
    """Return the facts of an item; none for a hop that leads out of the group."""
    match item:
        case Compute(ms=ms, noise=noise):
            return f"compute {ms} {noise} sleep"
        case Collective(comm=kind, func=func, algo=algo, bytes=size, channels=channels):
            return f"{indices[kind]} {func} {algo} {size} {channels} {ALONE}"
        case Hop(comm=kind, func=func, bytes=size, channels=channels):
            group = plan.layout.group_of(kind, rank)
            peer = group.index(rank) + item.offset
            is_there = 0 <= peer < len(group) and item.offset != 0
            return f"{indices[kind]} {func} RING {size} {channels} {peer}" if is_there else ""
