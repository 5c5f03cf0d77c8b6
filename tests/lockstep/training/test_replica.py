"""A training loop that forgets something is told what, and the programs of the manual run as they stand."""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from lockstep.errors import BadInput
from lockstep.training.meeting import TrainingOptions
from lockstep.training.replica import Replica
from tests.conftest import REPO
from tests.lockstep.training.conftest import MICRO_BATCHES
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slow  # importing torch takes each worker 4 s


@pytest.fixture
def replica(options: TrainingOptions) -> Iterator[Replica]:
    model = nn.Linear(3, 2)
    with Replica(options, model, torch.optim.SGD(model.parameters(), 0.1)) as opened:
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
