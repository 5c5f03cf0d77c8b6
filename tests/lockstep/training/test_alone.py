"""A worker alone trains as plain torch does, and goes on after its death: as a replica, and as one of a pipeline."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lockstep.errors import JobOver
from lockstep.training.meeting import TrainingOptions
from lockstep.training.participant import MicroBatch
from lockstep.training.pipeline import PipelineWorker
from lockstep.training.pipeline_step import StageProgram
from lockstep.training.replica import Replica
from tests.lockstep.training.conftest import MICRO_BATCHES

pytestmark = pytest.mark.slow  # importing torch takes each worker 4 s

LARGEST_NORM = 1.0  # of a pipeline's gradients
Trained = tuple[nn.Module, Mapping[int, float]]  # the loss of each step


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))  # has no gradient, as much of a real model
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def inputs_of(batch: MicroBatch) -> Tensor:
    return torch.randn(3, generator=torch.Generator().manual_seed(10 * batch.step + batch.number))


def loss_of(outputs: Tensor, batch: MicroBatch) -> Tensor:
    return (outputs - batch.number).square().mean()


def as_replica(options: TrainingOptions, until: int) -> Trained:
    model, optimizer = made()
    losses = {}
    with Replica(options, model, optimizer) as replica:
        for step in replica.steps(until):
            for batch in step:
                step.backward(loss_of(model(inputs_of(batch)), batch))
            optimizer.step()
            losses[step.number] = step.loss
    return model, losses


def as_pipeline(options: TrainingOptions, until: int) -> Trained:
    model, optimizer = made()
    program = StageProgram(model, inputs_of, loss_of, hidden=(2,))
    with PipelineWorker(options, program, optimizer, largest_norm=LARGEST_NORM) as worker:
        steps = list(worker.steps(until))
    assert min(step.factor for step in steps) < 1.0, "clipping had something to do"
    return model, {step.number: step.loss for step in steps}


def plainly(steps: int, largest_norm: float) -> Trained:
    model, optimizer = made()
    losses = {}
    for step in range(steps):
        optimizer.zero_grad()
        batches = [MicroBatch(step, number) for number in range(MICRO_BATCHES)]
        loss = torch.stack([loss_of(model(inputs_of(batch)), batch) for batch in batches]).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), largest_norm)
        optimizer.step()
        losses[step] = float(loss.detach())
    return model, losses


@pytest.mark.parametrize(
    ("train", "norm", "place"),
    [(as_replica, math.inf, "memory"), (as_replica, math.inf, "disk"), (as_pipeline, LARGEST_NORM, "disk")],
)
def test_a_job_all_of_whose_processes_died_goes_on_from_a_snapshot_as_plain_torch_would(
    options: TrainingOptions,
    train: Callable[[TrainingOptions, int], Trained],
    norm: float,
    place: str,
    tmp_path: Path,
) -> None:
    kept = replace(options, memory_every=2, disk_every=2)
    kept = replace(kept, memory=tmp_path / place) if place == "memory" else replace(kept, disk=tmp_path / place)
    _, before = train(kept, 3)
    model, after = train(kept, 5)
    expected, losses = plainly(5, norm)
    assert (list(before), list(after)) == ([0, 1, 2], [2, 3, 4])
    assert {**before, **after} == pytest.approx(losses, rel=1e-6)
    for mine, its in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(mine, its, atol=1e-6)
    with pytest.raises(JobOver, match="the job has done its 5 steps without replica 0"):
        train(kept, 5)
