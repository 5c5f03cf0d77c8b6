"""The training program of one replica: a small GPT, and the faults that hit it."""

import threading
from collections.abc import Collection
from unittest import mock

import torch
from torch import Tensor, nn

from lockstep.in_job import Place
from lockstep.training.group import Group
from lockstep.training.replica import Replica
from tests.testbed.training.faulty import Held, Told, options_of, strike
from tests.testbed.training.jobs import Fault, TrainingJob

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
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        values = self.tokens(words) + self.places(torch.arange(LENGTH))
        return self.head(self.blocks(values, mask=mask, is_causal=True))


def make_model(seed: int = 1) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = SmallGpt()
    # Attention's key biases have no gradient but rounding, of which Adam would make whole steps with its usual eps.
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, foreach=False)


def loss_of(model: nn.Module, step: int, number: int) -> Tensor:
    """Return the loss of a micro-batch, which is the same wherever it is made."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    words = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
    return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


class HeldReplica(Held, Replica):
    """A replica that waits before some steps."""


def live(job: TrainingJob, place: Place, faults: Collection[Fault]) -> None:
    torch.set_num_threads(1)
    number, _ = place
    mine = [fault for fault in faults if fault.replica == number]
    model, optimizer = make_model(1 + number)  # the first replica's is everybody's
    replica = HeldReplica(options_of(job, place), model, optimizer).hold(job, place, faults)
    _break_at_buckets(replica, [fault for fault in mine if fault.where == "buckets"])
    told, pause = Told(job, place), threading.Event()
    with replica:
        for step in replica.steps(job.steps):
            for done, batch in enumerate(step):
                strike(mine, batch.step, done, "micro-batches")
                pause.wait(job.pause_s)
                step.backward(loss_of(model, batch.step, batch.number))
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
