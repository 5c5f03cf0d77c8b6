"""An optimizer that steps before the global gradient norm is known, and takes the step back where it was wrong.

ReCycle's staggered optimizer: a stage steps as soon as its own gradients are complete, as if they needed no clipping.
When the norm over all stages is known, the step stands, or is undone and done again with clipped gradients, or is
undone and skipped because some stage's gradient is not a number. What counts in the end is what one optimizer for all
stages would have done.
"""

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from lockstep.training.state import State, adopt_state, take_state

_SMALL = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds to the norm
_KEPT = 2  # a worker may have settled a step that a peer, stopped by a loss, has not: then both go back


def clip_factor(norm: float, largest_norm: float) -> float:
    """Return by what gradients of that norm are multiplied; 0 if the step cannot be taken at all."""
    return min(1.0, largest_norm / (norm + _SMALL)) if math.isfinite(norm) else 0.0


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
