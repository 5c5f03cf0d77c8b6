"""A replica of a data-parallel job that outlives the loss of others, and its own: `with Replica(...) as replica`.

    for step in replica.steps(until=1000):
        for batch in step:  # this replica's micro-batches; more of them when another replica is lost
            step.backward(loss_of(model(inputs_of(batch.step, batch.number))))
        optimizer.step()  # the gradients are the means over all micro-batches of the step, whoever did them

The loop never sees that a replica was lost: the micro-batches that were lost come as further ones, what was summed up
stays, and the process group is made anew among those who are left (Unicron's transition; agreement.py has the rules).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from lockstep.clock import Clock
from lockstep.errors import BadInput, GroupBroken
from lockstep.in_job import Generation, Over
from lockstep.training.agreement import Agreement, Report, agree, share_micro_batches
from lockstep.training.meeting import TrainingOptions
from lockstep.training.participant import MicroBatch, Participant
from lockstep.training.state import Snapshot, adopt_state

_BUCKET_BYTES = 25 * 2**20  # as DistributedDataParallel: large enough for the network, small enough to be lost


class Gradients:
    """A step's gradients; the last bucket is its loss. Reduced buckets stay what they are until `clear`."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._buckets = list(_divide(parameters, _BUCKET_BYTES))
        self._loss = torch.zeros(1, dtype=torch.float64)
        self.reduced: list[Tensor | None] = []
        self.clear()

    def __len__(self) -> int:
        return len(self._buckets) + 1

    @property
    def loss(self) -> float:
        """The mean over the micro-batches of all replicas; known when the step is reduced."""
        values = self.reduced[-1]
        return float("nan") if values is None else float(values)

    def clear(self) -> None:
        """Begin a step."""
        self.reduced = [None] * len(self)
        self._loss.zero_()
        for parameter in (each for bucket in self._buckets for each in bucket):
            parameter.grad = None

    def add(self, loss: Tensor) -> None:
        """Add a micro-batch's share of the loss, and its gradients."""
        loss.backward()
        self._loss += float(loss.detach())

    def own(self, bucket: int) -> Tensor:
        """Return this replica's sum of a bucket, as a new vector in host memory."""
        if bucket == len(self._buckets):
            return self._loss.clone()
        grads = (torch.zeros_like(each) if each.grad is None else each.grad for each in self._buckets[bucket])
        return torch.cat([grad.reshape(-1) for grad in grads]).cpu()

    def write_back(self) -> None:
        """Put the sums over all replicas where the optimizer looks for them."""
        for bucket, values in zip(self._buckets, self.reduced[:-1], strict=True):
            assert values is not None
            parts = values.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter).to(parameter.device)


class Step:
    """One optimizer step. Iterate over it for micro-batches; when that ends, the gradients are complete."""

    def __init__(self, replica: "Replica") -> None:
        self._replica = replica
        self.number = replica.step

    def __iter__(self) -> Iterator[MicroBatch]:
        work = self._replica.work
        while not work.is_complete:
            while work.left:
                self.number = self._replica.step  # a replica that was given up and came back is in another step
                before = len(work.left)
                yield MicroBatch(self.number, work.left[0])
                if len(work.left) == before:
                    raise BadInput(f"micro-batch {work.left[0]} of step {self.number} got no step.backward(loss)")
            self._replica.reduce()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a micro-batch's loss; it counts with its share of all micro-batches of the step."""
        self._replica.work.add(loss)

    @property
    def loss(self) -> float:
        """The mean over all micro-batches of the step, once it is complete."""
        return self._replica.work.gradients.loss


class Work:
    """What this replica has done of the current step, and has left to do."""

    def __init__(self, gradients: Gradients, micro_batches: int) -> None:
        self.gradients, self._micro_batches = gradients, micro_batches
        self.done: list[int] = []
        self.left: list[int] = []
        self.is_complete = False  # the gradients are, and the optimizer can take its step

    def begin(self, share: tuple[int, ...]) -> None:
        """Begin a step."""
        self.gradients.clear()
        self.done, self.left, self.is_complete = [], list(share), False

    def complete(self) -> None:
        """Give the optimizer the gradients."""
        self.gradients.write_back()
        self.left, self.is_complete = [], True

    @property
    def is_reduced(self) -> bool:
        return all(values is not None for values in self.gradients.reduced)

    def add(self, loss: Tensor) -> None:
        if not self.left:
            raise BadInput("step.backward(loss) is for the micro-batch that the step has just given, once")
        self.gradients.add(loss / self._micro_batches)
        self.done.append(self.left.pop(0))


