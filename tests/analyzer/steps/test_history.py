"""Usual is what the last steps that were not slow took; slower for good is told, with the steps before it."""

import numpy as np
import pytest

from analyzer.steps.history import MOST_STEPS, StepHistory, add_steps
from analyzer.steps.steps import Kind, StepMemory, find_global
from analyzer.windows.window import Finding
from tests.analyzer.steps.jobs import look_at, step_time_ratio
from tests.builders import SECOND, T0

MB = 1_000_000


def hear(history: StepHistory, *levels: tuple[int, int]) -> StepHistory:
    """Return the history with further steps of some lengths, each some times."""
    for length, steps in levels:
        wobble = np.arange(steps) % 3
        sizes = np.zeros(steps, np.int64)
        start_ns = len(history) + np.arange(steps)
        history = add_steps(history, start_ns, length + wobble, sizes)
    return history


def test_ratio_compares_the_newest_steps_with_the_usual_level() -> None:
    assert step_time_ratio(hear(StepHistory(), (1000, 40), (1500, 5))) == pytest.approx(1.5, rel=0.01)
    assert step_time_ratio(hear(StepHistory(), (1000, 5))) is None
    assert step_time_ratio(hear(StepHistory(), (1000, 40), (9000, 1))) == pytest.approx(1.0, rel=0.01)


def test_evaluations_of_any_length_make_the_same_history_and_change_none_before() -> None:
    whole = hear(StepHistory(), (1000, 40), (1500, 30))
    cut = hear(StepHistory(), (1000, 21), (1000, 19), (1500, 3), (1500, 27))
    assert whole.spans == cut.spans == [(0, 40), (40, 70)]
    before = hear(StepHistory(), (1000, 40))
    hear(before, (1500, 30))
    assert (len(before), before.spans) == (40, [(0, 40)])
    assert hear(before, (1500, 30)).spans == whole.spans


def test_old_steps_are_forgotten_and_borders_move_along() -> None:
    history = hear(StepHistory(), (1000, MOST_STEPS - 50), (1500, 100))
    assert len(history) == MOST_STEPS
    assert history.spans == [(0, MOST_STEPS - 100), (MOST_STEPS - 100, MOST_STEPS)]
    assert step_time_ratio(history) == pytest.approx(1.5, rel=0.01)
    assert step_time_ratio(hear(history, (1500, MOST_STEPS))) == pytest.approx(1.0, rel=0.01)


def test_steps_before_a_fault_are_the_usual_ones_if_there_are_any() -> None:
    history = hear(StepHistory(), (1000, 40), (1060, 100))
    began_ns = int(history.start_ns[40])
    assert step_time_ratio(history, began_ns) == pytest.approx(1.06, rel=0.01)
    history = hear(StepHistory(), (1000, 40))
    assert step_time_ratio(history, int(history.start_ns[2])) is None
    assert step_time_ratio(hear(history, (800, 40)), int(history.start_ns[2])) == pytest.approx(1.0, rel=0.01)


def remember(*levels: tuple[float, int, int]) -> StepMemory:
    """Return what is known after steps of some seconds, each some times, with some bytes."""
    random = np.random.default_rng(6)
    history, now = StepHistory(), T0
    for seconds, steps, size in levels:
        lengths = (seconds * SECOND * (1 + 0.01 * random.standard_normal(steps))).astype(np.int64)
        starts = now + np.append(0, np.cumsum(lengths)[:-1])
        now += int(lengths.sum())
        history = add_steps(history, starts, lengths, np.full(steps, size))
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


def test_slower_for_everybody_is_in_doubt_while_a_rank_is_late_or_nobody_is_known() -> None:
    memory, hosts = remember((1.0, 40, 9), (1.6, 3, 9)), look_at().roster.hosts
    (late,) = find_global(memory, look_at(), suspects=frozenset({"h1"}))
    assert (late.likelihood, late.ambiguous_with) == (0.45, ("host:h1",))
    assert "ranks of h1 are late" in late.reason
    (unknown,) = find_global(memory, look_at(), suspects=hosts | {"h1"})
    assert (unknown.likelihood, unknown.ambiguous_with) == (0.45, ())


def test_what_is_short_or_small_or_over_or_the_jobs_own_doing_is_not_told() -> None:
    assert say(remember((1.0, 40, 9), (3.0, 2, 9))) == []
    assert say(remember((1.0, 40, 9), (1.6, 20, 9), (1.0, 3, 9))) == []
    memory = remember((1.0, 40, 9), (1.6, 20, 9), (1.02, 3, 9), (1.12, 1, 9), (1.02, 1, 9))
    assert say(memory) == []
    assert say(remember((1.0, 40, 100), (1.6, 6, 160))) == []
    assert say(remember((1.0, 40, 9), (1.08, 40, 9))) == []
    assert say(remember((1.0, 100, 9))) == []
    assert say(StepMemory()) == []


def test_change_that_the_job_makes_itself_is_told_as_such_and_is_a_note() -> None:
    (finding,) = say(remember((1.0, 40, 100 * MB), (1.6, 20, 160 * MB)))
    assert finding.is_minor
    assert "since the job changed what it does: it exchanges 160 MB a step instead of 100 MB" in finding.reason
    (other,) = say(remember((1.0, 40, 100 * MB), (1.6, 20, 100 * MB)))
    assert not other.is_minor
    (young,) = say(remember((1.0, 40, 9), (1.2, 4, 9)))
    assert young.is_minor, "it has cost less than a step so far"


def test_begin_is_that_of_the_first_of_several_slow_levels() -> None:
    (finding,) = say(remember((1.0, 40, 9), (1.5, 20, 9), (2.0, 20, 9)))
    assert finding.since_ns == pytest.approx(T0 + 40 * SECOND, abs=SECOND)
    assert finding.evidence[0]["ratio"] == pytest.approx(2.0, rel=0.03)
