"""Each slow stretch is told with its begin and its end; what is over before it cost anything is a note."""

import numpy as np
import pyarrow as pa
import pytest

from analyzer.steps.stretches import Slowdown, find_slowdowns, find_stretches, reduce_rows
from lockstep.arrow import fill_rows
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0


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


def judge(times: np.ndarray) -> list[Slowdown]:
    starts = np.append(0, np.cumsum(times)[:-1])
    return find_slowdowns((starts * SECOND).astype(np.int64), (times * SECOND).astype(np.int64))


def spans(times: np.ndarray) -> list[tuple[float, float, bool]]:
    return [(one.since_ns / SECOND, one.until_ns / SECOND, one.is_over) for one in judge(times)]


def is_alert(*levels: tuple[float, int]) -> list[bool]:
    """Return for each slowdown whether it is worth an alert."""
    return [one.is_costly for one in judge(noisy(*levels))]


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


def test_what_lasts_or_costs_is_an_alert_and_what_ends_before_is_a_note() -> None:
    assert is_alert((1.0, 40), (1.1, 10), (1.0, 40)) == [True]
    assert is_alert((1.0, 40), (1.6, 4), (1.0, 40)) == is_alert((1.0, 40), (1.6, 7), (1.0, 40)) == [False]
    assert is_alert((1.0, 40), (9.0, 4), (1.0, 40)) == [True], "32 steps lost"
    assert is_alert((1.0, 40), (1.2, 6)) == [False]
    assert is_alert((1.0, 40), (2.0, 6)) == [True], "six steps lost, and it goes on"
    assert is_alert((1.3, 30), (1.0, 60)) == [False], "nobody saw it begin"


def test_bursts_are_one_note_with_a_count_until_they_cost_something() -> None:
    (bursts,) = judge(noisy(*[(1.0, 100), (1.8, 4)] * 5, (1.0, 100)))
    assert (bursts.times, bursts.steps, bursts.is_costly) == (5, 20, False)
    assert bursts.ratio == pytest.approx(1.8, rel=0.02)
    (often,) = judge(noisy(*[(1.0, 30), (1.8, 4)] * 8, (1.0, 100)))
    assert (often.times, often.is_costly) == (8, True)


def test_one_change_is_one_stretch_with_its_overshoot_and_a_large_one_after_a_small_one_is_told() -> None:
    (overshoot,) = judge(noisy((1.0, 40), (2.4, 8), (1.5, 40), (1.0, 40)))
    assert overshoot.steps == 48
    assert overshoot.ratio == pytest.approx(1.5, rel=0.02)
    (grown,) = judge(noisy((1.0, 40), (1.1, 6), (4.4, 30)))
    assert grown.steps == 36
    assert grown.ratio == pytest.approx(4.4, rel=0.02)
    (ramp,) = judge(np.concatenate([noisy((1.0, 40)), np.linspace(1, 3, 60), np.full(40, 3.0)]))
    assert ramp.steps == pytest.approx(97, abs=4)
    assert len(judge(noisy((1.0, 40), (1.1, 30), (4.4, 30)))) == 2


def test_short_first_level_is_not_usual_for_good() -> None:
    assert [one.steps for one in judge(noisy((1.0, 9), (1.5, 20)))] == [20]
    assert judge(noisy((1.0, 11), (1.5, 400))) == []
    assert judge(noisy((1.0, 60), (0.85, 30), (1.0, 100))) == [], "back to the old pace"


def test_slowdown_long_before_the_end_is_told() -> None:
    (stretch,) = judge(noisy((1.0, 100), (1.3, 30), (1.0, 5000)))
    assert (stretch.steps, stretch.is_over, stretch.is_costly) == (30, True, True)


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
    _, length_ns = reduce_rows(pa.concat_tables([step_rows(np.full(40, 1.0), source="period"), told]))
    assert length_ns.tolist() == [SECOND] * 40, "the job told of its last steps only"
