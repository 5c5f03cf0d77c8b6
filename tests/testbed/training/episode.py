"""Steps by one schedule among the workers of one meeting, each validated while the next has already begun."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from planner.pipeline.schedule import Op, Schedule, Worker
from tests.testbed.training.exchange import Exchange, PendingSum
from tests.testbed.training.optimizer import StaggeredOptimizer
from tests.testbed.training.plan import StepLine, TrainingPlan
from tests.testbed.training.routes import Piece, find_executors, find_heads, find_unread, tag_of
from tests.testbed.training.stage import StageStep


@dataclass(frozen=True, slots=True)
class Stage:
    """What a worker keeps through all meetings."""

    worker: Worker
    module: nn.Module
    optimizer: StaggeredOptimizer


@dataclass(frozen=True, slots=True)
class Observers:
    """Who is told: before each piece of work (step, number), and of each settled step."""

    before: Callable[[int, int], None]
    settled: Callable[[StepLine], None]


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A step that the optimizer has taken and nobody has validated."""

    work: StageStep
    norm_squared: PendingSum


class Episode:
    """One meeting; `run` breaks with RuntimeError when a worker is gone, and the stage can then go back."""

    def __init__(self, plan: TrainingPlan, stage: Stage, schedule: Schedule, exchange: Exchange) -> None:
        self._plan = plan
        self._stage = stage
        self._exchange = exchange
        self._executors = find_executors(schedule)
        heads = find_heads(schedule)
        ops = schedule.ops[stage.worker]
        self._head, self._rest = ops[: heads[stage.worker]], ops[heads[stage.worker] :]
        self._unread = [
            piece
            for piece in sorted(find_unread(schedule, heads))
            if self._executors[piece.at(piece.stage + 1)] == stage.worker
        ]

    def share_state(self, joined: list[Worker], step: int) -> None:
        """Give the stage's state to workers that have just joined, or take it if this is one of them."""
        worker, optimizer = self._stage.worker, self._stage.optimizer
        giver = min(w for w in self._exchange.live if w.stage == worker.stage and w not in joined)
        for peer in (peer for peer in joined if peer.stage == worker.stage):
            tag = tag_of("state", step, Piece(peer.pipeline, 0, peer.stage), self._plan.shape)
            if worker == giver:
                self._exchange.send(optimizer.pack(), peer, tag)
            elif worker == peer:
                optimizer.adopt(self._exchange.receive(optimizer.pack().shape, giver, tag), step)
        self._exchange.flush()

    def run(self, first: int, end: int, observers: Observers) -> None:
        """Do the steps; afterwards all of them are settled."""
        unsettled: _Unsettled | None = None
        for step in range(first, end):
            work = self._begin(step, observers)
            if unsettled and not self._settle(unsettled, len(self._head), observers):
                for piece in self._unread:
                    work.discard(piece)
                work = self._begin(step, observers)
            self._do(work, self._rest, len(self._head), observers)
            unsettled = self._step_ahead(work)
        if unsettled:
            self._settle(unsettled, 0, observers)

    def _begin(self, step: int, observers: Observers) -> StageStep:
        work = StageStep(
            step, self._plan.shape, self._plan.model, self._stage.module, self._executors, self._exchange
        )
        self._do(work, self._head, 0, observers)
        return work

    def _do(self, work: StageStep, ops: Sequence[Op], done: int, observers: Observers) -> None:
        for number, op in enumerate(ops, done):
            observers.before(work.step, number)
            work.do(op)

    def _step_ahead(self, work: StageStep) -> _Unsettled:
        if any((p.worker, p.step) == (self._stage.worker, work.step) for p in self._plan.poisons):
            work.gradients[0].view(-1)[0] = math.nan
        squared = self._stage.optimizer.step_ahead(work.finish())
        return _Unsettled(work, self._exchange.begin_sum(squared))

    def _settle(self, unsettled: _Unsettled, ahead: int, observers: Observers) -> bool:
        """Validate the step; false if it was amended, so that work done ahead of it is void."""
        norm = math.sqrt(unsettled.norm_squared.wait())
        factor = self._stage.optimizer.settle(norm)
        stands = factor == 1.0
        observers.settled(
            StepLine(
                worker=self._stage.worker,
                step=unsettled.work.step,
                loss=unsettled.work.loss,
                norm=norm if math.isfinite(norm) else None,
                factor=factor,
                redone=0 if stands else ahead,
            )
        )
        return stands
