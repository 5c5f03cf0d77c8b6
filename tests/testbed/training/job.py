"""Pipeline jobs on loopback whose workers are killed and come back: `python -m tests.testbed.training.job` < PLANS.

Workers are forked after torch is imported, which takes longer than the jobs; so one process runs any number of them,
one after another. They do the steps by the schedules of their plan, are killed where the plan says so, and go on with
the last step that all survivors have settled. A step in whose middle a worker dies starts again: its partial
gradients are thrown away.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from lockstep.errors import LockstepError
from lockstep.verdict import Frozen
from tests.testbed.training.coordinator import Coordinator
from tests.testbed.training.plan import LossLine, StepLine, TrainingPlan

_LINES = "lines.jsonl"
_PLANS = TypeAdapter(list[TrainingPlan])


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a job told: every settled step of every worker, and every worker that it lost.

    A worker that is killed just after a step may take what it had to tell of that step with it.
    """

    steps: Sequence[StepLine]
    losses: Sequence[LossLine]


def run_training(plans: Sequence[TrainingPlan], limit_s: float = 300.0) -> list[TrainingRun]:
    """Run the jobs in a process of their own; LockstepError with its complaints if one fails."""
    command = [sys.executable, "-m", "tests.testbed.training.job"]
    given = _PLANS.dump_json(list(plans)).decode()
    ended = subprocess.run(command, input=given, stderr=subprocess.PIPE, text=True, timeout=limit_s)
    if ended.returncode:
        raise LockstepError(f"a training job failed with {ended.returncode}: {ended.stderr[-3000:]}")
    return [read_run(plan.folder) for plan in plans]


def read_run(folder: Path) -> TrainingRun:
    """Return what a job has told so far; what was told of steps that the survivors of a loss did again is void."""
    steps: list[StepLine] = []
    losses: list[LossLine] = []
    for line in (folder / _LINES).read_text().splitlines():
        if line.startswith('{"lost"'):
            losses.append(LossLine.model_validate_json(line))
            steps = [earlier for earlier in steps if earlier.step < losses[-1].step]
        else:
            steps.append(StepLine.model_validate_json(line))
    return TrainingRun(steps, losses)


def run_here(plan: TrainingPlan) -> None:
    """Be the coordinator of a job."""
    import torch._dynamo  # torch's optimizers import it when first built: better once, before all forks  # noqa: F401

    from tests.testbed.training.worker import serve

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    plan.folder.mkdir(parents=True, exist_ok=True)
    file = os.open(plan.folder / _LINES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def report(line: Frozen) -> None:
        os.write(file, f"{line.model_dump_json()}\n".encode())  # whole: workers share the file

    try:
        Coordinator(plan, lambda worker, control: serve(plan, worker, control, report), report).run()
    finally:
        os.close(file)


def main(arguments: Sequence[str]) -> None:
    """Run the plans on standard input."""
    if arguments:
        raise SystemExit("usage: python -m tests.testbed.training.job < PLANS")
    try:
        for plan in _PLANS.validate_json(sys.stdin.read()):
            run_here(plan)
    except LockstepError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
