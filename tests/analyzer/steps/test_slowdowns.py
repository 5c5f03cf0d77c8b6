"""With nothing but step times, each slow stretch is one finding with its begin and its end."""

import numpy as np
import pyarrow as pa
import pytest

from analyzer.steps.history import find_slowdowns, find_stretches, reduce_rows
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


def spans(times: np.ndarray) -> list[tuple[float, float, bool]]:
    starts = np.append(0, np.cumsum(times)[:-1])
    found = find_slowdowns((starts * SECOND).astype(np.int64), (times * SECOND).astype(np.int64))
    return [(one.since_ns / SECOND, one.until_ns / SECOND, one.is_over) for one in found]


def test_slow_stretch_has_its_begin_and_end() -> None:
    times = noisy((1.0, 40), (1.5, 20), (1.0, 40))
    ((since, until, is_over),) = spans(times)
    assert since == pytest.approx(times[:40].sum())
    assert until == pytest.approx(times[:60].sum())
    assert is_over


def test_another_slow_level_is_another_stretch() -> None:
    assert [is_over for _, _, is_over in spans(noisy((1.0, 40), (1.3, 20), (2.0, 20)))] == [True, False]


def test_job_that_begins_slowly_is_measured_by_what_it_becomes() -> None:
    ((since, _, is_over),) = spans(noisy((2.0, 30), (1.0, 60)))
    assert (since, is_over) == (0.0, True)


def test_drift_is_no_slow_stretch_and_what_follows_is_measured_by_it() -> None:
    drifting = noisy((1.0, 600)) * np.linspace(1, 1.3, 600)
    assert spans(drifting) == []
    assert len(spans(np.concatenate([drifting, noisy((1.6, 30), (1.3, 60))]))) == 1


def test_steady_job_and_empty_series_have_no_slow_stretch() -> None:
    assert spans(noisy((1.0, 200))) == []
    assert spans(np.zeros(0)) == []
    assert spans(noisy((1.0, 5))) == []


@pytest.mark.parametrize("ranks", [1, 7])
def test_rows_of_any_number_of_ranks_give_the_same_findings(ranks: int) -> None:
    (stretch,) = find_stretches(step_rows(noisy((1.0, 40), (1.5, 30)), ranks), "j1")
    finding = stretch.finding
    assert (finding.fault_class, finding.component) == ("global_slow", "job:j1")
    assert finding.since_ns == pytest.approx(T0 + 40 * SECOND, abs=SECOND)
    assert stretch.until_ns == pytest.approx(T0 + 85 * SECOND, abs=SECOND)
    assert "1.5 s instead of 1" in finding.reason or "1.49 s instead of 1" in finding.reason


def test_told_steps_go_before_found_ones() -> None:
    told, found = step_rows(np.full(5, 2.0)), step_rows(np.full(9, 1.0), source="period")
    _, length_ns = reduce_rows(pa.concat_tables([found, told]))
    assert length_ns.tolist() == [2 * SECOND] * 5


def test_repeated_and_shuffled_rows_change_nothing() -> None:
    rows = step_rows(noisy((1.0, 40), (1.5, 30)), ranks=3)
    mixed = pa.concat_tables([rows, rows]).take(np.random.default_rng(1).permutation(2 * rows.num_rows))
    assert find_stretches(mixed, "j1") == find_stretches(rows, "j1")


def test_some_ranks_stand_for_very_many() -> None:
    times = noisy((1.0, 40), (1.5, 30))
    (few,), (many,) = (find_stretches(step_rows(times, ranks), "j1") for ranks in (1, 8000))
    assert many.finding.since_ns == pytest.approx(few.finding.since_ns, abs=SECOND // 100)


def test_no_rows_give_no_findings() -> None:
    assert find_stretches(step_rows(np.zeros(0)), "j1") == []
