"""A replica of a data-parallel job that outlives the loss of others, and its own: `with Replica(...) as replica`.

    for step in replica.steps(until=1000):
        for batch in step:  # this replica's micro-batches; more of them when another replica is lost
            step.backward(loss_of(model(inputs_of(batch.step, batch.number))))
        optimizer.step()  # the gradients are the means over all micro-batches of the step, whoever did them

The loop never sees that a replica was lost: the micro-batches that were lost come as further ones, what was summed up
stays, and the process group is made anew among those who are left (Unicron's transition; agreement.py has the rules).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep.clock import Clock, SystemClock
from lockstep.errors import BadInput, GroupBroken, LockstepError
from lockstep.in_job import Generation, Over
from lockstep.training.agreement import Agreement, Report, agree, share_micro_batches
from lockstep.training.gradients import Gradients
from lockstep.training.group import Group
from lockstep.training.meeting import STEPS_OF_A_HANG, Meeting, TrainingOptions
from lockstep.training.pace import Pace
from lockstep.training.state import Snapshot, Snapshots, adopt_state, check_model, pack, take_state, unpack

_POLL_S = 0.02  # between two readings at files that others write


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Which one of all: the program must make the same of it at whichever replica."""

    step: int
    number: int


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


class Replica:
    """This process's part in the job."""

    def __init__(
        self, options: TrainingOptions, model: nn.Module, optimizer: torch.optim.Optimizer, clock: Clock | None = None
    ) -> None:
        check_model(model)
        self._options, self._model, self._optimizer = options, model, optimizer
        clock = clock or SystemClock()
        self._meeting, self._pace = Meeting(options, clock), Pace(clock)
        self._snapshots = Snapshots(options.memory, options.disk)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.work = Work(Gradients(parameters), options.micro_batches)
        self.step = 0
        self._until = 0
        self._is_live = False  # it holds the state in which the step of the others begins
        self._group: Group | None = None
        self._agreed: Agreement | None = None

    def __enter__(self) -> "Replica":
        self._meeting.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave_group()
        self._meeting.close()

    @property
    def replicas(self) -> int:
        """How many replicas work together now."""
        return len(self._meeting.now.members) if self._meeting.now else 0

    def steps(self, until: int) -> Iterator[Step]:
        """Yield the steps that are left to do; who comes late begins with the one in which the others are."""
        self._until = until
        while self.step < until:
            self._begin()
            yield Step(self)
            if not self.work.is_complete:
                raise BadInput(f"step {self.step} was left before its micro-batches were done")
            self._settle()

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
        self._group.sum(torch.zeros(1))  # whoever is past this knows that everybody has all buckets
        self.work.complete()

    def _begin(self) -> None:
        """Begin a step with those who are there."""
        self.work.begin(self._find_share())
        self._meeting.tend(self._patience_s, takes_new=True)
        if self._group is None or self._meeting.has_newer():
            self._meet(is_broken=False)

    def _find_share(self) -> tuple[int, ...]:
        me, now = self._options.replica, self._meeting.now
        if self._agreed is not None and self._agreed.step == self.step:
            return self._agreed.shares[me]
        members = {member.replica: () for member in now.members} if now else {}
        return share_micro_batches(self._options.micro_batches, members)[me] if me in members else ()

    def _settle(self) -> None:
        """Count the step that the optimizer has taken."""
        now = self._meeting.now
        assert now is not None
        self.step += 1
        effect, is_first = self._pace.settle(now.number, self.step), now.members[0] == self._meeting.me
        if effect is not None and is_first:
            self._meeting.folder.write(f"effects/{now.number}.json", effect)
        if self.step % self._options.memory_every == 0:
            self._snapshots.save("memory", self.step, take_state(self._model, self._optimizer))
        if is_first and self.step % self._options.disk_every == 0:
            self._snapshots.save("disk", self.step, take_state(self._model, self._optimizer))
        if self.step >= self._until:
            self._meeting.folder.write("over.json", Over(step=self.step))

    @property
    def _patience_s(self) -> float:
        return max(self._options.silence_s, STEPS_OF_A_HANG * self._pace.step_s)

    def _poll(self) -> None:
        """See, while a collective is waited for, whether it will ever end."""
        self._meeting.tend(self._patience_s)
        if self._meeting.has_newer():
            raise GroupBroken("there is a newer generation")

    def _meet(self, *, is_broken: bool) -> None:
        """Join the newest generation and agree with its members, as often as it takes."""
        while True:
            now = self._await_generation(is_broken=is_broken)
            try:
                self._agree(now)
                return
            except GroupBroken:
                is_broken = True

    def _leave_group(self) -> None:
        if self._group:
            self._group.give_up()
        self._group = self._agreed = None

    def _await_generation(self, *, is_broken: bool) -> Generation:
        """Wait for a new generation with this replica in it; LockstepError when the job ends without it."""
        self._leave_group()
        meeting, silence_s = self._meeting, self._options.silence_s
        began_s = meeting.lived_s
        while not (meeting.move_on() and meeting.is_member):
            waited_s = meeting.lived_s - began_s
            if meeting.is_member:
                meeting.tend(silence_s, is_broken=is_broken and waited_s > silence_s + 2 * self._options.beat_s)
            else:
                self._is_live = False  # the others go on without this one
                meeting.begin(waited_s)
                over = meeting.folder.read("over.json", Over)
                if over is not None and over.step >= self._until:
                    raise LockstepError(
                        f"the job has done its {over.step} steps without replica {meeting.me.replica}"
                    )
            meeting.wait(_POLL_S)
        assert meeting.now is not None
        return meeting.now

    def _agree(self, now: Generation) -> None:
        """Come to terms with the members of a generation, and take over what this replica lacks."""
        mine, snapshot = self._report()
        reports = self._exchange(now, mine)
        agreed = agree(reports, self._options.micro_batches, len(self.work.gradients))
        ranks = [member.replica for member in now.members]
        self._group = self._connect(f"{now.number}", ranks)
        if mine.replica == agreed.giver and snapshot is not None:
            adopt_state(snapshot.state, self._model, self._optimizer)
        if agreed.takers and mine.replica in (agreed.giver, *agreed.takers):
            self._share_state(now, agreed)
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

    def _exchange(self, now: Generation, mine: Report) -> list[Report]:
        """Write this replica's report, and wait for those of all other members."""
        folder, names = self._meeting.folder, [f"reports/{now.number}.{each.replica}.json" for each in now.members]
        folder.write(f"reports/{now.number}.{mine.replica}.json", mine)
        while True:
            reports = [report for name in names if (report := folder.read(name, Report)) is not None]
            if len(reports) == len(names):
                return reports
            self._meeting.tend(self._options.silence_s)
            if self._meeting.has_newer():
                raise GroupBroken("there is a newer generation")
            self._meeting.wait(_POLL_S)

    def _connect(self, name: str, replicas: list[int]) -> Group:
        path = self._options.folder / "groups"
        path.mkdir(mode=0o700, exist_ok=True)
        return Group(path / name, replicas.index(self._options.replica), len(replicas), self._poll)

    def _share_state(self, now: Generation, agreed: Agreement) -> None:
        """Give the state to those who lack it, or take it, beside the group of all."""
        some = sorted((agreed.giver, *agreed.takers))
        group, giver = self._connect(f"{now.number}.state", some), some.index(agreed.giver)
        is_giver = self._options.replica == agreed.giver
        packed = pack(take_state(self._model, self._optimizer)) if is_giver else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([packed.numel()])
        group.broadcast(size, giver)
        values = packed if is_giver else torch.empty(int(size), dtype=torch.uint8)
        group.broadcast(values, giver)
        if not is_giver:
            adopt_state(unpack(values), self._model, self._optimizer)

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
