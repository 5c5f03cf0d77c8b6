"""How workers meet, and what they say: activations and gradients by tag, sums over a stage and over all.

They find each other through a file or a port and form a gloo group, again if the first try fails.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, distributed

from lockstep.errors import BadInput, LockstepError
from planner.pipeline.schedule import Worker


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Return a new vector of all values."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of the vector in the shapes of the tensors of which it was made."""
    parts, begin = [], 0
    for tensor in like:
        parts.append(vector[begin : begin + tensor.numel()].view(tensor.shape))
        begin += tensor.numel()
    return parts


_TRIES = 3  # gloo's full mesh of connections is at times refused while a busy host still starts some of its ranks
_NUMBERS = (("SLURM_PROCID", "SLURM_NTASKS"), ("RANK", "WORLD_SIZE"))
# What tells one start of a job from another: a killed one leaves its meeting file behind.
_START = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True, slots=True)
class Seat:
    """Which rank this process is, of how many, and where they meet: the second place only if the first fails."""

    rank: int
    ranks: int
    addresses: Sequence[str]


def find_seat(env: Mapping[str, str], rendezvous: Path | None) -> Seat:
    """Return this process's seat as Slurm or torchrun tell it; BadInput if they do not."""
    for rank, ranks in _NUMBERS:
        if rank in env and ranks in env:
            return Seat(int(env[rank]), int(env[ranks]), _find_addresses(env, rendezvous))
    raise BadInput("which rank is this? neither SLURM_PROCID and SLURM_NTASKS nor RANK and WORLD_SIZE are set")


def files_at(path: Path) -> list[str]:
    """Return a file for each try; `path` is one that no other meeting uses."""
    return [f"file://{path.absolute()}.{number}" for number in range(_TRIES)]


def meet(seat: Seat, timeout_s: float) -> None:
    """Join the default group at the first place to which all ranks come; LockstepError if there is none."""
    complaints = []
    for address in seat.addresses:
        try:
            _meet_at(address, seat, timeout_s)
            return
        except RuntimeError as error:
            complaints.append(f"{address}: {error}")
            part()
    raise LockstepError(f"rank {seat.rank} of {seat.ranks} could not meet the others at {'; '.join(complaints)}")


def part() -> None:
    """Leave all groups; peers that still wait for this rank get an error at once."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def _find_addresses(env: Mapping[str, str], rendezvous: Path | None) -> list[str]:
    if rendezvous:
        return files_at(rendezvous / "-".join(["meeting", *(env.get(name, "0") for name in _START)]))
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        return [f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"]
    raise BadInput("where do the ranks meet? give --rendezvous, or set MASTER_ADDR and MASTER_PORT")


def _meet_at(address: str, seat: Seat, timeout_s: float) -> None:
    from torch import distributed

    timeout = datetime.timedelta(seconds=timeout_s)
    distributed.init_process_group(
        "gloo", init_method=address, rank=seat.rank, world_size=seat.ranks, timeout=timeout
    )
    distributed.barrier()  # the group counts only if it works for everybody


class Exchange:
    """One meeting of the live workers; ends with `close`, or breaks with RuntimeError when a worker is gone."""

    def __init__(self, worker: Worker, live: list[Worker], path: Path, timeout_s: float) -> None:
        self.live = sorted(live)
        self._sent: list[tuple[distributed.Work, Tensor]] = []
        meet(Seat(self.live.index(worker), len(live), files_at(path)), timeout_s)
        stages = sorted({peer.stage for peer in live})
        groups = {stage: distributed.new_group(self._ranks_of(stage)) for stage in stages}
        self._stage = groups[worker.stage]
        self._all = distributed.new_group()  # its sums run in the background, beside the messages
        self.speaks = worker == min(peer for peer in live if peer.stage == worker.stage)

    def send(self, values: Tensor, to: Worker, tag: int) -> None:
        """Hand over values without waiting until they are taken."""
        work = distributed.isend(values, self.live.index(to), tag=tag)
        assert work is not None  # only a rank outside the group gets none
        self._sent.append((work, values))  # the values must live until they are taken

    def receive(self, shape: torch.Size | tuple[int, ...], sender: Worker, tag: int) -> Tensor:
        """Wait for values."""
        values = torch.empty(shape)
        distributed.recv(values, self.live.index(sender), tag=tag)
        return values

    def flush(self) -> None:
        """Wait until everything sent is taken."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def sum_over_stage(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the sums over the live workers of the stage."""
        flat = flatten(tensors)
        distributed.all_reduce(flat, group=self._stage)
        return unflatten(flat, tensors)

    def begin_sum(self, value: float) -> "PendingSum":
        """Begin to sum over all workers; those that do not speak for their stage add nothing."""
        total = torch.tensor(value if self.speaks else 0.0, dtype=torch.float64)
        work = distributed.all_reduce(total, group=self._all, async_op=True)
        assert work is not None
        return PendingSum(work, total)

    def close(self) -> None:
        """Leave; whoever waits for this worker gets an error."""
        self._sent.clear()
        part()

    def _ranks_of(self, stage: int) -> list[int]:
        return [rank for rank, peer in enumerate(self.live) if peer.stage == stage]


class PendingSum:
    """A sum over all workers that is under way."""

    def __init__(self, work: distributed.Work, total: Tensor) -> None:
        self._work = work
        self._total = total

    def wait(self) -> float:
        """Return the sum once everybody has added to it."""
        self._work.wait()
        return float(self._total)
