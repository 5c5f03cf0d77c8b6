"""The simulator's benchmark runs the scenario it says, on one core, and holds its figures against the claims."""

import os

import pytest

import benchmarks.sim
from benchmarks.sim import Cost, Run, bench_scenario, measure, simulate
from simulator.scenario import check_scenario


@pytest.mark.parametrize("ranks", [16, 256, 1_024, 16_384])
def test_scenario_of_every_size_can_be_built(ranks: int) -> None:
    told = bench_scenario(Run(ranks, 10))
    check_scenario(told)
    assert told.ranks == ranks


def test_run_counts_the_rows_after_its_warm_up_and_gives_the_cores_back() -> None:
    cores = os.sched_getaffinity(0)
    cost = simulate(Run(32, 3, warm_up_s=1))
    assert os.sched_getaffinity(0) == cores
    assert cost.scenario_s == 3
    assert cost.rows > 32 * 3
    assert cost.cpu_s > 0
    assert cost.peak_mb > 10
    assert cost.pace == cost.scenario_s / cost.cpu_s


def test_sampled_run_has_fewer_rows() -> None:
    assert simulate(Run(32, 3, sample=0.05)).rows < simulate(Run(32, 3)).rows


@pytest.mark.parametrize(("cpu_s", "is_met"), [(10.0, True), (1_000.0, False)])
def test_figures_are_held_against_the_claims(cpu_s: float, is_met: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Run] = []

    def pretend(_note: object, run: Run) -> Cost:
        told.append(run)
        return Cost(run.scenario_s, cpu_s, 1.0, 1_000, 500.0, 0.0)

    monkeypatch.setattr(benchmarks.sim, "_noted", pretend)
    figures = {figure.name: figure for figure in measure(quick=False, note=lambda _: None)}
    assert [run.ranks for run in told] == [256, 1_024, 16_384, 100_000]
    assert figures["ranks in real time on one core, at 256"].value == pytest.approx(256 * 30 / cpu_s)
    assert figures["ranks in real time on one core, at 256"].met is is_met
    assert figures["16,384 ranks x 60 s"].value == pytest.approx((1 + cpu_s * 60 / 58) / 60)
    assert figures["16,384 ranks x 60 s"].met is is_met
    assert figures["16,384 ranks x 60 s"].goal == 5
