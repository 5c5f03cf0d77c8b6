"""What training programs of the testbed share: the place they have, the faults that hit them, and what they tell."""

import json
import os
import signal
import time
from collections.abc import Collection
from typing import Self

import torch._dynamo  # torch's optimizers import it when first built: better once, before all forks  # noqa: F401

from lockstep.in_job import Place
from lockstep.training.meeting import TrainingOptions
from lockstep.training.participant import Participant
from tests.testbed.training.jobs import BEAT_S, LINES, Fault, TrainingJob
from tests.waiting import eventually

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


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
