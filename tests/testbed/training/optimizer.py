"""An optimizer that steps before the global gradient norm is known, and takes the step back where it was wrong.

ReCycle's staggered optimizer: a stage steps as soon as its own gradients are complete, as if they needed no clipping.
When the norm over all stages is known, the step stands, or is undone and done again with clipped gradients, or is
undone and skipped because some stage's gradient is not a number. What counts in the end is what one optimizer for all
stages would have done.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tests.testbed.training.exchange import flatten, unflatten
from tests.testbed.training.plan import TuningOptions

_SMALL = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds to the norm
_KEPT = 2  # a worker may have settled a step that a peer, stopped by a death, has not: then both go back


def clip_factor(norm: float, largest_norm: float) -> float:
    """Return by what gradients of that norm are multiplied; 0 if the step cannot be taken at all."""
    return min(1.0, largest_norm / (norm + _SMALL)) if math.isfinite(norm) else 0.0


class StaggeredOptimizer:
    """AdamW over a stage, at most one step ahead of what is settled."""

    def __init__(self, parameters: Sequence[nn.Parameter], options: TuningOptions) -> None:
        self._parameters = list(parameters)
        self._options = options
        self._adam = torch.optim.AdamW(
            self._parameters, lr=options.learning_rate, weight_decay=options.weight_decay, foreach=False
        )
        for parameter in self._parameters:  # made now, not at the first step, so that a state can always be copied
            self._adam.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self._gradients: Sequence[Tensor] = ()
        self._before: dict[int, Tensor] = {}  # the state before each of the last steps
        self.settled = 0

    def step_ahead(self, gradients: Sequence[Tensor]) -> float:
        """Take the next step as if nothing were to be clipped; return the squared norm of these gradients."""
        self._before[self.settled] = self.pack()
        self._before = {step: state for step, state in self._before.items() if step > self.settled - _KEPT}
        self._gradients = gradients
        self._apply(1.0)
        return float(sum(gradient.double().square().sum() for gradient in gradients))

    def settle(self, norm: float) -> float:
        """Let the step stand or amend it, now that the norm is known; return the factor that it was taken with."""
        factor = clip_factor(norm, self._options.largest_norm)
        if factor != 1.0:
            self._unpack(self._before[self.settled])
        if factor not in (0.0, 1.0):
            self._apply(factor)
        self.settled += 1
        return factor

    def go_back(self, settled: int) -> None:
        """Return to the state in which so many steps were settled."""
        if settled in self._before:
            self._unpack(self._before[settled])
        elif settled != self.settled:
            raise ValueError(f"the state after {settled} steps is not kept; {self.settled} are settled")
        self.settled = settled
        self._before = {step: state for step, state in self._before.items() if step < settled}

    def pack(self) -> Tensor:
        """Return parameters and optimizer state as one vector."""
        return flatten(self._state())

    def adopt(self, packed: Tensor, settled: int) -> None:
        """Take over the state that a peer has packed after so many steps."""
        self._unpack(packed)
        self._before = {}
        self.settled = settled

    def _state(self) -> list[Tensor]:
        states = (self._adam.state[parameter] for parameter in self._parameters)
        return self._parameters + [state[name] for state in states for name in ("step", "exp_avg", "exp_avg_sq")]

    def _unpack(self, packed: Tensor) -> None:
        tensors = self._state()
        with torch.no_grad():
            for tensor, values in zip(tensors, unflatten(packed, tensors), strict=True):
                tensor.copy_(values)

    def _apply(self, factor: float) -> None:
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient * factor
        self._adam.step()
