"""Usual is the lowest level that lasted; slower for good is told, each slow stretch with its begin and its end."""

import numpy as np
import pyarrow as pa
import pytest

from analyzer.steps.clock import ClockOptions
from analyzer.steps.history import (
    MOST_STEPS,
    StepHistory,
    add_steps,
    find_slowdowns,
    find_stretches,
    find_usual,
    reduce_rows,
)
from analyzer.steps.steps import Kind, StepMemory, find_global
from analyzer.windows.window import Finding
from lockstep.arrow import fill_rows
from lockstep.tables import TABLE_BY_NAME
from tests.analyzer.steps.jobs import look_at, step_time_ratio
from tests.builders import SECOND, T0


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
    assert step_time_ratio(hear(StepHistory(), (1000, 5))) is None
    assert usual(StepHistory()) is None
    assert step_time_ratio(hear(StepHistory(), (1000, 40), (9000, 1))) == pytest.approx(1.0, rel=0.01)


def test_evaluations_of_any_length_make_the_same_history_and_change_none_before() -> None:
    whole = hear(StepHistory(), (1000, 40), (1500, 30))
    cut = hear(StepHistory(), (1000, 21), (1000, 19), (1500, 3), (1500, 27))
    assert whole.borders == cut.borders == (40,)
    before = hear(StepHistory(), (1000, 40))
    hear(before, (1500, 30))
    assert (len(before), before.borders) == (40, ())
    assert hear(before, (1500, 30)).borders == (40,)


def test_old_steps_are_forgotten_and_borders_move_along() -> None:
    history = hear(StepHistory(), (1000, MOST_STEPS - 50), (1500, 100))
    assert len(history) == MOST_STEPS
    assert history.borders == (MOST_STEPS - 100,)
    assert usual(hear(history, (1500, MOST_STEPS))) == pytest.approx(1500, rel=0.01)


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


def test_what_is_short_or_small_or_over_or_the_jobs_own_doing_is_not_told() -> None:
    assert say(remember((1.0, 40, 9), (3.0, 2, 9))) == []
    assert say(remember((1.0, 40, 9), (1.6, 20, 9), (1.0, 3, 9))) == []
    memory = remember((1.0, 40, 9), (1.6, 20, 9), (1.02, 3, 9), (1.12, 1, 9), (1.02, 1, 9))
    assert say(memory) == []
    assert say(remember((1.0, 40, 100), (1.6, 20, 160))) == []
    assert say(remember((1.0, 40, 9), (1.08, 40, 9))) == []
    assert say(remember((1.0, 100, 9))) == []
    assert say(StepMemory()) == []


def test_begin_is_that_of_the_first_of_several_slow_levels() -> None:
    (finding,) = say(remember((1.0, 40, 9), (1.5, 20, 9), (2.0, 20, 9)))
    assert finding.since_ns == pytest.approx(T0 + 40 * SECOND, abs=SECOND)
    assert finding.evidence[0]["ratio"] == pytest.approx(2.0, rel=0.03)


def step_rows(seconds: np.ndarray, ranks: int = 1, source: str = "told") -> pa.Table:
    """Return the rows of steps of some lengths, one after the other, on some ranks whose clocks differ."""
    ends = T0 + (np.cumsum(seconds) * SECOND).astype(np.int64)
    starts = np.append(T0, ends[:-1])
    rank = np.repeat(np.arange(ranks), len(seconds))
    columns = {
        "host": "h0",
        "job": "j1",
        "attempt": 0,
        "world_rank": rank,
        "step": np.tile(np.arange(len(seconds)), ranks),
        "start_ns": np.tile(starts, ranks) + rank * 1000,
        "end_ns": np.tile(ends, ranks) + rank * 1000,
        "source": source,
    }
    return fill_rows(TABLE_BY_NAME["steps"], len(rank), columns)


def noisy(*levels: tuple[float, int]) -> np.ndarray:
    """Return step times of some levels, each for some steps."""
    random = np.random.default_rng(2)
    level = np.concatenate([np.full(steps, seconds) for seconds, steps in levels])
    times: np.ndarray = level * (1 + 0.01 * random.standard_normal(len(level)))
    return times


def spans(times: np.ndarray) -> list[tuple[float, float, bool]]:
    starts = np.append(0, np.cumsum(times)[:-1])
    found = find_slowdowns((starts * SECOND).astype(np.int64), (times * SECOND).astype(np.int64))
    return [(one.since_ns / SECOND, one.until_ns / SECOND, one.is_over) for one in found]


def test_slow_stretch_has_its_begin_and_end_and_another_level_is_another_one() -> None:
    times = noisy((1.0, 40), (1.5, 20), (1.0, 40))
    ((since, until, is_over),) = spans(times)
    assert since == pytest.approx(times[:40].sum())
    assert until == pytest.approx(times[:60].sum())
    assert is_over
    assert [is_over for _, _, is_over in spans(noisy((1.0, 40), (1.3, 20), (2.0, 20)))] == [True, False]
    ((since, _, is_over),) = spans(noisy((2.0, 30), (1.0, 60)))
    assert (since, is_over) == (0.0, True)


def test_steady_or_drifting_job_has_no_slow_stretch() -> None:
    assert spans(noisy((1.0, 200))) == []
    assert spans(np.zeros(0)) == []
    assert spans(noisy((1.0, 5))) == []
    drifting = noisy((1.0, 600)) * np.linspace(1, 1.3, 600)
    assert spans(drifting) == []
    assert len(spans(np.concatenate([drifting, noisy((1.6, 30), (1.3, 60))]))) == 1
    assert find_stretches(step_rows(np.zeros(0)), "j1") == []


@pytest.mark.parametrize("ranks", [1, 7])
def test_rows_of_any_number_of_ranks_give_the_same_findings(ranks: int) -> None:
    (stretch,) = find_stretches(step_rows(noisy((1.0, 40), (1.5, 30)), ranks), "j1")
    finding = stretch.finding
    assert (finding.fault_class, finding.component) == ("global_slow", "job:j1")
    assert finding.since_ns == pytest.approx(T0 + 40 * SECOND, abs=SECOND)
    assert stretch.until_ns == pytest.approx(T0 + 85 * SECOND, abs=SECOND)
    assert "1.5 s instead of 1" in finding.reason or "1.49 s instead of 1" in finding.reason


def test_repeated_shuffled_or_very_many_rows_change_nothing() -> None:
    rows = step_rows(noisy((1.0, 40), (1.5, 30)), ranks=3)
    mixed = pa.concat_tables([rows, rows]).take(np.random.default_rng(1).permutation(2 * rows.num_rows))
    assert find_stretches(mixed, "j1") == find_stretches(rows, "j1")
    times = noisy((1.0, 40), (1.5, 30))
    (few,), (many,) = (find_stretches(step_rows(times, ranks), "j1") for ranks in (1, 8000))
    assert many.finding.since_ns == pytest.approx(few.finding.since_ns, abs=SECOND // 100)
    told, found = step_rows(np.full(5, 2.0)), step_rows(np.full(9, 1.0), source="period")
    _, length_ns = reduce_rows(pa.concat_tables([found, told]))
    assert length_ns.tolist() == [2 * SECOND] * 5
