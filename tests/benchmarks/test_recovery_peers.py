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

_BERT, _MEDIUM, _LARGE = MODELS[0], MODELS[2], MODELS[4]
_SMALL_FIT = Fit(error=0.0, stages=(4,), micro_batches=24, full=100.0)
_LONG_FIT = Fit(error=0.0, stages=(4, 6, 8, 12), micro_batches=60, full=38.47)  # GPT-3 Medium's would take long
_CASES = [(_BERT, fit_grids(_BERT)[0]), (_MEDIUM, _LONG_FIT), (_LARGE, fit_grids(_LARGE)[0])]


@pytest.fixture(scope="module", params=_CASES, ids=lambda case: case[0].name)
def case(request: pytest.FixtureRequest) -> tuple[Measured, Fit]:
    made: tuple[Measured, Fit] = request.param
    return made


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_oobleck_table_gives_the_average_of_its_own_simulator(model: Measured) -> None:
    stretches = [Stretch(rate, model.copy_s if lost else 0.0) for lost, rate in enumerate(model.oobleck)]
    for at, interval_s in enumerate(INTERVALS_S.values()):
        # Steps that end during a pause count there: one in 31 with the longest steps and shortest intervals.
        assert average(model.batch, stretches, interval_s) == pytest.approx(model.averages["Oobleck"][at], rel=0.035)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_tables_have_a_rate_for_each_count_and_an_average_for_each_interval(model: Measured) -> None:
    assert len(model.oobleck) == len(model.varuna) == LOSSES
    assert {len(values) for values in model.averages.values()} == {len(INTERVALS_S)}


def test_without_losses_the_average_is_the_full_rate() -> None:
    fit = fit_grids(_BERT)[0]
    assert average(_BERT.batch, [Stretch(fit.rate(fit.best(NODES)))], 86_400.0) == pytest.approx(fit.full)


def test_full_rate_is_that_of_the_slower_peer() -> None:
    assert {fit.full for fit in fit_grids(_BERT)} == {_BERT.varuna[0]}
    assert {fit.full for fit in fit_grids(_MEDIUM)} == {_MEDIUM.oobleck[0]}


def test_model_is_close_to_what_was_measured() -> None:
    assert all(fit_grids(model)[0].error < 0.03 for model in MODELS)


def test_nothing_is_faster_than_without_losses(case: tuple[Measured, Fit]) -> None:
    model, fit = case
    ways = (list_rerouted(model, fit), list_dropped(model, fit), list_planned(model, fit, 3_600.0))
    assert all(len(way) == LOSSES for way in ways)
    assert max(one.rate for way in ways for one in way) <= fit.full * (1 + 1e-9)


def test_dropping_pipelines_is_never_better_than_rerouting(case: tuple[Measured, Fit]) -> None:
    model, fit = case
    pairs = list(zip(list_dropped(model, fit), list_rerouted(model, fit), strict=True))
    assert all(dropped.rate <= rerouted.rate * (1 + 1e-9) for dropped, rerouted in pairs)
    assert any(dropped.rate < rerouted.rate for dropped, rerouted in pairs)


def test_rerouting_is_never_faster_with_fewer_nodes(case: tuple[Measured, Fit]) -> None:
    rates = [one.rate for one in list_rerouted(*case)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(rates))


def test_rarer_losses_cost_less(case: tuple[Measured, Fit]) -> None:
    model, fit = case
    falling = [average(model.batch, list_planned(model, fit, every_s), every_s) for every_s in INTERVALS_S.values()]
    assert falling == sorted(falling, reverse=True)


def test_losses_within_the_bubble_are_free() -> None:
    assert _SMALL_FIT.best(NODES) == Grid(4, 6)  # with seven pipelines, too, one has four micro-batches
    assert _SMALL_FIT.rate(Grid(4, 6), 4) == pytest.approx(100.0)
    assert _SMALL_FIT.rate(Grid(4, 6), 12) < 100.0


def test_stage_that_lost_all_copies_does_nothing() -> None:
    assert _SMALL_FIT.rate(Grid(4, 2), 4) > 0
    assert _SMALL_FIT.rate(Grid(4, 2), 5) == 0.0


def test_stage_that_lost_all_copies_forces_a_restart() -> None:
    kept, hit, after = list_rerouted(_BERT, fit_grids(_BERT)[0], Grid(30, 1))[:3]
    assert kept.pause_s == 0.0
    assert hit.pause_s > _BERT.restart_s  # and what was done since the last checkpoint is done again
    assert after.pause_s == _BERT.copy_s  # the new grid has peers


def test_planner_goes_to_another_grid_only_where_that_pays() -> None:
    assert _count_restarts(_MEDIUM, _LONG_FIT, 21_600.0) > 0
    assert _count_restarts(_MEDIUM, _LONG_FIT, 60.0) == 0  # a minute is less than the restart takes


def test_steps_cut_short_count_for_nothing() -> None:
    assert average(100.0, [Stretch(1.0), Stretch(1.0, 10.0)], 90.0) == 0.0


def test_quick_run_names_what_each_ratio_rests_on() -> None:
    notes: list[str] = []
    figures = measure_peers(True, notes.append)
    ratios = [one for one in figures if one.name.endswith("ours over the best of theirs")]
    assert len(ratios) == 4
    assert all("(model)" in one.reference and "(their simulators)" in one.reference for one in ratios)
    assert all(one.met is not False for one in figures)
    assert len(notes) == 2


def _count_restarts(model: Measured, fit: Fit, every_s: float) -> int:
    return sum(one.pause_s > model.restart_s for one in list_planned(model, fit, every_s))
