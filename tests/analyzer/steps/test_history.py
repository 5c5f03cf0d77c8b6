"""Usual is the lowest level that lasted, and what is slow for long enough becomes usual."""

import numpy as np
import pytest

from analyzer.steps.clock import ClockOptions
from analyzer.steps.history import MOST_STEPS, StepHistory, add_steps, find_usual, step_time_ratio


def hear(history: StepHistory, *levels: tuple[int, int]) -> StepHistory:
    """Return the history with further steps of some lengths, each some times."""
    for length, steps in levels:
        wobble = np.arange(steps) % 3
        sizes = np.zeros(steps, np.int64)
        start_ns = len(history) + np.arange(steps)
        history = add_steps(history, start_ns, length + wobble, sizes, ClockOptions())
    return history


def usual(history: StepHistory) -> float | None:
    return find_usual(history.spans, history.length_ns)


def test_ratio_compares_the_newest_steps_with_the_usual_level() -> None:
    assert step_time_ratio(hear(StepHistory(), (1000, 40), (1500, 5))) == pytest.approx(1.5, rel=0.01)


def test_nothing_is_usual_before_a_level_lasted() -> None:
    assert step_time_ratio(hear(StepHistory(), (1000, 5))) is None
    assert usual(StepHistory()) is None


def test_one_long_step_is_not_how_long_steps_take_now() -> None:
    assert step_time_ratio(hear(StepHistory(), (1000, 40), (9000, 1))) == pytest.approx(1.0, rel=0.01)


def test_looks_of_any_length_make_the_same_history() -> None:
    whole = hear(StepHistory(), (1000, 40), (1500, 30))
    cut = hear(StepHistory(), (1000, 21), (1000, 19), (1500, 3), (1500, 27))
    assert whole.borders == cut.borders == (40,)


def test_history_that_was_left_behind_is_not_changed() -> None:
    before = hear(StepHistory(), (1000, 40))
    hear(before, (1500, 30))
    assert (len(before), before.borders) == (40, ())
    assert hear(before, (1500, 30)).borders == (40,)


def test_old_steps_are_forgotten_and_borders_move_along() -> None:
    history = hear(StepHistory(), (1000, MOST_STEPS - 50), (1500, 100))
    assert len(history) == MOST_STEPS
    assert history.borders == (MOST_STEPS - 100,)
    assert usual(hear(history, (1500, MOST_STEPS))) == pytest.approx(1500, rel=0.01)


def test_steps_before_a_fault_are_the_usual_ones_however_little_it_costs() -> None:
    """Six percent is no change of level, and after a hundred steps it would be usual."""
    history = hear(StepHistory(), (1000, 40), (1060, 100))
    began_ns = int(history.start_ns[40])
    assert step_time_ratio(history, began_ns) == pytest.approx(1.06, rel=0.01)


def test_fault_since_the_first_steps_has_no_known_cost_while_they_are_all_alike() -> None:
    history = hear(StepHistory(), (1000, 40))
    assert step_time_ratio(history, int(history.start_ns[2])) is None
    assert step_time_ratio(hear(history, (800, 40)), int(history.start_ns[2])) == pytest.approx(1.0, rel=0.01)
