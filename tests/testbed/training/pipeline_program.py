"""The training program of one worker of a pipeline: a few blocks, and the faults that hit it."""

import math
import threading
from collections.abc import Collection
from unittest import mock

import torch
from torch import Tensor

from lockstep.in_job import Place
from lockstep.pipeline.schedule import Op
from lockstep.training.pipeline import PipelineWorker
from lockstep.training.pipeline_step import StageProgram, StageStep
from tests.testbed.training.faulty import Held, Told, options_of, strike
from tests.testbed.training.jobs import Fault, TrainingJob
from tests.testbed.training.model import HIDDEN, build_stage, inputs_of, loss_of, make_optimizer

_PIECES = {"both": 2}  # of the time of a forward


class HeldWorker(Held, PipelineWorker):
    """A worker that waits before some steps."""


def live(job: TrainingJob, place: Place, faults: Collection[Fault]) -> None:
    torch.set_num_threads(1)
    replica, stage = place
    mine = [fault for fault in faults if (fault.replica, fault.stage) == place]
    module = build_stage(stage, seed=1 + replica)  # the first replica's is everybody's
    optimizer = make_optimizer(module)
    program = StageProgram(module, inputs_of, loss_of, HIDDEN)
    worker = HeldWorker(options_of(job, place), program, optimizer, job.largest_norm).hold(job, place, faults)
    _break_at_work(job, mine)
    told = Told(job, place)
    with worker:
        for step in worker.steps(job.steps):
            figures = {"loss": step.loss, "norm": step.norm, "factor": step.factor, "redone": step.redone}
            told.write(step.number, members=len(worker.members), **figures)
    torch.save(module.state_dict(), job.folder / f"end-{replica}-{stage}.pt")


def _break_at_work(job: TrainingJob, faults: Collection[Fault]) -> None:
    """Let the worker break before a piece of work, or its gradients be no numbers; let each piece take its time."""
    do, finish, pause = StageStep.do, StageStep.finish, threading.Event()
    done: dict[int, int] = {}

    def count(work: StageStep, op: Op) -> None:
        strike(faults, work.step, done.setdefault(work.step, 0))
        do(work, op)
        pause.wait(job.pause_s * _PIECES.get(op.kind, 1))
        done[work.step] += 1

    def poison(work: StageStep) -> list[Tensor]:
        if any(fault.kind == "poison" and fault.step == work.step for fault in faults):
            work.gradients[0].view(-1)[0] = math.nan
        return finish(work)

    mock.patch.object(StageStep, "do", count).start()  # in this process, which is one worker
    mock.patch.object(StageStep, "finish", poison).start()
