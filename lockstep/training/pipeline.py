"""A worker of a pipeline that outlives the loss of others, and its own: `with PipelineWorker(...) as worker`.

    for step in worker.steps(until=1000):
        print(step.number, step.loss)

The worker does what the schedule of its generation says: its own micro-batches, and those of lost peers of its stage
(ReCycle). Backwards are in two parts where that fills bubbles, and each stage steps its optimizer as soon as its own
gradients are complete; the step is validated while the next one has begun, and taken back where the norm over all
stages says so. When a worker is lost, or one comes, all go back to the last step that everybody has settled.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import Field

from lockstep.clock import Clock
from lockstep.errors import BadInput, GroupBroken, JobOver, LockstepError
from lockstep.in_job import Generation, Member
from lockstep.pipeline.schedule import (
    Op,
    Schedule,
    Shape,
    StepSchedule,
    Times,
    Worker,
    find_executors,
    find_heads,
    find_unread,
    unit_times,
    unpack_schedule,
)
from lockstep.training.meeting import TrainingOptions
from lockstep.training.participant import Participant
from lockstep.training.pipeline_step import Exchange, StageProgram, StageStep, StaggeredOptimizer
from lockstep.training.plans import Grid, assign_roles, find_plan, find_split
from lockstep.training.state import adopt_state
from lockstep.verdict import Frozen


class Position(Frozen):
    """Where a worker is as it enters a generation."""

    replica: int
    stage: int
    is_live: bool = Field(description="it was in every generation since it began")
    steps: tuple[int, ...] = Field(description="settled steps of which it has the state; 0: it has only begun")


@dataclass(frozen=True, slots=True)
class Resumption:
    """How the stages go on."""

    step: int
    givers: Mapping[int, int]  # by stage, the replica whose state counts
    takers: Mapping[int, tuple[int, ...]]  # by stage, the replicas that get it


@dataclass(frozen=True, slots=True)
class SettledStep:
    """A step that stands for good at all stages."""

    number: int
    loss: float  # the mean over all micro-batches
    norm: float  # of the gradients of all stages, before they were clipped
    factor: float  # by which they were multiplied; 0: a gradient was not a number, and the step was skipped
    redone: int  # pieces of the next step's work that were done ahead of the validation, and again


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A step that the optimizer has taken and nobody has validated."""

    work: StageStep
    totals: torch.Tensor  # squared norm and loss, over all workers
    wait: Callable[[], None]


class _Part:
    """What a worker does in every step of a generation."""

    def __init__(self, schedule: Schedule, role: Worker, exchange: Exchange) -> None:
        self.exchange, self.shape = exchange, schedule.shape
        self.executors = find_executors(schedule)
        heads = find_heads(schedule)
        ops = schedule.ops[role]
        self.head, self.rest = ops[: heads[role]], ops[heads[role] :]
        self.unread = [
            piece
            for piece in sorted(find_unread(schedule, heads))
            if self.executors[piece.at(piece.stage + 1)] == role
        ]
        self.speaks = role == min(worker for worker in schedule.ops if worker.stage == role.stage)


