"""The arithmetic of a step at one stage of a pipeline: its pieces of work, backwards in one piece or in two.

The optimizer steps before the global gradient norm is known, and takes the step back where it was wrong (ReCycle's
staggered optimizer): a stage steps as soon as its own gradients are complete, as if they needed no clipping. When the
norm over all stages is known, the step stands, or is undone and done again with clipped gradients, or is undone and
skipped because some stage's gradient is not a number. What counts in the end is what one optimizer for all stages
would have done.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lockstep.pipeline.schedule import Op, Piece, Shape, What, Worker, piece_of, tag_of
from lockstep.training.group import Group
from lockstep.training.participant import MicroBatch
from lockstep.training.state import State, adopt_state, take_state

_SMALL = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds to the norm
_KEPT = 2  # a worker may have settled a step that a peer, stopped by a loss, has not: then both go back


class Exchange:
    """The connections of a generation; a role of the schedule is played by the member of that rank."""

    def __init__(self, everybody: Group, peers: Group, ranks: Mapping[Worker, int], shape: Shape) -> None:
        self._everybody, self._peers, self._ranks, self._shape = everybody, peers, ranks, shape

    def send(self, what: What, step: int, piece: Piece, values: Tensor, to: Worker) -> None:
        """Hand over values without waiting until they are taken."""
        flat = values.detach().cpu().contiguous()
        self._everybody.send(flat, self._ranks[to], tag_of(what, step, piece, self._shape))

    def receive(self, what: What, step: int, piece: Piece, values: Tensor, sender: Worker) -> None:
        """Wait for values."""
        self._everybody.receive(values, self._ranks[sender], tag_of(what, step, piece, self._shape))

    def sum_over_stage(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums over the live workers of the stage."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
        self._peers.sum(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor).to(tensor.device) for part, tensor in zip(parts, tensors, strict=True)]

    def begin_sum(self, values: Tensor) -> Callable[[], None]:
        """Begin to sum over all workers, in place; return what waits until all have added theirs."""
        return self._everybody.begin_sum(values)

    def give_up(self) -> None:
        """End whatever is under way."""
        self._everybody.give_up()
        self._peers.give_up()


@dataclass(frozen=True, slots=True)
class StageProgram:
    """What the training program gives: one stage, what goes into the first and what comes of the last."""

    module: nn.Module
    inputs_of: Callable[[MicroBatch], Tensor]  # asked for at the first stage only
    loss_of: Callable[[Tensor, MicroBatch], Tensor]  # of the last stage's outputs; the mean over the micro-batch
    hidden: tuple[int, ...]  # the shape of what a micro-batch is between two stages
    dtype: torch.dtype = torch.float32  # of the same

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device


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
    program: StageProgram
    executors: Mapping[Piece, Worker]
    exchange: Exchange
    gradients: list[Tensor] = field(init=False)
    loss: float = 0.0
    _kept: dict[Piece, _Kept] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gradients = [torch.zeros_like(parameter) for parameter in self.program.parameters]

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
        return self.exchange.sum_over_stage(self.gradients)

    def _forward(self, piece: Piece) -> None:
        batch = MicroBatch(self.step, piece.pipeline * self.shape.micro_batches + piece.micro_batch)
        before = piece.at(piece.stage - 1)
        inputs = (
            self._receive("activation", before).requires_grad_() if piece.stage else self.program.inputs_of(batch)
        )
        outputs = self.program.module(inputs)
        if piece.stage == self.shape.stages - 1:
            outputs = self.program.loss_of(outputs, batch) / (self.shape.pipelines * self.shape.micro_batches)
            self.loss += float(outputs.detach())
        else:
            self._send("activation", outputs, piece, piece.stage + 1)
        self._kept[piece] = _Kept(inputs, outputs)

    def _backward_input(self, piece: Piece) -> None:
        kept = self._take_gradient(piece)
        if piece.stage:
            # The graph stays: the gradients by the weights come later from the same activations.
            [gradient] = _differentiate(kept, [kept.inputs], stays=True)
            self._send("gradient", gradient, piece, piece.stage - 1)

    def _backward_weight(self, piece: Piece) -> None:
        self._add(_differentiate(self._kept.pop(piece), self.program.parameters))

    def _backward(self, piece: Piece) -> None:
        kept = self._take_gradient(piece)
        del self._kept[piece]
        wanted = [kept.inputs] if piece.stage else []
        found = _differentiate(kept, wanted + self.program.parameters)
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
        self.exchange.send(what, self.step, piece, values, self.executors[piece.at(stage)])

    def _receive(self, what: What, piece: Piece) -> Tensor:
        """Wait for what the executor of a piece sends from there."""
        values = torch.empty(self.program.hidden, dtype=self.program.dtype)
        self.exchange.receive(what, self.step, piece, values, self.executors[piece])
        return values.to(self.program.device)


def _differentiate(kept: _Kept, by: Sequence[Tensor], *, stays: bool = False) -> Sequence[Tensor]:
    """Return the gradients; zeros by what the outputs do not depend on."""
    found: Sequence[Tensor] = torch.autograd.grad(
        kept.outputs, by, kept.gradient, retain_graph=stays, materialize_grads=True
    )
    return found


class StaggeredOptimizer:
    """An optimizer over a stage, at most one step ahead of what is settled."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, largest_norm: float = math.inf) -> None:
        self._model, self._optimizer, self._largest_norm = model, optimizer, largest_norm
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._gradients: Sequence[Tensor] = ()
        self._before: dict[int, State] = {}  # the state before each of the last steps
        self.settled = 0

    @property
    def steps(self) -> tuple[int, ...]:
        """To how many settled steps it can go back."""
        return tuple(sorted({*self._before, self.settled}))

    def step_ahead(self, gradients: Sequence[Tensor]) -> float:
        """Take the next step as if nothing were to be clipped; return the squared norm of these gradients."""
        self._before[self.settled] = deepcopy(take_state(self._model, self._optimizer))
        self._before = {step: state for step, state in self._before.items() if step > self.settled - _KEPT}
        self._gradients = gradients
        self._apply(1.0)
        return float(sum(gradient.double().square().sum() for gradient in gradients))

    def settle(self, norm: float) -> float:
        """Let the step stand or amend it, now that the norm is known; return the factor that it was taken with."""
        factor = clip_factor(norm, self._largest_norm)
        if factor != 1.0:
            self._restore(self.settled)
        if factor not in (0.0, 1.0):
            self._apply(factor)
        self.settled += 1
        return factor

    def go_back(self, settled: int) -> None:
        """Return to the state in which so many steps were settled."""
        if settled in self._before:
            self._restore(settled)
        elif settled != self.settled:
            raise ValueError(f"the state after {settled} steps is not kept; {self.settled} are settled")
        self.begin_at(settled)

    def begin_at(self, settled: int) -> None:
        """Take what model and optimizer hold for the state in which so many steps were settled."""
        self.settled = settled
        self._before = {step: state for step, state in self._before.items() if step < settled}

    def _restore(self, settled: int) -> None:
        # The optimizer keeps what it is given and goes on with it: the copy stays what it was.
        adopt_state(deepcopy(self._before[settled]), self._model, self._optimizer)

    def _apply(self, factor: float) -> None:
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient * factor
        self._optimizer.step()
        self._optimizer.zero_grad()


def clip_factor(norm: float, largest_norm: float) -> float:
    """Return by what gradients of that norm are multiplied; 0 if the step cannot be taken at all."""
    return min(1.0, largest_norm / (norm + _SMALL)) if math.isfinite(norm) else 0.0
