"""A small model sharded over a mesh of data-parallel and tensor-parallel ranks, and one step of its training.

Whatever the mesh, the model begins with the same values, a step sees the same samples, and the loss is the mean over
all of them; so runs on different meshes differ only in the order of their sums.
"""

import math
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 16
BLOCKS = 3
GLOBAL_BATCH = 12  # samples of a step; three ranks get four each, two get six, five get two or three
_LEARNING_RATE = 0.01


class Block(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A residual block; its norm makes gradients of all parameters depend on each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        """Return the values with the block's share added."""
        hidden = nn.functional.gelu(self.up(self.norm(values)))
        return values + self.down(hidden)


def fill(parameter: nn.Parameter, name: str) -> None:
    """Give a parameter the values that belong to its name."""
    with torch.no_grad():
        spread = 1 / math.sqrt(parameter.shape[-1])
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(crc32(name.encode()))) * spread
        parameter.copy_(drawn + 1 if name.endswith("norm.weight") else drawn)


@dataclass(frozen=True, slots=True)
class Sharded:
    """This rank's part of the model and of its optimizer."""

    mesh: DeviceMesh
    model: nn.Module
    optimizer: torch.optim.Optimizer


def build_sharded(replicas: int, tensor_parallel: int) -> Sharded:
    """Return the model at its beginning; all ranks of the default group call this together."""
    mesh = init_device_mesh("cpu", (replicas, tensor_parallel), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*(Block(WIDTH) for _ in range(BLOCKS)))
    for name, parameter in model.named_parameters():
        fill(parameter, name)
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return Sharded(mesh, model, torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE))


def train_step(sharded: Sharded, step: int) -> float:
    """Do one step; return its loss over the samples of all ranks."""
    dp = sharded.mesh["dp"]
    inputs, targets = _own_share(step, dp.get_local_rank(), dp.size())
    loss = (sharded.model(inputs) - targets).square().sum() / (GLOBAL_BATCH * WIDTH)
    (loss * dp.size()).backward()  # gradients are averaged over the replicas, and the loss is a sum over them
    sharded.optimizer.step()
    sharded.optimizer.zero_grad()
    total = loss.detach().clone()
    distributed.all_reduce(total, group=dp.get_group())
    return float(total)


def _own_share(step: int, replica: int, replicas: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(crc32(f"samples of step {step}".encode()))
    inputs, targets = torch.randn(2, GLOBAL_BATCH, WIDTH, generator=generator)
    own = slice(GLOBAL_BATCH * replica // replicas, GLOBAL_BATCH * (replica + 1) // replicas)
    return inputs[own], targets[own]
