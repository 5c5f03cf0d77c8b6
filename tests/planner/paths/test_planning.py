"""Plans are as even as they can be, keep off what is dead, move little and are the same each time; their forecast."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paths_score import build_program, solve_fraction
from lockstep.fabrics import FabricOptions, dual_plane, fat_tree, leaf_spine
from planner.paths.colouring import colour_evenly
from planner.paths.flows import UNPLACED, Flow, FlowPaths, choose_by_chance, place_flows
from planner.paths.network import Network, build_network, with_rates, without
from planner.paths.planning import PathPlan, PlanOptions, plan_paths
from planner.paths.traffic import forecast, predict_ratio
from tests.planner.paths.build import broken, flows_between, networks, some_flows

WIDE = build_network(leaf_spine(hosts=16, nics_per_host=2, leaves=4, spines=4))


def loads_by_hand(plan: PathPlan) -> np.ndarray:
    load = np.zeros(plan.network.directed_links)
    for links, size in zip(plan.all_directed_links(), plan.flows.size.tolist(), strict=True):
        load[links] += size
    return load


@given(networks(), st.integers(0, 60), st.integers(0, 999), st.booleans())
def test_plan_is_the_same_each_time_sound_and_even(network: Network, count: int, seed: int, are_equal: bool) -> None:
    flows = some_flows(
        network, count if len(network.ports) > 1 else 0, seed, (100.0,) if are_equal else (100.0, 25.0)
    )
    plan = plan_paths(network, flows)
    assert np.allclose(plan.load, loads_by_hand(plan))
    assert not plan.load[network.gbps <= 0].any()
    has_path = (plan.height == 0) | (plan.spine != UNPLACED)
    assert has_path.tolist() == (plan.height >= 0).tolist()
    assert np.array_equal(plan.spine, plan_paths(network, flows).spine)
    after = plan_paths(network, flows, plan)
    assert (after.must_move, after.may_move) == (0, 0)
    assert np.array_equal(plan.spine, after.spine), "nothing moves when nothing changed"
    assert plan.bound <= plan.highest_use * (1 + 1e-9)
    if are_equal:
        # The closed form may lie far below where links are missing: what leads nowhere counts as room there.
        program = build_program(FlowPaths(network, plan.flows)) if plan.highest_use else None
        fraction = solve_fraction(program, limit_s=60.0) if program else 0.0
        assert fraction is not None
        slowest = network.gbps[network.fabric & (network.gbps > 0)].min(initial=np.inf)
        assert plan.highest_use <= max(plan.bound, fraction) + 2 * 100.0 / slowest  # rounded up, and one more


@given(st.integers(0, 999), st.integers(0, 999), st.sampled_from((0.0, 0.05, 0.5)))
def test_what_need_not_move_stays_up_to_the_bound(seed: int, link: int, most_moved: float) -> None:
    network, flows = WIDE, some_flows(WIDE, 60, seed)
    before = plan_paths(network, flows)
    after = plan_paths(broken(network, 1, 1, link), flows, before, PlanOptions(most_moved=most_moved))
    moved = int((before.spine != after.spine).sum())
    assert after.may_move <= int(most_moved * len(flows))
    assert moved <= after.must_move + after.may_move
    if not most_moved:
        assert moved == after.must_move


def test_flows_that_came_and_went_do_not_move_the_others() -> None:
    network = build_network(leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=4))
    flows = flows_between([(f"h{i}", f"h{i + 4}") for i in range(4)])
    before = plan_paths(network, flows)
    after = plan_paths(network, [*flows[1:], Flow(id="new", src="h4", dst="h0", gbps=100.0)], before)
    assert after.spine[:3].tolist() == before.spine[1:].tolist()
    assert after.highest_use == 0.25


def test_left_goes_to_left_and_right_to_right() -> None:
    network = build_network(dual_plane(hosts=8, leaves_per_plane=2, spines_per_plane=2))
    plan = plan_paths(network, flows_between([("h0", "h4")] * 8))
    ends = [
        network.name_directed_link(links[0])[:7] + network.name_directed_link(links[-1])[-5:]
        for links in plan.all_directed_links()
    ]
    assert sorted(ends) == ["h0/eth0/eth0"] * 4 + ["h0/eth1/eth1"] * 4


def test_a_spine_of_half_the_rate_gets_half_the_flows() -> None:
    network = build_network(leaf_spine(8, 1, 2, 3, FabricOptions(gbps=400, uplink_gbps=400)))
    plan = plan_paths(with_rates(network, {"spine2": 0.5}), flows_between([("h0", "h4")] * 10))
    assert np.bincount(plan.spine).tolist() == [4, 4, 2]
    assert plan.highest_use == plan.bound == 1.0


def test_small_flows_make_way_for_large_ones_and_half_of_the_time_counts_half() -> None:
    network = build_network(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=2))
    flows = [*flows_between([("h0", "h1")] * 4, gbps=50.0), Flow(id="large", src="h0", dst="h1", gbps=200.0)]
    assert plan_paths(network, flows).highest_use == 0.5
    halves = [flow.model_copy(update={"duty": 0.5}) for flow in flows_between([("h0", "h1")] * 2)]
    plan = plan_paths(network, [*halves, Flow(id="whole", src="h0", dst="h1", gbps=100.0)])
    assert plan.highest_use == 0.25


def test_a_leaf_without_a_path_up_has_no_plan_and_the_others_have() -> None:
    network = build_network(leaf_spine(hosts=3, nics_per_host=1, leaves=3, spines=2))
    cut = without(network, ["leaf0--spine0", "leaf0--spine1"])
    plan = plan_paths(cut, flows_between([("h0", "h1"), ("h1", "h2")]))
    assert plan.unreachable == ["f0"]
    assert plan.all_directed_links()[0] == []
    assert len(plan.all_directed_links()[1]) == 4
    nothing = plan_paths(build_network(fat_tree(4)), [])
    assert (nothing.highest_use, nothing.bound) == (0.0, 0.0)


def test_a_plan_for_other_paths_or_another_fabric_is_no_start() -> None:
    network = build_network(fat_tree(4))
    before = plan_paths(network, flows_between([("h0", "h15")]))
    moved = replace(before, height=np.array([1]))
    assert plan_paths(network, flows_between([("h0", "h15")]), moved).highest_use == 0.25
    after = plan_paths(build_network(leaf_spine(16, 1, 4, 4)), flows_between([("h0", "h15")]), before)
    assert (after.must_move, after.highest_use) == (0, 0.25)


def assert_even(key: np.ndarray, colour: np.ndarray, colours: int) -> None:
    table = np.zeros((int(key.max(initial=0)) + 1, colours), np.int64)
    np.add.at(table, (key, colour), 1)
    each = table.sum(axis=1)
    assert (table.min(axis=1) >= each // colours).all()
    assert (table.max(axis=1) <= -(-each // colours)).all()


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=120), st.integers(1, 9), st.integers(1, 4))
def test_each_vertex_has_each_colour_equally_often(
    edges: list[tuple[int, int]], colours: int, group_size: int
) -> None:
    near, far = np.array(edges, np.int64).reshape(-1, 2).T
    groups = [ends // group_size for ends in (near, far)]
    colour = colour_evenly([near, groups[0]], [far, groups[1]], colours)
    assert_even(near, colour, colours)
    assert_even(far, colour, colours)
    if colours.bit_count() == 1:
        assert_even(groups[0], colour, colours)
        assert_even(groups[1], colour, colours)


NETWORK = build_network(leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=4))
FLOWS = flows_between([(f"h{i}", f"h{i + 4}") for i in range(4)], gbps=400.0)


def test_flows_on_paths_of_their_own_get_all_and_flows_that_share_one_get_half() -> None:
    table = place_flows(NETWORK, FLOWS)
    alone = forecast(NETWORK, table, np.array([0, 1, 2, 3]))
    shared = forecast(NETWORK, table, np.array([0, 0, 2, 3]))
    assert alone.gbps.tolist() == [400.0] * 4
    assert (alone.stretch, shared.stretch, shared.gbps.min()) == (1.0, 2.0, 200.0)


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