class Replica(Participant):
    """This process's part in the job."""

    def __init__(
        self, options: TrainingOptions, model: nn.Module, optimizer: torch.optim.Optimizer, clock: Clock | None = None
    ) -> None:
        if options.stages > 1:
            raise BadInput(f"a replica is one process, and the options speak of {options.stages} stages")
        super().__init__(options, model, optimizer, clock)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.work = Work(Gradients(parameters), options.micro_batches)
        self._agreed: Agreement | None = None

    @property
    def replicas(self) -> int:
        """How many replicas work together now."""
        return len(self.members)

    def steps(self, until: int) -> Iterator[Step]:
        """Yield the steps that are left to do; who comes late begins with the one in which the others are."""
        self._until = until
        while self.step < until:
            self._begin()
            yield Step(self)
            if not self.work.is_complete:
                raise BadInput(f"step {self.step} was left before its micro-batches were done")
            self._count_step()
            self._tell_end()

    def reduce(self) -> None:
        """Complete the gradients, or find that more is to do, as somebody was lost."""
        try:
            self._reduce()
        except GroupBroken:
            over = self._meeting.folder.read("over.json", Over)
            if self.work.is_reduced and over is not None and over.step == self.step + 1:
                self.work.complete()  # the others have, and are gone
            else:
                self._meet(is_broken=True)

    def _reduce(self) -> None:
        if self._group is None:
            raise GroupBroken("this replica is in no group")
        gradients = self.work.gradients
        for bucket, known in enumerate(gradients.reduced):
            if known is None:
                values = gradients.own(bucket)
                self._group.sum(values)
                gradients.reduced[bucket] = values
        self._group.begin_sum(torch.zeros(1))()  # whoever is past this knows that everybody has all buckets
        self.work.complete()

    def _begin(self) -> None:
        """Begin a step with those who are there."""
        self.work.begin(self._find_share())
        if self._let_in():
            self._meet(is_broken=False)

    def _find_share(self) -> tuple[int, ...]:
        me = self._options.replica
        if self._agreed is not None and self._agreed.step == self.step:
            return self._agreed.shares[me]
        members = {member.replica: () for member in self.members}
        return share_micro_batches(self._options.micro_batches, members)[me] if me in members else ()

    def _leave_group(self) -> None:
        super()._leave_group()
        self._agreed = None

    def _agree(self, now: Generation) -> None:
        mine, snapshot = self._report()
        reports = self._exchange(now, mine)
        agreed = agree(reports, self._options.micro_batches, len(self.work.gradients))
        ranks = [member.replica for member in now.members]
        self._group = self._connect(f"{now.number}", now.members)
        if mine.replica == agreed.giver and snapshot is not None:
            adopt_state(snapshot.state, self._model, self._optimizer)
        giver, *takers = (now.members[ranks.index(each)] for each in (agreed.giver, *agreed.takers))
        self._share_state(now, giver, takers)
        if mine.source != "live":
            self.step, self._is_live = agreed.step, True
            self.work.begin(())
        self._share_buckets(agreed, ranks)
        self._agreed = agreed
        if mine.replica not in agreed.behind:
            self.work.left = list(agreed.shares[mine.replica])
        if self.work.is_reduced:
            self.work.complete()

    def _report(self) -> tuple[Report, Snapshot | None]:
        """Return where this replica stands, and the snapshot that it means if it has no state."""
        me, work = self._options.replica, self.work
        if self._is_live:
            reduced = tuple(values is not None for values in work.gradients.reduced)
            return Report(replica=me, source="live", step=self.step, done=tuple(work.done), reduced=reduced), None
        found = self._snapshots.newest()
        if found is not None and found.step > self.step:
            return Report(replica=me, source=found.source, step=found.step), found
        # What a replica that was left out holds is as good as a snapshot: it was in no optimizer's step.
        return Report(replica=me, source="memory" if self.step else "nothing", step=self.step), None

    def _share_buckets(self, agreed: Agreement, ranks: list[int]) -> None:
        """Give everybody the buckets that some have reduced."""
        assert self._group is not None
        gradients = self.work.gradients
        for bucket, giver in enumerate(agreed.buckets):
            if giver is not None:
                known = gradients.reduced[bucket]
                values = gradients.own(bucket) if known is None else known
                self._group.broadcast(values, ranks.index(giver))
                gradients.reduced[bucket] = values


def _divide(parameters: Sequence[nn.Parameter], most_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters in buckets of one dtype, the last first: their gradients are complete first."""
    bucket: list[nn.Parameter] = []
    for parameter in reversed(parameters):
        size = sum(each.nbytes for each in bucket) + parameter.nbytes
        if bucket and (size > most_bytes or bucket[0].dtype != parameter.dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
