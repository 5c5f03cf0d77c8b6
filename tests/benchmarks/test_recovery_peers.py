"""The comparison with Oobleck, Varuna and Bamboo counts as their simulators do, and gives us nothing for free."""

from itertools import pairwise

import pytest

from benchmarks.recovery_peers import (
    INTERVALS_S,
    LOSSES,
    MODELS,
    NODES,
    Fit,
    Grid,
    Measured,
    Stretch,
    average,
    fit_grids,
    list_dropped,
    list_planned,
    list_rerouted,
    measure_peers,
)
from tests.tiers import long_except

_BERT, _MEDIUM, _LARGE = MODELS[0], MODELS[2], MODELS[4]
_SMALL_FIT = Fit(error=0.0, stages=(4,), micro_batches=24, full=100.0)
_LONG_FIT = Fit(error=0.0, stages=(4, 6, 8, 12), micro_batches=60, full=38.47)  # GPT-3 Medium's would take long
_CASES = [(_BERT, fit_grids(_BERT)[0]), (_MEDIUM, _LONG_FIT), (_LARGE, fit_grids(_LARGE)[0])]


@pytest.fixture(scope="module", params=long_except(_CASES[2:], _CASES), ids=lambda case: case[0].name)
def case(request: pytest.FixtureRequest) -> tuple[Measured, Fit]:
    made: tuple[Measured, Fit] = request.param
    return made


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_oobleck_table_gives_the_average_of_its_own_simulator(model: Measured) -> None:
    assert len(model.oobleck) == len(model.varuna) == LOSSES
    assert {len(values) for values in model.averages.values()} == {len(INTERVALS_S)}
    stretches = [Stretch(rate, model.copy_s if lost else 0.0) for lost, rate in enumerate(model.oobleck)]
    for at, interval_s in enumerate(INTERVALS_S.values()):
        # Steps that end during a pause count there: one in 31 with the longest steps and shortest intervals.
        assert average(model.batch, stretches, interval_s) == pytest.approx(model.averages["Oobleck"][at], rel=0.035)


def test_model_is_close_to_what_was_measured_at_the_full_rate_of_the_slower_peer() -> None:
    assert {fit.full for fit in fit_grids(_BERT)} == {_BERT.varuna[0]}
    assert {fit.full for fit in fit_grids(_MEDIUM)} == {_MEDIUM.oobleck[0]}
    fit = fit_grids(_BERT)[0]
    assert average(_BERT.batch, [Stretch(fit.rate(fit.best(NODES)))], 86_400.0) == pytest.approx(fit.full)
    assert average(100.0, [Stretch(1.0), Stretch(1.0, 10.0)], 90.0) == 0.0, "steps cut short count for nothing"
    assert all(fit_grids(model)[0].error < 0.03 for model in MODELS)


def test_rarer_losses_cost_less_nothing_beats_none_and_dropping_never_rerouting(case: tuple[Measured, Fit]) -> None:
    model, fit = case
    rerouted, dropped = list_rerouted(model, fit), list_dropped(model, fit)
    planned = list_planned(model, fit, 3_600.0)
    assert {len(way) for way in (rerouted, dropped, planned)} == {LOSSES}
    slack = 1 + 1e-9
    assert max(one.rate for way in (rerouted, dropped, planned) for one in way) <= fit.full * slack
    assert all(one.rate <= other.rate * slack for one, other in zip(dropped, rerouted, strict=True))
    assert any(one.rate < other.rate for one, other in zip(dropped, rerouted, strict=True))
    assert all(later.rate <= earlier.rate * slack for earlier, later in pairwise(rerouted))
    model, fit = case
    falling = [average(model.batch, list_planned(model, fit, every_s), every_s) for every_s in INTERVALS_S.values()]
    assert falling == sorted(falling, reverse=True)


def test_losses_within_the_bubble_are_free_and_a_stage_without_copies_forces_a_restart() -> None:
    assert _SMALL_FIT.best(NODES) == Grid(4, 6)  # with seven pipelines, too, one has four micro-batches
    assert _SMALL_FIT.rate(Grid(4, 6), 4) == pytest.approx(100.0)
    assert _SMALL_FIT.rate(Grid(4, 6), 12) < 100.0
    assert _SMALL_FIT.rate(Grid(4, 2), 4) > 0
    assert _SMALL_FIT.rate(Grid(4, 2), 5) == 0.0, "a stage has lost all copies"
    kept, hit, after = list_rerouted(_BERT, fit_grids(_BERT)[0], Grid(30, 1))[:3]
    assert kept.pause_s == 0.0
    assert hit.pause_s > _BERT.restart_s  # and what was done since the last checkpoint is done again
    assert after.pause_s == _BERT.copy_s  # the new grid has peers


@pytest.mark.slow
def test_planner_goes_to_another_grid_only_where_that_pays() -> None:
    pauses = {
        every_s: [one.pause_s for one in list_planned(_MEDIUM, _LONG_FIT, every_s)] for every_s in (21_600.0, 60.0)
    }
    assert max(pauses[21_600.0]) > _MEDIUM.restart_s
    assert max(pauses[60.0]) <= _MEDIUM.restart_s, "a minute is less than the restart takes"


def test_quick_run_names_what_each_ratio_rests_on() -> None:
    notes: list[str] = []
    figures = measure_peers(True, notes.append)
    ratios = [one for one in figures if one.name.endswith("ours over the best of theirs")]
    assert len(ratios) == 4
    assert all("(model)" in one.reference and "(their simulators)" in one.reference for one in ratios)
    assert all(one.met is not False for one in figures)
    assert len(notes) == 2
