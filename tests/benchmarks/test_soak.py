"""Growth is told from noise, and from the time in which a process gets warm."""

import numpy as np
import pytest

from benchmarks.soak import Sample, growth_mb_per_hour

HOUR_S = 3600


def samples(memory_mb: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[Sample]:
    return [Sample(float(second), float(memory), 30, 12) for second, memory in enumerate(memory_mb)]


def test_leak_is_seen_through_noise() -> None:
    noise = np.random.default_rng(1).normal(0, 20, HOUR_S)
    leak = 500 + 36 * np.arange(HOUR_S) / HOUR_S
    assert growth_mb_per_hour(samples(leak + noise)) == pytest.approx(36, abs=8)


def test_getting_warm_is_no_leak() -> None:
    warm = 500 + 300 * (1 - np.exp(-np.arange(HOUR_S) / 120))
    assert growth_mb_per_hour(samples(warm)) == pytest.approx(0, abs=0.1)


def test_one_large_answer_is_no_leak() -> None:
    memory = np.full(HOUR_S, 500.0)
    memory[3000:3100] = 900
    assert growth_mb_per_hour(samples(memory)) == 0


def test_a_few_seconds_say_nothing() -> None:
    assert growth_mb_per_hour(samples(np.arange(15.0))) == 0
