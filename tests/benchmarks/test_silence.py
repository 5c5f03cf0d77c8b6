"""Alerts are counted as the analyzer grades them, and halves do not share a system."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.silence import HALVES, PEERS, Run, find_alerts, find_grades, measure, read_runs
from lockstep.errors import BadInput
from tests.analyzer.steps.series import Shape, make_series


def slow_for(steps: int, amount: float) -> np.ndarray:
    """Return a quiet series whose steps 100 and on are slower for a while."""
    times = make_series(Shape(noise=0.01, usual=(300, 301)), 3).times
    times[100 : 100 + steps] *= amount
    return times


def test_slowdown_is_an_alert_where_it_begins_and_a_burst_is_a_note() -> None:
    assert find_alerts(slow_for(20, 1.1)) == [100]
    assert find_grades(slow_for(4, 1.6)) == [(100, "note")]
    assert find_grades(slow_for(0, 1.0)) == []


@pytest.mark.parametrize("peer", PEERS)
def test_peers_find_a_large_slowdown_and_are_silent_without_one(peer: str) -> None:
    assert abs(PEERS[peer](slow_for(20, 1.5))[0] - 100) < 4
    assert PEERS[peer](slow_for(0, 1.0)) == []


def test_repeats_of_a_run_are_in_one_half_and_both_halves_have_some(tmp_path: Path) -> None:
    names = [f"system{number}/case/result_{repeat}" for number in range(20) for repeat in range(3)]
    table = pa.table({"run": np.repeat(names, 5), "seconds": np.tile(np.arange(5.0), len(names))})
    pq.write_table(table.take(np.random.default_rng(1).permutation(table.num_rows)), tmp_path / "steps.parquet")
    runs = read_runs(tmp_path)
    assert [run.name for run in runs] == sorted(names)
    by_system = {run.name.partition("/")[0]: run.half for run in runs}
    assert all(by_system[run.name.partition("/")[0]] == run.half for run in runs)
    assert set(by_system.values()) == set(HALVES)
    assert Run("a/b/c", np.ones(30)).noise == 0


def test_without_public_data_the_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_PUBLIC_DATA", raising=False)
    with pytest.raises(BadInput, match="LOCKSTEP_PUBLIC_DATA does not name the folder"):
        measure(True, lambda _: None)
