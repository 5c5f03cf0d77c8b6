"""What the workers of a generation say to each other: activations and gradients by tag, sums over a stage and all."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lockstep.pipeline.routes import Piece, What, tag_of
from lockstep.pipeline.schedule import Shape, Worker
from lockstep.training.group import Group


class Exchange:
    """The connections of a generation; a role of the schedule is played by the member of that rank."""

    def __init__(self, everybody: Group, peers: Group, ranks: Mapping[Worker, int], shape: Shape) -> None:
        self._everybody, self._peers, self._ranks, self._shape = everybody, peers, ranks, shape

    def send(self, what: What, step: int, piece: Piece, values: Tensor, to: Worker) -> None:
        """Hand over values without waiting until they are taken."""
        flat = values.detach().cpu().contiguous()
        self._everybody.send(flat, self._ranks[to], tag_of(what, step, piece, self._shape))

    def receive(self, what: What, step: int, piece: Piece, values: Tensor, sender: Worker) -> None:
        """Wait for values."""
        self._everybody.receive(values, self._ranks[sender], tag_of(what, step, piece, self._shape))

    def sum_over_stage(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums over the live workers of the stage."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
        self._peers.sum(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor).to(tensor.device) for part, tensor in zip(parts, tensors, strict=True)]

    def begin_sum(self, values: Tensor) -> Callable[[], None]:
        """Begin to sum over all workers, in place; return what waits until all have added theirs."""
        return self._everybody.begin_sum(values)

    def give_up(self) -> None:
        """End whatever is under way."""
        self._everybody.give_up()
        self._peers.give_up()
