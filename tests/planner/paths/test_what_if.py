"""Forecasts follow the fair shares of links, and a step changes by the part that waits for the network."""

import numpy as np
import pytest

from lockstep.fabrics import leaf_spine
from planner.paths.flow_paths import FlowPaths, choose_by_chance
from planner.paths.flows import place_flows
from planner.paths.forecast import forecast, predict_ratio
from planner.paths.network import build_network, without
from planner.paths.planning import plan_paths
from tests.planner.paths.build import flows_between

NETWORK = build_network(leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=4))
FLOWS = flows_between([(f"h{i}", f"h{i + 4}") for i in range(4)], gbps=400.0)


def test_flows_on_paths_of_their_own_get_all_and_flows_that_share_one_get_half() -> None:
    table = place_flows(NETWORK, FLOWS)
    alone = forecast(NETWORK, table, np.array([0, 1, 2, 3]))
    shared = forecast(NETWORK, table, np.array([0, 0, 2, 3]))
    assert alone.gbps.tolist() == [400.0] * 4
    assert (alone.stretch, shared.stretch, shared.worst_gbps) == (1.0, 2.0, 200.0)


def test_a_plan_is_never_forecast_to_be_slower_than_chance_and_a_flow_without_a_path_never_ends() -> None:
    plan = plan_paths(NETWORK, FLOWS)
    paths = FlowPaths(NETWORK, plan.flows)
    planned = forecast(NETWORK, plan.flows, plan.spine)
    for seed in range(20):
        assert forecast(NETWORK, plan.flows, choose_by_chance(paths, seed)).stretch >= planned.stretch == 1.0
    cut = plan_paths(without(NETWORK, ["nic:h0/eth0"]), FLOWS)
    ahead = forecast(cut.network, cut.flows, cut.spine)
    assert ahead.gbps[0] == 0.0
    assert ahead.stretch == np.inf
    assert predict_ratio(0.4, before=2.0, after=1.0) == pytest.approx(0.8)
    assert predict_ratio(0.4, before=np.inf, after=1.0) == pytest.approx(0.6)
    assert predict_ratio(0.0, before=1.0, after=9.0) == 1.0


def test_chance_takes_every_path_equally_often() -> None:
    table = place_flows(NETWORK, flows_between([("h0", "h4")] * 4000))
    counts = np.bincount(choose_by_chance(FlowPaths(NETWORK, table), seed=7), minlength=4)
    assert counts.sum() == 4000
    assert (abs(counts - 1000) < 150).all()  # five deviations of a fair draw
