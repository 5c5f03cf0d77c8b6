"""The same training in one process with plain torch: one model, one optimizer, torch's own clipping."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.pipeline.routes import Piece
from lockstep.pipeline.schedule import Shape
from tests.testbed.training.model import build_stage, loss_of, make_batch
from tests.testbed.training.plan import ModelOptions, TuningOptions


@dataclass(frozen=True, slots=True)
class PlainRun:
    """Losses and gradient norms of all steps, and the parameters of each stage after the last."""

    losses: list[float]
    norms: list[float]
    parameters: list[dict[str, Tensor]]


def train_plainly(shape: Shape, steps: int, tuning: TuningOptions, skipped: Collection[int] = ()) -> PlainRun:
    """Train without pipeline; the optimizer passes over skipped steps."""
    model = ModelOptions()
    stages = nn.ModuleList(build_stage(model, stage) for stage in range(shape.stages))
    adam = torch.optim.AdamW(stages.parameters(), lr=tuning.learning_rate, weight_decay=tuning.weight_decay)
    run = PlainRun([], [], [])
    for step in range(steps):
        adam.zero_grad()
        loss = _loss(stages, shape, model, step)
        loss.backward()
        run.losses.append(float(loss.detach()))
        run.norms.append(float(nn.utils.clip_grad_norm_(stages.parameters(), tuning.largest_norm)))
        if step not in skipped:
            adam.step()
    run.parameters.extend(stage.state_dict() for stage in stages)
    return run


def _loss(stages: nn.ModuleList, shape: Shape, model: ModelOptions, step: int) -> Tensor:
    total = torch.zeros(())
    for pipeline in range(shape.pipelines):
        for micro_batch in range(shape.micro_batches):
            values, targets = make_batch(model, step, Piece(pipeline, micro_batch, 0))
            for stage in stages:
                values = stage(values)
            total = total + loss_of(values, targets, shape)
    return total
