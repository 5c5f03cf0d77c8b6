"""Looks come at even moments, and reach back over enough steps."""

import pytest

from analyzer.windows.window import EvaluationOptions, Window, plan_evaluations, window_at
from tests.builders import SECOND, T0

OPTIONS = EvaluationOptions()


def test_looks_are_due_every_hop_and_the_same_ones_on_a_second_run() -> None:
    assert plan_evaluations(T0, T0 + 5 * SECOND, OPTIONS) == [T0 + 2 * SECOND, T0 + 4 * SECOND]
    assert plan_evaluations(T0 + 1, T0 + 4 * SECOND, OPTIONS) == [T0 + 2 * SECOND, T0 + 4 * SECOND]


def test_nothing_is_due_before_the_next_hop() -> None:
    assert plan_evaluations(T0, T0 + SECOND, OPTIONS) == []


@pytest.mark.parametrize(
    ("period_s", "length_s"),
    [(None, 6), (0.5, 6), (4.2, 13), (300, 120)],
    ids=["not known yet", "fast steps", "slow steps, in whole seconds", "at most two minutes"],
)
def test_look_reaches_back_over_three_periods(period_s: float | None, length_s: int) -> None:
    period_ns = None if period_s is None else int(period_s * SECOND)
    end_ns = T0 + 1_000 * SECOND
    assert window_at(end_ns, T0, period_ns, OPTIONS) == Window(end_ns - length_s * SECOND, end_ns)


def test_look_does_not_reach_back_before_the_job_began() -> None:
    assert window_at(T0 + 2 * SECOND, T0 + SECOND, None, OPTIONS) == Window(T0 + SECOND, T0 + 2 * SECOND)
