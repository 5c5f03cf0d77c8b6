"""A change of level is told within three steps of it; outliers, checkpoints and drift are not changes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from analyzer.steps.levels import find_spans
from tests.analyzer.steps.series import Score, Shape, draw_shape, make_series
from tests.tiers import long_except

SCORING = 5000  # the first of the series on which nothing was tuned


def find_changes(times: np.ndarray) -> list[int]:
    """Return the first step of each level that is 7 % or more off the one before."""
    medians = [(begin, float(np.median(times[begin:end]))) for begin, end in find_spans(times)]
    return [begin for (_, before), (begin, after) in pairwise(medians) if abs(np.log(after / before)) > np.log(1.07)]


def tell_at(times: np.ndarray, since: int) -> int:
    """Return the step with which it is known that a level begins about there, as the steps come in."""
    known = (
        end
        for end in range(since + 1, len(times) + 1)
        if any(abs(at - since) < 2 for at in find_changes(times[:end]))
    )
    return next(known) - 1


def score(shapes: dict[int, Shape]) -> Score:
    total = Score()
    for seed, shape in shapes.items():
        series = make_series(shape, seed)
        total.add(series.changes, find_changes(series.times))
    return total


@pytest.mark.parametrize("ratio", [1.1, 1.3, 2.0, 4.0])
def test_onset_and_recovery_are_told_with_the_third_step(ratio: float) -> None:
    random = np.random.default_rng(3)
    level = np.concatenate([np.ones(40), np.full(30, ratio), np.ones(30)])
    times = level * (1 + 0.01 * random.standard_normal(100))
    assert find_changes(times) == [40, 70]
    assert (tell_at(times, 40), tell_at(times, 70)) == pytest.approx((42, 72), abs=1)


@pytest.mark.parametrize("first", [5, 9, 11])
def test_onset_after_a_few_steps_is_told(first: int) -> None:
    assert find_changes(np.repeat([1.0, 1.5], [first, 10])) == [first]


@pytest.mark.parametrize(
    "shape",
    [
        Shape(noise=0.003),
        Shape(noise=0.04),
        Shape(noise=0.08),
        Shape(noise=0.02, outliers=0.03),
        Shape(noise=0.01, checkpoint_every=3),
        Shape(noise=0.02, checkpoint_every=20),
        Shape(noise=0.01, drift=0.2),
        Shape(noise=0.02, tail=3.0),
    ],
)
def test_noise_outliers_checkpoints_and_drift_are_no_changes(shape: Shape) -> None:
    found = [seed for seed in range(20) if find_changes(make_series(replace(shape, usual=(600, 601)), seed).times)]
    assert not found, f"changes in the series of seeds {found}"


@pytest.mark.parametrize("size", [1.5, 10.0])
def test_two_long_steps_are_no_change(size: float) -> None:
    times = np.ones(60)
    times[[30, 31, 45, 58, 59]] = size
    assert find_changes(times) == []


def test_stairs_are_a_change_each_also_where_a_large_one_follows_a_small_one() -> None:
    assert find_changes(np.repeat([1.0, 1.3, 1.8, 1.0], 30)) == [30, 60, 90]
    assert find_changes(np.repeat([1.0, 1.1, 4.4, 1.0], [30, 8, 30, 30])) == [30, 38, 68]


def test_unit_does_not_matter() -> None:
    series = make_series(draw_shape(7), 7)
    assert find_changes(series.times) == pytest.approx(find_changes(series.times * 1e9), abs=1)


@pytest.mark.parametrize("series", long_except([60], [60, 200]))
def test_changes_of_real_looking_series_are_found_and_little_else(series: int) -> None:
    shapes = {seed: draw_shape(seed) for seed in range(SCORING, SCORING + series)}
    found = score(shapes)
    assert found.true > 7.5 * series
    assert found.precision >= 0.99
    assert found.recall >= 0.99


def test_two_kinds_of_steps_are_noise_and_a_lasting_change_is_still_told() -> None:
    random = np.random.default_rng(8)
    times = np.where(random.random(400) < 0.3, 1.1, 1.0) * (1 + 0.005 * random.standard_normal(400))
    times[300:] *= 2
    assert find_changes(times) == [300]
    assert tell_at(times, 300) <= 303
