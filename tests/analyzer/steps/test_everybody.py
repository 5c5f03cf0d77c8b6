"""A job that became slower for good is told of, unless a part explains it or the job itself has changed."""

import numpy as np
import pytest

from analyzer.steps.clock import ClockOptions
from analyzer.steps.history import StepHistory, add_steps
from analyzer.steps.steps import Kind, StepMemory, find_global
from analyzer.windows.window import Finding
from tests.analyzer.steps.jobs import look_at
from tests.builders import SECOND, T0


def remember(*levels: tuple[float, int, int]) -> StepMemory:
    """Return what is known after steps of some seconds, each some times, with some bytes."""
    random = np.random.default_rng(6)
    history, now = StepHistory(), T0
    for seconds, steps, size in levels:
        lengths = (seconds * SECOND * (1 + 0.01 * random.standard_normal(steps))).astype(np.int64)
        starts = now + np.append(0, np.cumsum(lengths)[:-1])
        now += int(lengths.sum())
        history = add_steps(history, starts, lengths, np.full(steps, size), ClockOptions())
    return StepMemory(attempt=0, kind=Kind(history=history))


def say(memory: StepMemory) -> list[Finding]:
    return find_global(memory, look_at())


@pytest.mark.parametrize("ratio", [1.2, 1.6, 4.0])
def test_slower_for_everybody_is_told_with_the_third_step(ratio: float) -> None:
    (finding,) = say(remember((1.0, 40, 9), (ratio, 3, 9)))
    assert (finding.fault_class, finding.component) == ("global_slow", "job:j1")
    assert finding.since_ns == pytest.approx(T0 + 40 * SECOND, abs=SECOND)
    assert finding.evidence[0]["ratio"] == pytest.approx(ratio, rel=0.03)
    assert finding.lost_share == pytest.approx(1 - 1 / ratio, abs=0.03)
    assert not finding.may_isolate


def test_two_slow_steps_are_not_told() -> None:
    assert say(remember((1.0, 40, 9), (3.0, 2, 9))) == []


def test_recovery_ends_it() -> None:
    assert say(remember((1.0, 40, 9), (1.6, 20, 9), (1.0, 3, 9))) == []


def test_steps_that_are_back_end_it_before_the_level_does() -> None:
    memory = remember((1.0, 40, 9), (1.6, 20, 9), (1.02, 3, 9), (1.12, 1, 9), (1.02, 1, 9))
    assert say(memory) == []


def test_job_that_moves_more_bytes_is_slower_by_its_own_doing() -> None:
    assert say(remember((1.0, 40, 100), (1.6, 20, 160))) == []


def test_less_than_a_tenth_is_not_worth_a_word() -> None:
    assert say(remember((1.0, 40, 9), (1.08, 40, 9))) == []


def test_begin_is_that_of_the_first_of_several_slow_levels() -> None:
    (finding,) = say(remember((1.0, 40, 9), (1.5, 20, 9), (2.0, 20, 9)))
    assert finding.since_ns == pytest.approx(T0 + 40 * SECOND, abs=SECOND)
    assert finding.evidence[0]["ratio"] == pytest.approx(2.0, rel=0.03)


def test_job_that_was_never_faster_is_not_slow() -> None:
    assert say(remember((1.0, 100, 9))) == []
    assert say(StepMemory()) == []
