"""The arithmetic of one worker in one step: forwards, and backwards in one piece or in two."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from planner.pipeline.schedule import Op, Shape, Worker
from tests.testbed.training.exchange import Exchange
from tests.testbed.training.model import loss_of, make_batch
from tests.testbed.training.plan import ModelOptions
from tests.testbed.training.routes import Piece, What, piece_of, tag_of


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