class PipelineWorker(Participant):
    """This process's part in the job: one stage of one replica."""

    def __init__(
        self,
        options: TrainingOptions,
        program: StageProgram,
        optimizer: torch.optim.Optimizer,
        largest_norm: float = math.inf,
        times: Times | None = None,
        memory: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Gradients are clipped to `largest_norm`; `times` of pieces of work are equal if not given; `memory` is how
        many micro-batches a worker may hold at a time."""
        super().__init__(options, program.module, optimizer, clock)
        each, more = divmod(options.micro_batches, options.replicas)
        if more:
            raise BadInput(f"{options.micro_batches} micro-batches are not the same for {options.replicas} replicas")
        self._program = program
        shape = Shape(options.stages, options.replicas, each)
        self._grid = Grid(shape, times or unit_times(options.stages), memory)
        self._meeting.speed_after = self._grid.forecast()
        self._staggered = StaggeredOptimizer(program.module, optimizer, largest_norm)
        self._part: _Part | None = None

    def steps(self, until: int) -> Iterator[SettledStep]:
        """Yield each step when it is settled; who comes late begins with the one in which the others are."""
        self._until = until
        told, is_broken = 0, False
        while True:
            try:
                self._meet(is_broken=is_broken)
                for step in self._train():
                    if step.number >= told:
                        told = step.number + 1
                        yield step
                return
            except GroupBroken:
                is_broken = True
            except JobOver:
                if self.step < until:
                    raise
                return

    def _train(self) -> Iterator[SettledStep]:
        """Do the steps that are left, with the members of this generation."""
        part = self._part
        assert part is not None
        ahead: _Ahead | None = None
        for number in range(self.step, self._until):
            if self._let_in():
                raise GroupBroken("there is a newer generation")
            work = self._begin(part, number)
            if ahead is not None:
                settled = self._settle(ahead, len(part.head))
                yield settled
                if settled.factor != 1.0:
                    for piece in part.unread:
                        work.discard(piece)
                    work = self._begin(part, number)
            _do(work, part.rest)
            ahead = self._step_ahead(part, work)
        if ahead is not None:
            yield self._settle(ahead, 0)
        part.exchange.begin_sum(torch.zeros(1))()  # whoever is past this knows that everybody has settled all steps
        self._tell_end()

    def _begin(self, part: _Part, number: int) -> StageStep:
        work = StageStep(number, part.shape, self._program, part.executors, part.exchange)
        _do(work, part.head)
        return work

    def _step_ahead(self, part: _Part, work: StageStep) -> _Ahead:
        squared = self._staggered.step_ahead(work.finish())
        totals = torch.tensor([squared if part.speaks else 0.0, work.loss], dtype=torch.float64)
        return _Ahead(work, totals, part.exchange.begin_sum(totals))

    def _settle(self, ahead: _Ahead, redone: int) -> SettledStep:
        """Validate a step; where it is amended, the work that was done ahead of it is void."""
        ahead.wait()
        squared, loss = ahead.totals.tolist()
        norm = math.sqrt(squared) if squared >= 0 else math.nan
        factor = self._staggered.settle(norm)
        self._count_step()
        return SettledStep(ahead.work.step, loss, norm, factor, 0 if factor == 1.0 else redone)

    def _leave_group(self) -> None:
        if self._part:
            self._part.exchange.give_up()
        self._part = None
        super()._leave_group()

    def _agree(self, now: Generation) -> None:
        position = self._find_position()
        resumption = agree_on_step(self._exchange(now, position))
        schedule = unpack_schedule(self._agree_on_plan(now))
        self._take_state(now, resumption)
        self._group = self._connect(f"{now.number}", now.members)
        peers = self._connect(f"{now.number}.stage-{self._options.stage}", self._peers(now))
        roles = assign_roles(schedule, [_worker_of(member) for member in now.members])
        ranks = {_worker_of(member): rank for rank, member in enumerate(now.members)}
        exchange = Exchange(
            self._group, peers, {role: ranks[worker] for role, worker in roles.items()}, schedule.shape
        )
        mine = next(role for role, worker in roles.items() if worker == _worker_of(self._meeting.me))
        self._part = _Part(schedule, mine, exchange)

    def _find_position(self) -> Position:
        options = self._options
        snapshots = () if self._is_live else (snapshot.step for snapshot in self._snapshots.readable())
        steps = {*self._staggered.steps, *snapshots}
        return Position(
            replica=options.replica, stage=options.stage, is_live=self._is_live, steps=tuple(sorted(steps))
        )

    def _agree_on_plan(self, now: Generation) -> StepSchedule:
        """Return the schedule of a generation, for which its first member looks; at the start all plan ahead."""
        folder, name = self._meeting.folder, f"schedules/{now.number}.json"
        planner = now.members[0]
        if planner == self._meeting.me:
            split = find_split(self._grid.shape, [_worker_of(member) for member in now.members])
            folder.write_first(name, find_plan(folder, self._grid, split))
        if now.number == 1 and self._peers(now)[0] == self._meeting.me and self._options.replicas > 1:
            one_lost = tuple(int(stage == self._options.stage) for stage in range(self._options.stages))
            find_plan(folder, self._grid, one_lost)
        [found] = self._await_files({planner: name}, StepSchedule)
        return found

    def _take_state(self, now: Generation, resumption: Resumption) -> None:
        """Go back to the step with which all go on, or take the state of it from a peer."""
        step, stage = resumption.step, self._options.stage
        peers = {member.replica: member for member in self._peers(now)}
        takers = [peers[replica] for replica in resumption.takers[stage]]
        if self._meeting.me not in takers:
            self._go_back(step)
        self._share_state(now, peers[resumption.givers[stage]], takers)
        self._staggered.begin_at(step)
        self.step, self._is_live = step, True

    def _go_back(self, step: int) -> None:
        if step in self._staggered.steps:
            self._staggered.go_back(step)
        else:
            state = next(each.state for each in self._snapshots.readable() if each.step == step)
            adopt_state(state, self._model, self._optimizer)


def _worker_of(member: Member) -> Worker:
    return Worker(member.replica, member.stage)


def _do(work: StageStep, ops: Sequence[Op]) -> None:
    for op in ops:
        work.do(op)


def agree_on_step(positions: Sequence[Position]) -> Resumption:
    """Return how to go on; LockstepError where no step is left of which every stage has the state."""
    by_stage: dict[int, list[Position]] = {}
    for each in positions:
        by_stage.setdefault(each.stage, []).append(each)
    known = [{step for each in stage for step in each.steps} for stage in by_stage.values()]
    common = set.intersection(*known)
    if not common:
        raise LockstepError(f"no step has its state left at all stages: {dict(zip(by_stage, known, strict=True))}")
    live = [set(each.steps) for each in positions if each.is_live]
    # Of two steps the one that all live workers have: a step that is done again is less than a state that is sent.
    step = max(common.intersection(*live) or common)
    givers = {stage: min(_rank(each, step) for each in found)[-1] for stage, found in by_stage.items()}
    takers = {
        stage: tuple(each.replica for each in found if each.replica != givers[stage] and not _holds(each, step))
        for stage, found in by_stage.items()
    }
    return Resumption(step, givers, takers)


def _rank(position: Position, step: int) -> tuple[bool, bool, int]:
    return step not in position.steps, not position.is_live, position.replica


def _holds(position: Position, step: int) -> bool:
    """Return whether a worker has the state that counts: at the beginning each may have drawn another."""
    return step in position.steps and (step > 0 or position.is_live)
