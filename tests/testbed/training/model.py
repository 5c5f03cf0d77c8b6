"""The stages of a small model and its micro-batches, the same wherever and by whomever they are made."""

import math
from zlib import crc32

import torch
from torch import Tensor, nn

from lockstep.pipeline.routes import Piece
from lockstep.pipeline.schedule import Shape
from tests.testbed.training.plan import ModelOptions


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


def build_stage(options: ModelOptions, stage: int) -> nn.Sequential:
    """Return the blocks of a stage; equal for equal options and stage, whatever was drawn before."""
    blocks = nn.Sequential(*(Block(options.width) for _ in range(options.blocks)))
    for name, parameter in blocks.named_parameters():
        fill(parameter, f"{options.seed}/{stage}/{name}")
    return blocks


def fill(parameter: nn.Parameter, name: str) -> None:
    """Give a parameter the values that belong to its name."""
    with torch.no_grad():
        spread = 1 / math.sqrt(parameter.shape[-1])
        drawn = torch.randn(parameter.shape, generator=seeded(name)) * spread
        parameter.copy_(drawn + 1 if name.endswith("norm.weight") else drawn)


def make_batch(options: ModelOptions, step: int, piece: Piece) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a micro-batch."""
    generator = seeded(f"{options.seed}/batch/{step}/{piece.pipeline}/{piece.micro_batch}")
    inputs, targets = torch.randn(2, options.samples, options.width, generator=generator)
    return inputs, 3 * targets  # far away, so that clipping has something to do


def loss_of(outputs: Tensor, targets: Tensor, shape: Shape) -> Tensor:
    """Return a micro-batch's share of the loss, the mean over the micro-batches of all pipelines."""
    return nn.functional.mse_loss(outputs, targets) / (shape.pipelines * shape.micro_batches)


def seeded(name: str) -> torch.Generator:
    """Return a generator that draws what belongs to a name."""
    return torch.Generator().manual_seed(crc32(name.encode()))
