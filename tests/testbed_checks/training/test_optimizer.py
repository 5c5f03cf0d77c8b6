"""A step taken before the norm is known ends as the step of an optimizer that knew it."""

import math

import pytest
import torch
from torch import Tensor, nn

from tests.testbed.training.optimizer import StaggeredOptimizer, clip_factor
from tests.testbed.training.plan import TuningOptions

pytestmark = pytest.mark.slow  # the first AdamW of a process imports half of torch

OPTIONS = TuningOptions(largest_norm=1.0)
GRADIENTS = [torch.tensor([3.0, -4.0]), torch.tensor([[0.5]])]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([[-1.0]]))]


def knowing(factors: list[float]) -> Tensor:
    """What plain AdamW makes of the gradients with these factors, one step each."""
    values = parameters()
    adam = torch.optim.AdamW(values, lr=OPTIONS.learning_rate, weight_decay=OPTIONS.weight_decay, foreach=False)
    for factor in factors:
        for value, gradient in zip(values, GRADIENTS, strict=True):
            value.grad = gradient * factor
        adam.step()
    return torch.cat([value.detach().reshape(-1) for value in values])


def values_of(optimizer: StaggeredOptimizer) -> Tensor:
    return optimizer.pack()[:3]


def test_step_stands_within_the_limit_is_clipped_beyond_it_and_leaves_no_trace_where_it_is_no_number() -> None:
    optimizer = StaggeredOptimizer(parameters(), OPTIONS)
    squared = optimizer.step_ahead(GRADIENTS)
    ahead = optimizer.pack()

    assert squared == pytest.approx(25.25)
    assert optimizer.settle(0.5) == 1.0
    assert torch.equal(optimizer.pack(), ahead)
    assert torch.equal(values_of(optimizer), knowing([1.0]))
    optimizer = StaggeredOptimizer(parameters(), OPTIONS)
    for _ in range(2):
        optimizer.step_ahead(GRADIENTS)
        factor = optimizer.settle(4.0)

    assert factor == pytest.approx(0.25)
    assert torch.equal(values_of(optimizer), knowing([factor, factor]))
    assert optimizer.settled == 2
    optimizer = StaggeredOptimizer(parameters(), OPTIONS)
    before = optimizer.pack()
    optimizer.step_ahead([gradient * math.nan for gradient in GRADIENTS])

    assert optimizer.settle(math.nan) == 0.0
    assert torch.equal(optimizer.pack(), before)
    assert optimizer.settled == 1


def test_steps_of_which_a_peer_knows_nothing_are_taken_back() -> None:
    optimizer = StaggeredOptimizer(parameters(), OPTIONS)
    states = []
    for _ in range(3):
        states.append(optimizer.pack())
        optimizer.step_ahead(GRADIENTS)
        optimizer.settle(4.0)
    states.append(optimizer.pack())
    optimizer.step_ahead(GRADIENTS)  # not settled

    optimizer.go_back(3)
    assert torch.equal(optimizer.pack(), states[3])
    optimizer.go_back(2)
    assert torch.equal(optimizer.pack(), states[2])
    with pytest.raises(ValueError, match="the state after 0 steps is not kept; 2 are settled"):
        optimizer.go_back(0)


def test_worker_that_joins_goes_on_as_its_peer_does() -> None:
    giver, taker = (StaggeredOptimizer(parameters(), OPTIONS) for _ in range(2))
    giver.step_ahead(GRADIENTS)
    giver.settle(4.0)

    taker.adopt(giver.pack(), giver.settled)

    for optimizer in (giver, taker):
        optimizer.step_ahead(GRADIENTS)
        optimizer.settle(0.1)
    assert torch.equal(taker.pack(), giver.pack())
    assert taker.settled == 2


def test_factor_is_that_of_torch() -> None:
    values = parameters()
    for value, gradient in zip(values, GRADIENTS, strict=True):
        value.grad = gradient.clone()
    norm = float(nn.utils.clip_grad_norm_(values, 2.0))

    assert values[0].grad is not None
    assert torch.allclose(values[0].grad, GRADIENTS[0] * clip_factor(norm, 2.0))
    assert [clip_factor(norm, 2.0) for norm in (1.0, math.inf)] == [1.0, 0.0]
