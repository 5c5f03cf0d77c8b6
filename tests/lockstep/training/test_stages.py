"""All stages go on with one step, the last of which each has the state, and who lacks it gets it from a peer."""

import pytest

from lockstep.errors import LockstepError
from lockstep.training.stages import Position, agree_on_step


def position(replica: int, stage: int, *steps: int, is_live: bool = True) -> Position:
    return Position(replica=replica, stage=stage, is_live=is_live, steps=steps)


def fresh(replica: int, stage: int, *steps: int) -> Position:
    return position(replica, stage, *steps, is_live=False)


def test_who_has_settled_a_step_more_goes_back_to_where_the_others_are() -> None:
    found = agree_on_step([position(0, 0, 3, 4), position(1, 0, 2, 3), position(1, 1, 3, 4)])
    assert (found.step, found.takers) == (3, {0: (), 1: ()})


def test_who_joins_gets_the_state_of_its_stage_from_a_live_peer() -> None:
    found = agree_on_step([fresh(0, 0, 0), position(1, 0, 3, 4), position(0, 1, 4, 5), position(1, 1, 4, 5)])
    assert (found.step, found.givers, found.takers) == (4, {0: 1, 1: 0}, {0: (0,), 1: ()})


def test_at_the_beginning_the_first_of_a_stage_gives_its_state_to_the_others() -> None:
    found = agree_on_step([fresh(replica, stage, 0) for replica in range(2) for stage in range(2)])
    assert (found.step, found.givers, found.takers) == (0, {0: 0, 1: 0}, {0: (1,), 1: (1,)})


def test_who_lived_through_the_first_step_counts_more_than_one_who_comes() -> None:
    found = agree_on_step([fresh(0, 0, 0), position(1, 0, 0), position(0, 1, 0, 1)])
    assert (found.givers, found.takers) == ({0: 1, 1: 0}, {0: (0,), 1: ()})


def test_a_job_that_starts_again_goes_on_from_the_newest_snapshots_that_all_stages_have() -> None:
    found = agree_on_step([fresh(0, 0, 0, 7, 8), fresh(0, 1, 0, 6, 7), fresh(1, 0, 0), fresh(1, 1, 0, 7)])
    assert (found.step, found.givers, found.takers) == (7, {0: 0, 1: 0}, {0: (1,), 1: ()})


def test_a_stage_whose_state_is_lost_ends_the_job() -> None:
    with pytest.raises(LockstepError, match=r"no step has its state left at all stages: \{0: \{3, 4\}, 1: \{0\}\}"):
        agree_on_step([position(0, 0, 3, 4), fresh(0, 1, 0)])
