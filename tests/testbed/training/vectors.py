"""Many tensors as one vector, to copy and to sum in one go, and back."""

from collections.abc import Sequence

import torch
from torch import Tensor


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
