"""A small model and what it learns from, the same wherever and by whomever they are made: by stages, and sharded.

Sharded over a mesh of data-parallel and tensor-parallel ranks a step sees the same samples, and the loss is the mean
over all of them, whatever the mesh; so runs on different meshes differ only in the order of their sums.
"""

import math
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lockstep.training.participant import MicroBatch

_WIDTH, _BLOCKS = 12, 2  # of each stage: small enough for a CPU
_SHARDED_WIDTH, _SHARDED_BLOCKS = 16, 3
GLOBAL_BATCH = 12  # samples of a step; three ranks get four each, two get six, five get two or three
HIDDEN = (3, _WIDTH)  # what a micro-batch of three samples is between two stages


class Block(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A residual block; its norm makes gradients of all parameters depend on each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(values)))
        return values + self.down(hidden)


def build_stage(stage: int, seed: int = 1) -> nn.Sequential:
    blocks = nn.Sequential(*(Block(_WIDTH) for _ in range(_BLOCKS)))
    for name, parameter in blocks.named_parameters():
        fill(parameter, f"{seed}/{stage}/{name}")
    return blocks


def make_optimizer(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1, foreach=False)


def fill(parameter: nn.Parameter, name: str) -> None:
    with torch.no_grad():
        spread = 1 / math.sqrt(parameter.shape[-1])
        drawn = torch.randn(parameter.shape, generator=seeded(name)) * spread
        parameter.copy_(drawn + 1 if name.endswith("norm.weight") else drawn)


def inputs_of(batch: MicroBatch) -> Tensor:
    return _draw(batch)[0]


def loss_of(outputs: Tensor, batch: MicroBatch) -> Tensor:
    """Return the loss of what came out of the last stage; targets are far away, so that clipping has to do."""
    return nn.functional.mse_loss(outputs, 3 * _draw(batch)[1])


def _draw(batch: MicroBatch) -> Tensor:
    return torch.randn(2, *HIDDEN, generator=seeded(f"batch/{batch.step}/{batch.number}"))


def seeded(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(crc32(name.encode()))


@dataclass(frozen=True, slots=True)
class Sharded:
    mesh: DeviceMesh
    model: nn.Module
    optimizer: torch.optim.Optimizer


def build_sharded(replicas: int, tensor_parallel: int) -> Sharded:
    """Return the model at its beginning; all ranks of the default group call this together."""
    mesh = init_device_mesh("cpu", (replicas, tensor_parallel), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*(Block(_SHARDED_WIDTH) for _ in range(_SHARDED_BLOCKS)))
    for name, parameter in model.named_parameters():
        fill(parameter, name)
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return Sharded(mesh, model, torch.optim.AdamW(model.parameters(), lr=0.01))


def train_step(sharded: Sharded, step: int) -> float:
    """Do one step; return its loss over the samples of all ranks."""
    dp = sharded.mesh["dp"]
    inputs, targets = _own_share(step, dp.get_local_rank(), dp.size())
    loss = (sharded.model(inputs) - targets).square().sum() / (GLOBAL_BATCH * _SHARDED_WIDTH)
    (loss * dp.size()).backward()  # gradients are averaged over the replicas, and the loss is a sum over them
    sharded.optimizer.step()
    sharded.optimizer.zero_grad()
    total = loss.detach().clone()
    distributed.all_reduce(total, group=dp.get_group())
    return float(total)


def _own_share(step: int, replica: int, replicas: int) -> tuple[Tensor, Tensor]:
    generator = seeded(f"samples of step {step}")
    inputs, targets = torch.randn(2, GLOBAL_BATCH, _SHARDED_WIDTH, generator=generator)
    own = slice(GLOBAL_BATCH * replica // replicas, GLOBAL_BATCH * (replica + 1) // replicas)
    return inputs[own], targets[own]
