"""The process of one worker: does its part of the schedules it is told, and keeps its state when a peer dies.

From the inside out: the arithmetic of one step, with backwards in one piece or in two; steps by one schedule among
the workers of one meeting, each validated while the next has already begun; and the process that is told what to do.
"""

import math
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from lockstep.pipeline.routes import Piece, What, find_executors, find_heads, find_unread, piece_of, tag_of
from lockstep.pipeline.schedule import Op, Schedule, Shape, Worker
from tests.testbed.training.exchange import Exchange, PendingSum
from tests.testbed.training.model import build_stage, loss_of, make_batch
from tests.testbed.training.optimizer import StaggeredOptimizer
from tests.testbed.training.plan import Command, ModelOptions, Reply, StepLine, TrainingPlan, find_schedule


@dataclass(slots=True)
class _Kept:
    """What a forward leaves for its backward."""

    inputs: Tensor
    outputs: Tensor
    gradient: Tensor | None = None  # of the loss by the outputs; None at the last stage, whose output is the loss


@dataclass(slots=True)
class StageStep:
    """A step of one stage at one worker; gradients grow as its pieces of work are done."""

    step: int
    shape: Shape
    model: ModelOptions
    module: nn.Module
    executors: dict[Piece, Worker]
    exchange: Exchange
    gradients: list[Tensor] = field(init=False)
    loss: float = 0.0
    _kept: dict[Piece, _Kept] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gradients = [torch.zeros_like(parameter) for parameter in self._parameters]

    def do(self, op: Op) -> None:
        """Do a piece of work; waits for what it needs from other workers."""
        actions: dict[str, Callable[[Piece], None]] = {
            "forward": self._forward,
            "input": self._backward_input,
            "weight": self._backward_weight,
            "both": self._backward,
        }
        actions[op.kind](piece_of(op))

    def discard(self, piece: Piece) -> None:
        """Take an activation that was sent too early out of the way."""
        self._receive("activation", piece)

    def finish(self) -> list[Tensor]:
        """Return the gradients of the stage, summed over its live workers."""
        self.exchange.flush()
        return self.exchange.sum_over_stage(self.gradients)

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return list(self.module.parameters())

    def _forward(self, piece: Piece) -> None:
        batch, targets = make_batch(self.model, self.step, piece)
        inputs = self._receive("activation", piece.at(piece.stage - 1)).requires_grad_() if piece.stage else batch
        outputs = self.module(inputs)
        if piece.stage == self.shape.stages - 1:
            outputs = loss_of(outputs, targets, self.shape)
            self.loss += float(outputs.detach())
        else:
            self._send("activation", outputs.detach(), piece, piece.stage + 1)
        self._kept[piece] = _Kept(inputs, outputs)

    def _backward_input(self, piece: Piece) -> None:
        kept = self._take_gradient(piece)
        if piece.stage:
            # The graph stays: the gradients by the weights come later from the same activations.
            [gradient] = torch.autograd.grad(kept.outputs, [kept.inputs], kept.gradient, retain_graph=True)
            self._send("gradient", gradient, piece, piece.stage - 1)

    def _backward_weight(self, piece: Piece) -> None:
        kept = self._kept.pop(piece)
        self._add(torch.autograd.grad(kept.outputs, self._parameters, kept.gradient))

    def _backward(self, piece: Piece) -> None:
        kept = self._take_gradient(piece)
        del self._kept[piece]
        wanted = [kept.inputs] if piece.stage else []
        found = torch.autograd.grad(kept.outputs, wanted + self._parameters, kept.gradient)
        if piece.stage:
            self._send("gradient", found[0], piece, piece.stage - 1)
        self._add(found[len(wanted) :])

    def _take_gradient(self, piece: Piece) -> _Kept:
        kept = self._kept[piece]
        if piece.stage < self.shape.stages - 1:
            kept.gradient = self._receive("gradient", piece.at(piece.stage + 1))
        return kept

    def _add(self, found: Sequence[Tensor]) -> None:
        for total, gradient in zip(self.gradients, found, strict=True):
            total += gradient

    def _send(self, what: What, values: Tensor, piece: Piece, stage: int) -> None:
        self.exchange.send(values, self.executors[piece.at(stage)], tag_of(what, self.step, piece, self.shape))

    def _receive(self, what: What, piece: Piece) -> Tensor:
        """Wait for what the executor of a piece sends from there; every message has the shape of a micro-batch."""
        shape = (self.model.samples, self.model.width)
        return self.exchange.receive(shape, self.executors[piece], tag_of(what, self.step, piece, self.shape))


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


def state_file(folder: Path, worker: Worker) -> Path:
    """Return where a worker leaves its state at the end."""
    return folder / f"state-{worker.pipeline}-{worker.stage}.pt"


def serve(plan: TrainingPlan, worker: Worker, control: socket.socket, report: Callable[[StepLine], None]) -> None:
    """Follow the commands that come until one asks for no steps, then save the state."""
    torch.set_num_threads(1)
    module = build_stage(plan.model, worker.stage)
    stage = Stage(worker, module, StaggeredOptimizer(list(module.parameters()), plan.tuning))
    with control.makefile("r") as lines:
        for line in lines:
            command = Command.model_validate_json(line)
            if command.first == command.end:
                torch.save(
                    {"parameters": module.state_dict(), "packed": stage.optimizer.pack()},
                    state_file(plan.folder, worker),
                )
                return
            answer(control, _obey(plan, stage, command, Observers(_stand(control, stage, command), report)))


def answer(control: socket.socket, reply: Reply) -> None:
    """Send a reply to the coordinator."""
    control.sendall(f"{reply.model_dump_json()}\n".encode())


def _obey(plan: TrainingPlan, stage: Stage, command: Command, observers: Observers) -> Reply:
    schedule = find_schedule(plan, frozenset(command.failed))
    if stage.worker not in command.joined:
        stage.optimizer.go_back(command.first)
    path = plan.folder / f"meeting-{command.generation}"
    exchange = Exchange(stage.worker, sorted(schedule.ops), path, plan.timeout_s)
    try:
        episode = Episode(plan, stage, schedule, exchange)
        episode.share_state(list(command.joined), command.first)
        episode.run(command.first, command.end, observers)
    except RuntimeError as error:  # what gloo raises when a connection ends
        return Reply(state="broken", settled=stage.optimizer.settled, reason=str(error))
    finally:
        exchange.close()
    return Reply(state="done", settled=stage.optimizer.settled)


def _stand(control: socket.socket, stage: Stage, command: Command) -> Callable[[int, int], None]:
    """Return a check that stops the worker at its spot, where it waits to be killed."""

    def check(step: int, number: int) -> None:
        if (step, number) == command.stand_at:
            answer(control, Reply(state="standing", settled=stage.optimizer.settled))
            while True:
                signal.pause()

    return check
