"""Which step workers of a pipeline go on with, and who gives whom its state; places off the grid are refused."""

from dataclasses import replace

import pytest
from torch import nn, optim

from lockstep.errors import BadInput, LockstepError
from lockstep.training.meeting import TrainingOptions
from lockstep.training.pipeline import PipelineWorker, Position, agree_on_step
from lockstep.training.pipeline_step import StageProgram

pytestmark = pytest.mark.slow  # importing torch takes each worker 4 s


def test_micro_batches_that_cannot_be_the_same_for_all_replicas_and_places_off_the_grid_are_refused(
    options: TrainingOptions,
) -> None:
    model = nn.Linear(3, 2)
    program = StageProgram(model, lambda _: None, lambda _, __: None, hidden=(2,))
    with pytest.raises(BadInput, match="4 micro-batches are not the same for 3 replicas"):
        PipelineWorker(replace(options, replicas=3), program, optim.SGD(model.parameters()), largest_norm=1.0)
    with pytest.raises(BadInput, match="stage=2 is none of stages=2"):
        replace(options, stage=2, stages=2)


def position(replica: int, stage: int, *steps: int, is_live: bool = True) -> Position:
    return Position(replica=replica, stage=stage, is_live=is_live, steps=steps)


def fresh(replica: int, stage: int, *steps: int) -> Position:
    return position(replica, stage, *steps, is_live=False)


@pytest.mark.parametrize(
    ("positions", "step", "givers", "takers"),
    [
        # who has settled a step more goes back to where the others are
        ([position(0, 0, 3, 4), position(1, 0, 2, 3), position(1, 1, 3, 4)], 3, {0: 0, 1: 1}, {0: (), 1: ()}),
        # who joins gets the state of its stage from a live peer
        (
            [fresh(0, 0, 0), position(1, 0, 3, 4), position(0, 1, 4, 5), position(1, 1, 4, 5)],
            4,
            {0: 1, 1: 0},
            {0: (0,), 1: ()},
        ),
        # at the beginning the first of a stage gives its state to the others
        ([fresh(replica, stage, 0) for replica in (0, 1) for stage in (0, 1)], 0, {0: 0, 1: 0}, {0: (1,), 1: (1,)}),
        # who lived through the first step counts more than one who comes
        ([fresh(0, 0, 0), position(1, 0, 0), position(0, 1, 0, 1)], 0, {0: 1, 1: 0}, {0: (0,), 1: ()}),
        # a job that starts again goes on from the newest snapshots that all stages have
        (
            [fresh(0, 0, 0, 7, 8), fresh(0, 1, 0, 6, 7), fresh(1, 0, 0), fresh(1, 1, 0, 7)],
            7,
            {0: 0, 1: 0},
            {0: (1,), 1: ()},
        ),
    ],
    ids=["back", "joins", "begins", "first step", "snapshots"],
)
def test_the_step_and_who_gives_its_state_to_whom(
    positions: list[Position], step: int, givers: dict[int, int], takers: dict[int, tuple[int, ...]]
) -> None:
    found = agree_on_step(positions)
    assert (found.step, found.givers, found.takers) == (step, givers, takers)


def test_a_stage_whose_state_is_lost_ends_the_job() -> None:
    with pytest.raises(LockstepError, match=r"no step has its state left at all stages: \{0: \{3, 4\}, 1: \{0\}\}"):
        agree_on_step([position(0, 0, 3, 4), fresh(0, 1, 0)])
