"""The training program of one replica: a small GPT, and the faults that hit it."""

import json
import os
import signal
import threading
import time
from collections.abc import Collection
from unittest import mock

import torch
import torch._dynamo  # torch's optimizers import it when first built: better once, before all forks
from torch import Tensor, nn

from lockstep.training.group import Group
from lockstep.training.meeting import TrainingOptions
from lockstep.training.replica import Replica
from tests.testbed.replicas import BEAT_S, Fault, ReplicaJob

VOCABULARY, LENGTH, WIDTH, SAMPLES = 17, 8, 16, 2


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
        """Return what may follow each word."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        values = self.tokens(words) + self.places(torch.arange(LENGTH))
        return self.head(self.blocks(values, mask=mask, is_causal=True))


def make_model(seed: int = 1) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and its optimizer as they begin."""
    torch.manual_seed(seed)
    model = SmallGpt()
    # Attention's key biases have no gradient but rounding, of which Adam would make whole steps with its usual eps.
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, foreach=False)


def loss_of(model: nn.Module, step: int, number: int) -> Tensor:
    """Return the loss of a micro-batch, which is the same wherever it is made."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    words = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
    return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


class HeldReplica(Replica):
    """A replica that waits before some steps until the job is whole again."""

    def hold(self, job: ReplicaJob, faults: Collection[Fault]) -> "HeldReplica":
        self._job, self._held = job, {fault.step + 2: fault.step for fault in faults if fault.back}
        return self

    def _begin(self) -> None:
        super()._begin()
        while self.step in self._held and self.replicas < self._job.replicas:
            (self._job.folder / f"held-{self._held[self.step]}").touch()
            self._meeting.tend(self._options.silence_s, takes_new=True)
            if self._meeting.has_newer():
                self._meet(is_broken=False)
            self._meeting.wait(BEAT_S)


def live(job: ReplicaJob, number: int, faults: Collection[Fault]) -> None:
    """Train to the end."""
    torch.set_num_threads(1)
    mine = [fault for fault in faults if fault.replica == number]
    model, optimizer = make_model(1 + number)  # the first replica's is everybody's
    replica = HeldReplica(_options(job, number), model, optimizer).hold(job, job.faults)
    _break_at_buckets(replica, [fault for fault in mine if fault.where == "buckets"])
    file = os.open(job.folder / "lines.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    pause = threading.Event()
    with replica:
        for step in replica.steps(job.steps):
            for done, batch in enumerate(step):
                _break(mine, batch.step, done, "micro-batches")
                pause.wait(job.pause_s)
                step.backward(loss_of(model, batch.step, batch.number))
            optimizer.step()
            line: dict[str, float] = {
                "replica": number,
                "step": step.number,
                "loss": step.loss,
                "replicas": replica.replicas,
            }
            line |= {"threads": len(os.listdir("/proc/self/task")), "at_ns": time.monotonic_ns()}
            os.write(file, f"{json.dumps(line)}\n".encode())
    torch.save(model.state_dict(), job.folder / f"end-{number}.pt")


def _options(job: ReplicaJob, number: int) -> TrainingOptions:
    places = {"disk": job.folder / "disk"} if job.snapshots else {}
    given = {"beat_s": BEAT_S, "silence_s": 2.0, "node": f"h{number}", **places, **job.options}
    return TrainingOptions(
        folder=job.folder,
        job="train",
        replica=number,
        replicas=job.replicas,
        micro_batches=job.micro_batches,
        **given,
    )


def _break(faults: Collection[Fault], step: int, done: int, where: str) -> None:
    for fault in faults:
        if (fault.step, fault.after, fault.where) == (step, done, where):
            os.kill(os.getpid(), signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)


def _break_at_buckets(replica: Replica, faults: Collection[Fault]) -> None:
    """Let the replica break just before it reduces a bucket."""
    inner = Group.sum

    def count(group: Group, values: Tensor) -> None:
        done = sum(known is not None for known in replica.work.gradients.reduced)
        _break(faults, replica.step, done, "buckets")
        inner(group, values)

    if faults:
        mock.patch.object(Group, "sum", count).start()  # in this process, which is one replica
