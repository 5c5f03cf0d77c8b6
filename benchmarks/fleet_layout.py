"""The cluster that the fleet stands for: which jobs run on a host, and which of its ranks talk to whom.

Hosts have eight GPUs and a NIC for each. They come in blocks of eight; every tenth block belongs to one mixture of
experts with EP64 (all-to-all within the block, data-parallel between blocks), the others to dense jobs of 32 hosts
in turn of three layouts. A host's place depends on its number alone, so that a small fleet is a part of a large one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

GPUS_PER_HOST = 8
_HOSTS_PER_BLOCK = 8
_BLOCKS_PER_EXPERT_BLOCK = 10
_EXPERT_BLOCK = 4  # the fifth of every ten, so that 64 hosts have one
_BLOCKS_PER_DENSE_JOB = 4
_DENSE_LAYOUTS = ((8, 4), (8, 1), (4, 2))  # TP, PP; the rest of the 256 ranks is data-parallel
_EXPERT_REPLICAS = 16  # EP groups of the mixture of experts in a fleet of 1,280


@dataclass(frozen=True)
class Group:
    """A communicator as one rank of it sees it: where its ranks are, and which peers it exchanges with."""

    comm: int
    kind: str  # tp, dp, pp, ep
    rank: int
    nranks: int
    gpu: int
    next_peers: tuple[int, ...]  # on other hosts, that this rank sends to
    previous_peers: tuple[int, ...]  # on other hosts, that it receives from


@dataclass(frozen=True)
class HostPlan:
    """What runs on one host."""

    number: int
    job: str
    groups: tuple[Group, ...]

    @property
    def name(self) -> str:
        return host_name(self.number)


def host_name(number: int) -> str:
    return f"h{number:05}"


def plan_host(number: int) -> HostPlan:
    """Return the job and the communicators of a host."""
    block, place = divmod(number, _HOSTS_PER_BLOCK)
    if block % _BLOCKS_PER_EXPERT_BLOCK == _EXPERT_BLOCK:
        return HostPlan(number, "moe-0", tuple(_expert_groups(block // _BLOCKS_PER_EXPERT_BLOCK, place)))
    # Blocks of the experts leave no hole in the dense jobs: those before a block are taken out of its number.
    dense_block = block - (block + _BLOCKS_PER_EXPERT_BLOCK - 1 - _EXPERT_BLOCK) // _BLOCKS_PER_EXPERT_BLOCK
    job, block_of_job = divmod(dense_block, _BLOCKS_PER_DENSE_JOB)
    groups = _dense_groups(job, block_of_job * _HOSTS_PER_BLOCK + place)
    return HostPlan(number, f"dense-{job}", tuple(groups))


def _expert_groups(replica: int, place: int) -> Iterator[Group]:
    for gpu in range(GPUS_PER_HOST):
        rank = place * GPUS_PER_HOST + gpu
        others = [peer for peer in range(_HOSTS_PER_BLOCK * GPUS_PER_HOST) if peer // GPUS_PER_HOST != place]
        yield Group(
            _comm(900, 0, replica), "ep", rank, _HOSTS_PER_BLOCK * GPUS_PER_HOST, gpu, tuple(others), tuple(others)
        )
        yield _ring(_comm(900, 1, rank), "dp", replica, _EXPERT_REPLICAS, gpu, ranks_per_host=1)


def _dense_groups(job: int, host_of_job: int) -> Iterator[Group]:
    tensor, pipeline = _DENSE_LAYOUTS[job % len(_DENSE_LAYOUTS)]
    world = _BLOCKS_PER_DENSE_JOB * _HOSTS_PER_BLOCK * GPUS_PER_HOST
    data = world // (tensor * pipeline)
    for gpu in range(GPUS_PER_HOST):
        rest, in_tensor = divmod(host_of_job * GPUS_PER_HOST + gpu, tensor)
        in_pipeline, in_data = divmod(rest, data)
        yield Group(_comm(job, 0, rest), "tp", in_tensor, tensor, gpu, (), ())
        yield _ring(
            _comm(job, 1, in_pipeline * tensor + in_tensor), "dp", in_data, data, gpu, GPUS_PER_HOST // tensor
        )
        if pipeline > 1:
            yield _chain(_comm(job, 2, in_data * tensor + in_tensor), in_pipeline, pipeline, gpu)


def _ring(comm: int, kind: str, rank: int, nranks: int, gpu: int, ranks_per_host: int) -> Group:
    following, preceding = (rank + 1) % nranks, (rank - 1) % nranks
    own = rank // ranks_per_host
    return Group(
        comm,
        kind,
        rank,
        nranks,
        gpu,
        tuple(peer for peer in (following,) if peer // ranks_per_host != own),
        tuple(peer for peer in (preceding,) if peer // ranks_per_host != own),
    )


def _chain(comm: int, stage: int, stages: int, gpu: int) -> Group:
    """Activations go forward and gradients back, so both neighbours are sent to and received from."""
    neighbours = tuple(peer for peer in (stage - 1, stage + 1) if 0 <= peer < stages)
    return Group(comm, "pp", stage, stages, gpu, neighbours, neighbours)


def _comm(job: int, kind: int, number: int) -> int:
    """Return an id that looks like NCCL's, which are hashes: spread over 64 bits, the same on every rank."""
    return ((job << 24 | kind << 16 | number) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % (1 << 64)
