"""The same training in one process with plain torch: one model, one optimizer, torch's own clipping."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.training.participant import MicroBatch
from tests.testbed.training.model import build_stage, inputs_of, loss_of, make_optimizer


@dataclass(frozen=True, slots=True)
class PlainRun:
    """Losses and gradient norms of all steps, and the parameters of each stage after the last."""

    losses: list[float]
    norms: list[float]
    parameters: list[dict[str, Tensor]]


def train_plainly(
    stages: int, micro_batches: int, steps: int, largest_norm: float, skipped: Collection[int] = ()
) -> PlainRun:
    """Train without pipeline; the optimizer passes over skipped steps."""
    model = nn.Sequential(*(build_stage(stage) for stage in range(stages)))
    optimizer = make_optimizer(model)
    run = PlainRun([], [], [])
    for step in range(steps):
        optimizer.zero_grad()
        batches = [MicroBatch(step, number) for number in range(micro_batches)]
        loss = torch.stack([loss_of(model(inputs_of(batch)), batch) for batch in batches]).mean()
        loss.backward()
        run.losses.append(float(loss.detach()))
        run.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), largest_norm)))
        if step not in skipped:
            optimizer.step()
    run.parameters.extend(stage.state_dict() for stage in model)
    return run
