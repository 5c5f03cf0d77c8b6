"""A figure knows whether its floor holds, a report says where it was measured, and growth is told from noise."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import benchmarks.sim
from benchmarks import figures
from benchmarks.figures import Figure, Report, describe_commit, describe_machine
from benchmarks.sim import Cost, Run, bench_scenario, measure, simulate
from benchmarks.soak import Sample, growth_mb_per_hour
from simulator.scenario import check_scenario

HOUR_S = 3600
SECONDS = np.arange(HOUR_S)


def test_floor_holds_or_not_in_the_direction_that_is_better() -> None:
    upwards = [Figure("f", value, "s", floor=floor).met for value, floor in ((10, 10), (9, 10), (0, 0), (11, None))]
    assert upwards == [True, False, True, None]
    assert [Figure("f", value, "s", floor=10, higher_is_better=False).met for value in (10, 11)] == [True, False]


def test_report_has_the_documented_shape() -> None:
    figure = Figure("insert", 5.0, "rows/s", floor=4.0, goal=6.0, reference="disk 9")
    told = {"name": "insert", "value": 5.0, "unit": "rows/s", "floor": 4.0, "goal": 6.0, "met": True}
    report = Report("store", "abc", "2 x cpu", (figure,)).as_json()
    assert json.loads(json.dumps(report)) == {
        "bench": "store",
        "commit": "abc",
        "machine": "2 x cpu",
        "figures": [told | {"reference": "disk 9"}],
    }
    assert describe_machine().startswith(f"{os.cpu_count()} x ")
    assert " GiB, Linux " in describe_machine()


def test_commit_without_a_checkout_or_git_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "__file__", str(tmp_path / "figures.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert describe_commit() == "unknown"
    monkeypatch.setenv("PATH", "/nowhere")
    assert describe_commit() == "unknown"


@pytest.mark.parametrize(
    ("memory_mb", "growth", "tolerance"),
    [
        (500 + 36 * SECONDS / HOUR_S + np.random.default_rng(1).normal(0, 20, HOUR_S), 36, 8),  # a leak in noise
        (500 + 300 * (1 - np.exp(-SECONDS / 120)), 0, 0.1),  # getting warm
        (500 + 400 * ((SECONDS >= 3000) & (SECONDS < 3100)), 0, 0),  # one large answer
        (SECONDS[:15], 0, 0),  # a few seconds say nothing
    ],
)
def test_leak_is_told_from_noise_and_from_getting_warm(
    memory_mb: "np.ndarray[tuple[int], np.dtype[np.float64]]", growth: float, tolerance: float
) -> None:
    samples = [Sample(float(second), float(memory), 30, 12) for second, memory in enumerate(memory_mb)]
    assert growth_mb_per_hour(samples) == pytest.approx(growth, abs=tolerance)


@pytest.mark.parametrize("ranks", [16, 1_024])
def test_simulated_scenario_of_every_size_can_be_built(ranks: int) -> None:
    told = bench_scenario(Run(ranks, 10))
    check_scenario(told)
    assert told.ranks == ranks


def test_simulation_counts_the_rows_after_its_warm_up_and_gives_the_cores_back() -> None:
    cores = os.sched_getaffinity(0)
    cost = simulate(Run(16, 3, warm_up_s=1))
    assert os.sched_getaffinity(0) == cores
    assert cost.scenario_s == 3
    assert cost.rows > 16 * 3
    assert cost.cpu_s > 0
    assert cost.peak_mb > 10
    assert cost.pace == cost.scenario_s / cost.cpu_s
    assert simulate(Run(16, 3, sample=0.05)).rows < cost.rows


@pytest.mark.parametrize(("cpu_s", "is_met"), [(10.0, True), (1_000.0, False)])
def test_simulations_are_held_against_the_claims(cpu_s: float, is_met: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Run] = []

    def pretend(_note: object, run: Run) -> Cost:
        told.append(run)
        return Cost(run.scenario_s, cpu_s, 1.0, 1_000, 500.0, 0.0)

    monkeypatch.setattr(benchmarks.sim, "_noted", pretend)
    figures = {figure.name: figure for figure in measure(quick=False, note=lambda _: None)}
    assert [run.ranks for run in told] == [256, 1_024, 16_384, 100_000]
    real_time, minute = figures["ranks in real time on one core, at 256"], figures["16,384 ranks x 60 s"]
    assert real_time.value == pytest.approx(256 * 30 / cpu_s)
    assert minute.value == pytest.approx((1 + cpu_s * 60 / 58) / 60)
    assert (real_time.met, minute.met) == (is_met, is_met)
    assert minute.goal == 5
