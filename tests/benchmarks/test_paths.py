"""The path planner's benchmark covers what the claims are about, with seeds that no option was chosen on."""

from itertools import product

import pytest

import benchmarks.paths
from benchmarks.paths import large_cases, measure, quick_cases, replan_cases, small_cases
from benchmarks.paths_cases import DAMAGES, FIRST_SEED, LARGE, NAMESAKES, ONE_WAY, SMALL, TRAFFIC, Case
from benchmarks.paths_score import Effort, Replanned, Score


def pretend_score(case: Case, milp_always: bool = False) -> Score:
    whole = 0.5 if milp_always else None
    return Score(case, 0.5, 0.5, "LP", 0.0, whole, (1.0, 2.0), 0.75, Effort(0.1, 0.1, 10.0), 0)


def pretend_replan(case: Case, links: int) -> list[Replanned]:
    return [Replanned(case, 0.05, 0.01, 10, 2, 0.0)] * links


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan nothing, in this process."""
    monkeypatch.setattr(benchmarks.paths, "score_case", pretend_score)
    monkeypatch.setattr(benchmarks.paths, "replan_case", pretend_replan)
    monkeypatch.setattr(benchmarks.paths, "_apart", lambda call, *arguments: call(*arguments))


def test_every_fabric_damage_and_number_of_flows_is_planned_and_all_traffic_is_met() -> None:
    cases = large_cases()
    assert {(case.fabric, case.flows, case.damage) for case in cases} == set(
        product(LARGE, (1_024, 8_192, 65_536), DAMAGES)
    )
    assert {(case.damage, case.traffic) for case in cases} == set(product(DAMAGES, TRAFFIC))


def test_small_cases_are_enough_for_one_in_a_hundred_to_show() -> None:
    cases = small_cases(quick=False)
    assert {case.fabric for case in cases} == set(SMALL)
    assert sum("sizes" not in case.traffic for case in cases) >= 200


def test_no_seed_is_one_that_options_were_chosen_on() -> None:
    cases = [*large_cases(), *quick_cases(), *small_cases(False), *replan_cases(False)]
    assert min(case.seed for case in cases) >= FIRST_SEED > 100


@pytest.mark.usefixtures("pretended")
def test_a_quick_run_tells_the_claims_first() -> None:
    said: list[str] = []
    figures = measure(True, said.append)
    assert [figure.name for figure in figures[:4]] == [
        "worst plan, flows above the integer optimum",
        "plans at the integer optimum",
        "worst plan of unequal flows above the LP",
        "slowest plan, 8,192 flows",
    ]
    assert figures[0].met
    assert "a link lost: k=16, intact, rings, 8,192 flows" in [figure.name for figure in figures]
    assert said[0] == "planning k=16, intact, rings, 8,192 flows"


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("is_there", [True, False])
def test_the_lingjun_topology_is_planned_where_it_is_there(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.paths, "has_public_data", lambda: is_there)
    said: list[str] = []
    names = [figure.name for figure in measure(False, said.append)]
    assert any(name.startswith(ONE_WAY) for name in names) == is_there
    assert any(name.startswith(NAMESAKES) for name in names) == is_there
    left_out = "the Lingjun topology is left out: set LOCKSTEP_PUBLIC_DATA to the folder of third-party data"
    assert (left_out in said) != is_there
