"""The shape of the C4P paper's table: a plan wins by half and more, and weights bring back what a cut takes."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.paths_c4p import (
    CUT,
    EXPERIMENTS,
    NVLINK_GBPS,
    Experiment,
    build,
    run_after_cut,
    run_by_chance,
    run_planned,
)
from planner.paths.network import without

NETWORK = build()


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_a_plan_is_half_as_fast_again_as_chance_at_least(experiment: Experiment) -> None:
    network = without(NETWORK, experiment.dead)
    chance = np.median(
        [run_by_chance(network, replace(experiment, queue_pairs=8), seed).slowest for seed in range(5)]
    )
    assert run_planned(network, replace(experiment, queue_pairs=8)).slowest > 1.4 * chance


def test_all_jobs_get_the_same_with_a_plan_and_not_by_chance() -> None:
    planned, chance = run_planned(NETWORK, EXPERIMENTS[1]), run_by_chance(NETWORK, EXPERIMENTS[1], seed=1)
    assert planned.slowest == planned.fastest == NVLINK_GBPS
    assert chance.fastest > chance.slowest


def test_a_dynamic_plan_loses_less_than_a_static_one_to_a_cut() -> None:
    link = NETWORK.link_of(int(np.flatnonzero(NETWORK.fabric)[0]))
    static, dynamic = (run_after_cut(NETWORK, CUT, link, 1, is_dynamic).slowest for is_dynamic in (False, True))
    assert static <= 200.0
    assert dynamic >= 1.4 * static
