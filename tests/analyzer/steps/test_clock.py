"""A change of level is told within three steps of it; outliers, checkpoints and drift are not changes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analyzer.steps.clock import Change, StepClock
from tests.analyzer.steps.series import Score, Shape, draw_shape, make_series

SCORING = range(5000, 5200)  # series on which nothing was tuned


def listen(times: np.ndarray) -> list[Change]:
    clock = StepClock()
    return [change for time in times.tolist() if (change := clock.observe(time))]


def score(shapes: dict[int, Shape]) -> Score:
    total = Score()
    for seed, shape in shapes.items():
        series = make_series(shape, seed)
        total.add(series.changes, [change.detected_at for change in listen(series.times)])
    return total


@pytest.mark.parametrize("ratio", [1.1, 1.3, 2.0, 4.0])
def test_onset_and_recovery_are_told_with_the_third_step(ratio: float) -> None:
    random = np.random.default_rng(3)
    level = np.concatenate([np.ones(40), np.full(30, ratio), np.ones(30)])
    onset, recovery = listen(level * (1 + 0.01 * random.standard_normal(100)))
    assert [(change.step, change.detected_at) for change in (onset, recovery)] == [(40, 42), (70, 72)]
    assert onset.ratio == pytest.approx(ratio, rel=0.03)
    assert recovery.ratio == pytest.approx(1 / ratio, rel=0.03)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(noise=0.003),
        Shape(noise=0.04),
        Shape(noise=0.02, outliers=0.03),
        Shape(noise=0.01, checkpoint_every=3),
        Shape(noise=0.02, checkpoint_every=20),
        Shape(noise=0.01, drift=0.2),
        Shape(noise=0.02, tail=3.0),
    ],
)
def test_noise_outliers_checkpoints_and_drift_are_no_changes(shape: Shape) -> None:
    told = [seed for seed in range(20) if listen(make_series(replace(shape, usual=(600, 601)), seed).times)]
    assert not told, f"alarms in the series of seeds {told}"


def test_even_very_noisy_jobs_hardly_ever_alarm() -> None:
    very = Shape(noise=0.08, usual=(600, 601))
    alarms = [change for seed in range(20) for change in listen(make_series(very, seed).times)]
    assert len(alarms) <= 3, "in 12,000 steps"


@pytest.mark.parametrize("size", [1.5, 10.0])
def test_two_long_steps_are_no_change(size: float) -> None:
    times = np.ones(60)
    times[[30, 31, 45]] = size
    assert listen(times) == []


def test_stairs_are_a_change_each_and_a_ramp_is_one() -> None:
    level = np.repeat([1.0, 1.3, 1.8, 1.0], 30)
    assert [change.step for change in listen(level)] == [30, 60, 90]
    level = np.concatenate([np.ones(40), np.linspace(1, 3, 60), np.full(40, 3.0)])
    (change,) = listen(level * (1 + 0.01 * np.random.default_rng(5).standard_normal(140)))
    assert 40 <= change.step <= 46


def test_what_is_no_time_is_not_counted_and_the_unit_does_not_matter() -> None:
    clock = StepClock()
    assert [clock.observe(time) for time in (0.0, -1.0, math.nan, math.inf)] == [None] * 4
    assert (clock.steps, clock.level) == (0, None)
    series = make_series(draw_shape(7), 7)
    assert [change.step for change in listen(series.times)] == [change.step for change in listen(series.times * 1e9)]


def test_changes_of_real_looking_series_are_found_and_little_else() -> None:
    shapes = {seed: draw_shape(seed) for seed in SCORING}
    found = score(shapes)
    assert found.true > 1500
    assert found.precision >= 0.95
    assert found.recall >= 0.98
    assert np.mean(np.array(found.delays) <= 3) >= 0.85
    quiet = score({seed: shape for seed, shape in shapes.items() if shape.noise < 0.03})
    assert quiet.precision >= 0.97
    assert quiet.recall >= 0.99


def test_two_kinds_of_steps_are_noise_and_a_lasting_change_is_still_told() -> None:
    random = np.random.default_rng(8)
    times = np.where(random.random(400) < 0.3, 1.1, 1.0) * (1 + 0.005 * random.standard_normal(400))
    times[300:] *= 2
    told = listen(times)
    assert len(told) <= 5, "runs of long steps may be mistaken until they are known to come and go"
    assert (told[-1].step, told[-1].detected_at) == (300, 302)
