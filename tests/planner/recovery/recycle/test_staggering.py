"""Stages step when they are ready; a step that was wrong is taken back everywhere, and nowhere else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import BadInput
from planner.recovery.recycle.staggering import Settled, StageGradients, StepCosts, settle_step

COSTS = StepCosts(all_reduce=2.0, step=1.0, validate=0.5, roll_back=0.25)
DONE = (10.0, 12.0, 14.0)


def settled(*squared: float, max_norm: float = 5.0) -> Settled:
    stages = [StageGradients(done, norm) for done, norm in zip(DONE, squared, strict=True)]
    return settle_step(stages, COSTS, max_norm)


def test_stages_step_one_after_the_other_without_waiting() -> None:
    found = settled(1.0, 1.0, 1.0)
    assert (found.outcome, found.scale, found.stepped) == ("kept", 1.0, (13.0, 15.0, 17.0))
    assert (found.rolled_back, found.redone) == ((), ())
    assert [(event.doing, event.start) for event in found.events if event.stage == 0] == [
        ("all-reduce", 10.0),
        ("step", 12.0),
        ("validate", 16.0),
    ]
    assert "within 5" in found.reason


def test_a_norm_above_the_limit_is_clipped_in_a_second_step() -> None:
    found = settled(36.0, 64.0, 0.0)
    assert (found.outcome, found.scale) == ("clipped", 0.5)
    assert found.rolled_back == (0, 1, 2)
    assert found.redone == (0, 1)  # the last stage was still stepping when the norm was known
    assert found.stepped == (16.5 + 0.25 + 1.0, 16.5 + 0.25 + 1.0, 17.0 + 0.25 + 1.0)
    assert "norm 10 is above 5" in found.reason


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_leave_no_step(bad: float) -> None:
    found = settled(1.0, bad, 1.0)
    assert (found.outcome, found.scale, found.rolled_back) == ("skipped", 0.0, (0, 1, 2))
    assert not any(event.doing == "step again" for event in found.events)
    assert "not finite" in found.reason


def test_without_a_limit_nothing_is_clipped() -> None:
    assert settled(1e30, 1e30, 1e30, max_norm=float("inf")).outcome == "kept"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=6), st.floats(0.1, 20))
def test_nothing_happens_before_its_cause(stages: list[tuple[float, float]], max_norm: float) -> None:
    found = settle_step([StageGradients(*one) for one in stages], COSTS, max_norm)
    assert [event.start for event in found.events] == sorted(event.start for event in found.events)
    known = max(done for done, _ in stages) + COSTS.all_reduce + COSTS.validate
    for event in found.events:
        assert event.start >= stages[event.stage][0]
        if event.doing in ("roll back", "step again"):
            assert event.start >= known
    assert set(found.redone) <= set(found.rolled_back)
    assert (found.outcome == "kept") == (not found.rolled_back)


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="0 stages"):
        settle_step([], COSTS)
    with pytest.raises(BadInput, match="norm above zero"):
        settled(1.0, 1.0, 1.0, max_norm=0.0)
