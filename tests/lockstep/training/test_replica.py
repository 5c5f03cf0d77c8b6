"""A training loop of one replica: what it is given, what it is refused, and where it goes on after its death."""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from lockstep.errors import BadInput, LockstepError
from lockstep.training.meeting import TrainingOptions
from lockstep.training.replica import Replica
from tests.conftest import REPO
from tests.lockstep.training.conftest import MICRO_BATCHES
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slow  # importing torch takes each worker 4 s


def made() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def inputs(step: int, number: int) -> torch.Tensor:
    return torch.randn(3, generator=torch.Generator().manual_seed(10 * step + number))


def train(options: TrainingOptions, until: int) -> tuple[nn.Linear, list[tuple[int, float]]]:
    model, optimizer = made()
    losses = []
    with Replica(options, model, optimizer) as replica:
        for step in replica.steps(until):
            for batch in step:
                step.backward(model(inputs(batch.step, batch.number)).square().sum())
            optimizer.step()
            losses.append((step.number, step.loss))
    return model, losses


def plainly(steps: int) -> tuple[nn.Linear, list[float]]:
    model, optimizer = made()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.stack([model(inputs(step, number)).square().sum() for number in range(MICRO_BATCHES)]).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses


def test_one_replica_trains_as_plain_torch_does(options: TrainingOptions) -> None:
    model, losses = train(options, 3)
    expected, its = plainly(3)
    assert [loss for _, loss in losses] == pytest.approx(its, rel=1e-6)
    assert torch.allclose(model.weight, expected.weight, atol=1e-6)


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_job_all_of_whose_processes_died_goes_on_from_a_snapshot(
    options: TrainingOptions, place: str, tmp_path: Path
) -> None:
    kept = replace(options, memory_every=2, disk_every=2)
    kept = replace(kept, memory=tmp_path / place) if place == "memory" else replace(kept, disk=tmp_path / place)
    train(kept, 3)
    model, losses = train(kept, 5)
    assert [step for step, _ in losses] == [2, 3, 4]
    assert torch.allclose(model.weight, plainly(5)[0].weight, atol=1e-6)


def test_a_process_that_comes_when_the_job_is_done_is_told_so(options: TrainingOptions) -> None:
    train(options, 2)
    with pytest.raises(LockstepError, match="the job has done its 2 steps without replica 0"):
        train(options, 2)


@pytest.fixture
def replica(options: TrainingOptions) -> Iterator[Replica]:
    with Replica(options, *made()) as opened:
        yield opened


def test_a_loop_that_forgets_a_backward_is_told_which(replica: Replica) -> None:
    [first, *_] = [next(replica.steps(2))]
    with pytest.raises(BadInput, match=r"micro-batch 0 of step 0 got no step\.backward"):
        list(first)


def test_a_loop_that_leaves_a_step_early_or_counts_a_loss_twice_is_refused(replica: Replica) -> None:
    steps = replica.steps(2)
    step = next(steps)
    with pytest.raises(BadInput, match="step 0 was left before its micro-batches were done"):
        next(steps)
    for _ in range(MICRO_BATCHES):
        step.backward(torch.ones(1, requires_grad=True).sum())
    with pytest.raises(BadInput, match="for the micro-batch that the step has just given, once"):
        step.backward(torch.ones(1, requires_grad=True).sum())


def programs_of_the_manual() -> list[str]:
    manual = (REPO / "docs" / "training.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", manual, re.DOTALL)


def test_the_program_of_the_manual_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    program, _ = programs_of_the_manual()
    assert len(program.splitlines()) <= 150
    names: dict[str, object] = {"__name__": "manual"}
    exec(compile(program.replace("/dev/shm", str(tmp_path)), "docs/training.md", "exec"), names)
    main = names["main"]
    assert callable(main)
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        main(tmp_path / "job", 0, 1, 3)
    losses = [float(line.split()[3]) for line in told.getvalue().splitlines()]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_the_pipeline_of_the_manual_runs_as_it_stands(tmp_path: Path) -> None:
    _, program = programs_of_the_manual()
    file = tmp_path / "train.py"
    file.write_text(program, encoding="utf-8")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(REPO)}
    stages = [
        subprocess.Popen(
            [sys.executable, file, tmp_path / "job", "0", "1", str(stage), "2", "4"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for stage in range(2)
    ]
    told = [stage.communicate(timeout=LIMIT_S)[0].splitlines() for stage in stages]
    assert told[0] == told[1]
    losses = [float(line.split()[3]) for line in told[0]]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
