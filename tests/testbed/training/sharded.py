"""A small model sharded over a mesh of data-parallel and tensor-parallel ranks, and one step of its training.

Whatever the mesh, the model begins with the same values, a step sees the same samples, and the loss is the mean over
all of them; so runs on different meshes differ only in the order of their sums.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.testbed.training.model import Block, fill, seeded

WIDTH = 16
BLOCKS = 3
GLOBAL_BATCH = 12  # samples of a step; three ranks get four each, two get six, five get two or three
_LEARNING_RATE = 0.01


@dataclass(frozen=True, slots=True)
class Sharded:
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
    generator = seeded(f"samples of step {step}")
    inputs, targets = torch.randn(2, GLOBAL_BATCH, WIDTH, generator=generator)
    own = slice(GLOBAL_BATCH * replica // replicas, GLOBAL_BATCH * (replica + 1) // replicas)
    return inputs[own], targets[own]
