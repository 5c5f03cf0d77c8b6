"""The gradients of a step in buckets: each replica's own sums, and those over all replicas where they are known."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

_BUCKET_BYTES = 25 * 2**20  # as DistributedDataParallel: large enough for the network, small enough to be lost


class Gradients:
    """A step's gradients; the last bucket is its loss. Reduced buckets stay what they are until `clear`."""

    def __init__(self, parameters: Sequence[nn.Parameter], bucket_bytes: int = _BUCKET_BYTES) -> None:
        self._buckets = list(_divide(parameters, bucket_bytes))
        self._loss = torch.zeros(1, dtype=torch.float64)
        self.reduced: list[Tensor | None] = []
        self.clear()

    def __len__(self) -> int:
        return len(self._buckets) + 1

    @property
    def loss(self) -> float:
        """The mean over the micro-batches of all replicas; known when the step is reduced."""
        values = self.reduced[-1]
        return float("nan") if values is None else float(values)

    def clear(self) -> None:
        """Begin a step."""
        self.reduced = [None] * len(self)
        self._loss.zero_()
        for parameter in (each for bucket in self._buckets for each in bucket):
            parameter.grad = None

    def add(self, loss: Tensor) -> None:
        """Add a micro-batch's share of the loss, and its gradients."""
        loss.backward()
        self._loss += float(loss.detach())

    def own(self, bucket: int) -> Tensor:
        """Return this replica's sum of a bucket, as a new vector in host memory."""
        if bucket == len(self._buckets):
            return self._loss.clone()
        grads = (torch.zeros_like(each) if each.grad is None else each.grad for each in self._buckets[bucket])
        return torch.cat([grad.reshape(-1) for grad in grads]).cpu()

    def write_back(self) -> None:
        """Put the sums over all replicas where the optimizer looks for them."""
        for bucket, values in zip(self._buckets, self.reduced[:-1], strict=True):
            assert values is not None
            parts = values.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter).to(parameter.device)


def _divide(parameters: Sequence[nn.Parameter], most_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters in buckets of one dtype, the last first: their gradients are complete first."""
    bucket: list[nn.Parameter] = []
    for parameter in reversed(parameters):
        size = sum(each.nbytes for each in bucket) + parameter.nbytes
        if bucket and (size > most_bytes or bucket[0].dtype != parameter.dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
