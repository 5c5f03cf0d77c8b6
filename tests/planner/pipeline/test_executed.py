"""A schedule done by real autograd, worker by worker, gives the gradients of the whole batch in one piece."""

from collections import deque
from typing import Any, NamedTuple

import pytest

from planner.pipeline.dispatch import ScheduleOptions, plan_schedule
from planner.pipeline.schedule import Op, Schedule, Shape, Worker, unit_times

pytestmark = pytest.mark.slow  # importing torch takes seconds

GRID = Shape(stages=2, pipelines=3, micro_batches=4)
DEEP = Shape(stages=3, pipelines=2, micro_batches=3)  # has a stage with neighbours on both sides
LOST, OTHER = Worker(1, 1), Worker(2, 0)
WIDTH = 8


class Piece(NamedTuple):
    """A micro-batch at a stage."""

    pipeline: int
    micro_batch: int
    stage: int

    def at(self, stage: int) -> "Piece":
        return self._replace(stage=stage)


class Execution:
    """All workers of a schedule, each of which does its pieces of work in order and waits for what they need."""

    def __init__(self, schedule: Schedule, stages: list[Any], batches: dict[tuple[int, int], Any]) -> None:
        self._schedule, self._stages, self._batches = schedule, stages, batches
        self._last = len(stages) - 1
        self._activations: dict[Piece, Any] = {}
        self._gradients: dict[Piece, Any] = {}
        self._kept: dict[tuple[Worker, Piece], tuple[Any, Any]] = {}  # what a forward leaves, where it was done

    def run(self) -> None:
        """Do everything; gradients grow in the parameters of the stages."""
        left = {worker: deque(ops) for worker, ops in self._schedule.ops.items()}
        while any(left.values()):
            ready = [worker for worker, ops in left.items() if ops and self._is_fed(ops[0])]
            assert ready, f"everybody waits: {[ops[0] for ops in left.values() if ops]}"
            for worker in ready:
                self._do(left[worker].popleft())

    def _is_fed(self, op: Op) -> bool:
        piece = Piece(op.pipeline, op.micro_batch, op.stage)
        if op.kind == "forward":
            return op.stage == 0 or piece.at(op.stage - 1) in self._activations
        return op.kind == "weight" or op.stage == self._last or piece.at(op.stage + 1) in self._gradients

    def _do(self, op: Op) -> None:
        import torch

        piece, module = Piece(op.pipeline, op.micro_batch, op.stage), self._stages[op.stage]
        batch = self._batches[op.pipeline, op.micro_batch]
        if op.kind == "forward":
            inputs = self._activations[piece.at(op.stage - 1)].requires_grad_() if op.stage else batch[0]
            outputs = module(inputs)
            if op.stage == self._last:
                outputs = loss_of(outputs, batch[1])
            self._activations[piece] = outputs.detach()
            self._kept[op.worker, piece] = inputs, outputs
            return
        inputs, outputs = self._kept[op.worker, piece]
        gradient = self._gradients[piece.at(op.stage + 1)] if op.stage < self._last else None
        if op.kind in ("input", "both") and op.stage:
            [self._gradients[piece]] = torch.autograd.grad(outputs, [inputs], gradient, retain_graph=True)
        if op.kind in ("weight", "both"):
            outputs.backward(gradient, inputs=list(module.parameters()))
            del self._kept[op.worker, piece]


def loss_of(outputs: Any, targets: Any) -> Any:
    return (outputs - targets).square().mean()


@pytest.mark.parametrize("is_decoupled", [False, True])
@pytest.mark.parametrize(
    ("shape", "failed"), [(GRID, set()), (GRID, {LOST}), (GRID, {LOST, OTHER}), (DEEP, set()), (DEEP, {LOST})]
)
def test_gradients_are_those_of_the_whole_batch(shape: Shape, failed: set[Worker], is_decoupled: bool) -> None:
    import torch
    from torch import nn

    torch.manual_seed(7)
    stages = [
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        for _ in range(shape.stages)
    ]
    inputs, targets = torch.randn(2, shape.pipelines, shape.micro_batches, 2, WIDTH)
    batches = {
        (pipeline, number): (inputs[pipeline, number], targets[pipeline, number])
        for pipeline in range(shape.pipelines)
        for number in range(shape.micro_batches)
    }
    whole = nn.Sequential(*stages)
    sum(loss_of(whole(values), wanted) for values, wanted in batches.values()).backward()
    expected = [parameter.grad.clone() for parameter in whole.parameters()]
    whole.zero_grad()

    schedule = plan_schedule(shape, unit_times(shape.stages), failed, ScheduleOptions(is_decoupled=is_decoupled))
    Execution(schedule, stages, batches).run()

    assert not set(schedule.ops) & failed
    for parameter, gradient in zip(whole.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-6)
