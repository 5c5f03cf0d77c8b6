"""A worker of a pipeline: what it makes of a step, what it is refused, and where it goes on after its death."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lockstep.errors import BadInput, JobOver, LockstepError
from lockstep.training.meeting import TrainingOptions
from lockstep.training.participant import MicroBatch
from lockstep.training.pipeline import PipelineWorker, Position, SettledStep, agree_on_step
from lockstep.training.pipeline_step import StageProgram
from tests.lockstep.training.conftest import MICRO_BATCHES

pytestmark = pytest.mark.slow  # importing torch takes each worker 4 s


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))  # has no gradient, as much of a real model
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def inputs_of(batch: MicroBatch) -> Tensor:
    return torch.randn(3, generator=torch.Generator().manual_seed(10 * batch.step + batch.number))


def loss_of(outputs: Tensor, batch: MicroBatch) -> Tensor:
    return (outputs - batch.number).square().mean()


def train(options: TrainingOptions, until: int) -> tuple[nn.Module, list[SettledStep]]:
    model, optimizer = made()
    program = StageProgram(model, inputs_of, loss_of, hidden=(2,))
    with PipelineWorker(options, program, optimizer, largest_norm=1.0) as worker:
        return model, list(worker.steps(until))


def plainly(steps: int) -> tuple[nn.Module, list[float]]:
    model, optimizer = made()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        batches = [MicroBatch(step, number) for number in range(MICRO_BATCHES)]
        loss = torch.stack([loss_of(model(inputs_of(batch)), batch) for batch in batches]).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses


def differ(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((mine.detach() - its.detach()).abs().max()) for mine, its in pairs)


def test_one_worker_trains_as_plain_torch_does(options: TrainingOptions) -> None:
    model, steps = train(options, 3)
    expected, losses = plainly(3)
    assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-6)
    assert min(step.factor for step in steps) < 1.0
    assert differ(model, expected) < 1e-6


def test_a_job_all_of_whose_processes_died_goes_on_from_a_snapshot(options: TrainingOptions, tmp_path: Path) -> None:
    kept = replace(options, disk=tmp_path / "disk", disk_every=2)
    train(kept, 3)
    model, steps = train(kept, 5)
    assert [step.number for step in steps] == [2, 3, 4]
    assert differ(model, plainly(5)[0]) < 1e-6


def test_a_process_that_comes_when_the_job_is_done_is_told_so(options: TrainingOptions) -> None:
    train(options, 2)
    with pytest.raises(JobOver, match="the job has done its 2 steps without replica 0"):
        train(options, 2)


def test_micro_batches_that_cannot_be_the_same_for_all_replicas_and_places_off_the_grid_are_refused(
    options: TrainingOptions,
) -> None:
    with pytest.raises(BadInput, match="4 micro-batches are not the same for 3 replicas"):
        train(replace(options, replicas=3), 1)
    with pytest.raises(BadInput, match="stage=2 is none of stages=2"):
        replace(options, stage=2, stages=2)


def position(replica: int, stage: int, *steps: int, is_live: bool = True) -> Position:
    return Position(replica=replica, stage=stage, is_live=is_live, steps=steps)


def fresh(replica: int, stage: int, *steps: int) -> Position:
    return position(replica, stage, *steps, is_live=False)


def test_who_has_settled_a_step_more_goes_back_to_where_the_others_are() -> None:
    found = agree_on_step([position(0, 0, 3, 4), position(1, 0, 2, 3), position(1, 1, 3, 4)])
    assert (found.step, found.takers) == (3, {0: (), 1: ()})


def test_who_joins_gets_the_state_of_its_stage_from_a_live_peer() -> None:
    found = agree_on_step([fresh(0, 0, 0), position(1, 0, 3, 4), position(0, 1, 4, 5), position(1, 1, 4, 5)])
    assert (found.step, found.givers, found.takers) == (4, {0: 1, 1: 0}, {0: (0,), 1: ()})


def test_at_the_beginning_the_first_of_a_stage_gives_its_state_to_the_others() -> None:
    found = agree_on_step([fresh(replica, stage, 0) for replica in range(2) for stage in range(2)])
    assert (found.step, found.givers, found.takers) == (0, {0: 0, 1: 0}, {0: (1,), 1: (1,)})


def test_who_lived_through_the_first_step_counts_more_than_one_who_comes() -> None:
    found = agree_on_step([fresh(0, 0, 0), position(1, 0, 0), position(0, 1, 0, 1)])
    assert (found.givers, found.takers) == ({0: 1, 1: 0}, {0: (0,), 1: ()})


def test_a_job_that_starts_again_goes_on_from_the_newest_snapshots_that_all_stages_have() -> None:
    found = agree_on_step([fresh(0, 0, 0, 7, 8), fresh(0, 1, 0, 6, 7), fresh(1, 0, 0), fresh(1, 1, 0, 7)])
    assert (found.step, found.givers, found.takers) == (7, {0: 0, 1: 0}, {0: (1,), 1: ()})


def test_a_stage_whose_state_is_lost_ends_the_job() -> None:
    with pytest.raises(LockstepError, match=r"no step has its state left at all stages: \{0: \{3, 4\}, 1: \{0\}\}"):
        agree_on_step([position(0, 0, 3, 4), fresh(0, 1, 0)])
