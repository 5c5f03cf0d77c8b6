"""Training programs of the testbed: a replica that trains a small GPT, a worker of a pipeline, and what hits them."""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Collection
from typing import Self
from unittest import mock

import torch
import torch._dynamo  # torch's optimizers import it when first built: better once, before all forks
from torch import Tensor, nn

from lockstep.in_job import Place
from lockstep.pipeline.schedule import Op
from lockstep.training.group import Group
from lockstep.training.meeting import TrainingOptions
from lockstep.training.participant import Participant
from lockstep.training.pipeline import PipelineWorker
from lockstep.training.pipeline_step import StageProgram, StageStep
from lockstep.training.replica import Replica
from tests.testbed.training.jobs import BEAT_S, LINES, Fault, TrainingJob
from tests.testbed.training.model import HIDDEN, build_stage, inputs_of, loss_of, make_optimizer
from tests.waiting import eventually

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_PIECES = {"both": 2}  # of the time of a forward
VOCABULARY, LENGTH, WIDTH, SAMPLES = 17, 8, 16, 2  # of the GPT


def options_of(job: TrainingJob, place: Place) -> TrainingOptions:
    places = {"disk": job.folder / "disk"} if job.snapshots else {}
    given = {"beat_s": BEAT_S, "silence_s": 2.0, "node": job.node(place), **places, **job.options}
    given |= {"replica": place[0], "stage": place[1], "replicas": job.replicas, "stages": job.stages}
    return TrainingOptions(folder=job.folder, job="train", micro_batches=job.micro_batches, **given)


def strike(faults: Collection[Fault], step: int, done: int, where: str = "micro-batches") -> None:
    """Let the process die or stop, if this is where a fault hits it."""
    for fault in faults:
        if (fault.step, fault.after, fault.where) == (step, done, where) and fault.kind in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[fault.kind])


class Held(Participant):
    """A process that waits before some steps until the job is whole again, and hangs where a fault says so."""

    def hold(self, job: TrainingJob, place: Place, faults: Collection[Fault]) -> Self:
        self._job, self._held = job, {fault.step + 1: fault.step for fault in job.faults if fault.back}
        self._hangs = [each for each in faults if each.kind == "hang" and (each.replica, each.stage) == place]
        return self

    def _leave_group(self) -> None:
        if self._group is not None and self._hangs:
            fault = self._hangs.pop()
            eventually((self._job.folder / f"held-{fault.step}").exists)
        super()._leave_group()

    def _let_in(self) -> bool:
        while not super()._let_in():
            if self.step not in self._held or len(self.members) == len(self._job.places):
                return False
            (self._job.folder / f"held-{self._held[self.step]}").touch()
            self._meeting.wait(BEAT_S)
        return True


class Told:
    """The lines of a process; all processes write to one file."""

    def __init__(self, job: TrainingJob, place: Place) -> None:
        self._place = {"replica": place[0], "stage": place[1]}
        self._file = os.open(job.folder / LINES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, step: int, **figures: float) -> None:
        line = {**self._place, "step": step, "threads": len(os.listdir("/proc/self/task")), **figures}
        os.write(self._file, f"{json.dumps(line | {'at_ns': time.monotonic_ns()})}\n".encode())


class SmallGpt(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Two causal transformer blocks over learnt embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        values = self.tokens(words) + self.places(torch.arange(LENGTH))
        return self.head(self.blocks(values, mask=mask, is_causal=True))


def make_gpt(seed: int = 1) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = SmallGpt()
    # Attention's key biases have no gradient but rounding, of which Adam would make whole steps with its usual eps.
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, foreach=False)


def loss_of_gpt(model: nn.Module, step: int, number: int) -> Tensor:
    """Return the loss of a micro-batch, which is the same wherever it is made."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    words = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
    return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


class HeldReplica(Held, Replica):
    """A replica that waits before some steps."""


def live_as_replica(job: TrainingJob, place: Place, faults: Collection[Fault]) -> None:
    torch.set_num_threads(1)
    number, _ = place
    mine = [fault for fault in faults if fault.replica == number]
    model, optimizer = make_gpt(1 + number)  # the first replica's is everybody's
    replica = HeldReplica(options_of(job, place), model, optimizer).hold(job, place, faults)
    _break_at_buckets(replica, [fault for fault in mine if fault.where == "buckets"])
    told, pause = Told(job, place), threading.Event()
    with replica:
        for step in replica.steps(job.steps):
            for done, batch in enumerate(step):
                strike(mine, batch.step, done, "micro-batches")
                pause.wait(job.pause_s)
                step.backward(loss_of_gpt(model, batch.step, batch.number))
            optimizer.step()
            told.write(step.number, loss=step.loss, members=replica.replicas)
    torch.save(model.state_dict(), job.folder / f"end-{number}-0.pt")


def _break_at_buckets(replica: Replica, faults: Collection[Fault]) -> None:
    """Let the replica break just before it reduces a bucket."""
    inner = Group.sum

    def count(group: Group, values: Tensor) -> None:
        done = sum(known is not None for known in replica.work.gradients.reduced)
        strike(faults, replica.step, done, "buckets")
        inner(group, values)

    if faults:
        mock.patch.object(Group, "sum", count).start()  # in this process, which is one replica


class HeldWorker(Held, PipelineWorker):
    """A worker that waits before some steps."""


def live_in_pipeline(job: TrainingJob, place: Place, faults: Collection[Fault]) -> None:
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
