"""The stages of a small model and its micro-batches, the same wherever and by whomever they are made."""

import math
from zlib import crc32

import torch
from torch import Tensor, nn

from lockstep.training.participant import MicroBatch

_WIDTH, _BLOCKS = 12, 2  # of each stage: small enough for a CPU
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
