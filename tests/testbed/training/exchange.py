"""What the workers of a grid say to each other: activations and gradients by tag, sums over a stage and over all."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, distributed

from lockstep.pipeline.schedule import Worker
from tests.testbed.training.meeting import Seat, files_at, meet, part


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
