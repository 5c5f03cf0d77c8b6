"""A step taken before the norm is known ends as the step of an optimizer that knew it."""

import math

import pytest
import torch
from torch import Tensor, nn

from lockstep.training.pipeline_step import StaggeredOptimizer, clip_factor

pytestmark = pytest.mark.slow  # the first AdamW of a process imports half of torch

GRADIENTS = [torch.tensor([[3.0, -4.0]]), torch.tensor([0.5])]


def made() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(2, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, foreach=False)


def knowing(factors: list[float]) -> Tensor:
    """What plain AdamW makes of the gradients with these factors, one step each."""
    model, adam = made()
    for factor in factors:
        for value, gradient in zip(model.parameters(), GRADIENTS, strict=True):
            value.grad = gradient * factor
        adam.step()
    return values_of(model)


def values_of(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().clone().reshape(-1) for value in model.parameters()])


def stagger() -> tuple[nn.Linear, StaggeredOptimizer]:
    model, adam = made()
    return model, StaggeredOptimizer(model, adam, largest_norm=1.0)


def test_a_step_within_the_limit_stands() -> None:
    model, optimizer = stagger()
    assert optimizer.step_ahead(GRADIENTS) == pytest.approx(25.25)
    assert optimizer.settle(0.5) == 1.0
    assert torch.equal(values_of(model), knowing([1.0]))


def test_a_step_beyond_the_limit_is_taken_back_and_clipped() -> None:
    model, optimizer = stagger()
    for _ in range(3):
        optimizer.step_ahead(GRADIENTS)
        factor = optimizer.settle(4.0)
    assert factor == pytest.approx(0.25)
    assert torch.equal(values_of(model), knowing([factor] * 3))
    assert optimizer.settled == 3


def test_a_step_whose_gradient_is_no_number_leaves_no_trace() -> None:
    model, optimizer = stagger()
    optimizer.step_ahead([gradient * math.nan for gradient in GRADIENTS])
    assert optimizer.settle(math.nan) == 0.0
    assert torch.equal(values_of(model), knowing([]))
    optimizer.step_ahead(GRADIENTS)
    optimizer.settle(0.5)
    assert torch.equal(values_of(model), knowing([1.0]))
    assert optimizer.settled == 2


def test_steps_of_which_a_peer_knows_nothing_are_taken_back() -> None:
    model, optimizer = stagger()
    states = []
    for _ in range(3):
        states.append(values_of(model))
        optimizer.step_ahead(GRADIENTS)
        optimizer.settle(4.0)
    states.append(values_of(model))
    optimizer.step_ahead(GRADIENTS)  # not settled

    assert optimizer.steps == (2, 3)
    optimizer.go_back(3)
    assert torch.equal(values_of(model), states[3])
    optimizer.go_back(2)
    assert torch.equal(values_of(model), states[2])
    with pytest.raises(ValueError, match="the state after 0 steps is not kept; 2 are settled"):
        optimizer.go_back(0)
    optimizer.step_ahead(GRADIENTS)
    optimizer.settle(4.0)
    assert torch.equal(values_of(model), states[3]), "the optimizer's own state went back with the parameters"


def test_the_factor_is_that_of_torch() -> None:
    model, _ = made()
    for value, gradient in zip(model.parameters(), GRADIENTS, strict=True):
        value.grad = gradient.clone()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 2.0))

    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, GRADIENTS[0] * clip_factor(norm, 2.0))
    factors = [clip_factor(norm, most) for norm, most in ((1.0, 2.0), (9.0, math.inf), (math.inf, 2.0))]
    assert factors == [1.0, 1.0, 0.0]
