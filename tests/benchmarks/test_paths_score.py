"""Scores of plans count what they say, and a plan that is none is refused."""

from dataclasses import replace

import numpy as np
import pytest

import benchmarks.paths_score
from benchmarks.paths_cases import Case, build_case
from benchmarks.paths_score import (
    build_program,
    check_plan,
    choose_greedily,
    count_above,
    count_variables,
    draw_at_random,
    highest_use,
    replan_case,
    score_case,
    solve_fraction,
    solve_whole,
    with_effort,
)
from lockstep.fabrics import dual_plane, fat_tree, leaf_spine, rail_optimised
from lockstep.topology import Topology
from planner.paths.flows import UNPLACED, Flow, FlowPaths, find_bound, place_flows
from planner.paths.network import build_network, with_rates, without
from planner.paths.planning import PathPlan, plan_paths
from tests.tiers import long_except

SMALL = Case("leaves 12 x 7", "4 % of links missing", "rings", 200, 1)


def plan(sizes: list[float], slow: dict[str, float] | None = None) -> PathPlan:
    """Return a plan of flows from one leaf to another over two spines of 400 Gbit/s."""
    network = with_rates(build_network(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=2)), slow or {})
    flows = [Flow(id=str(number), src="h0", dst="h1", gbps=size) for number, size in enumerate(sizes)]
    return plan_paths(network, flows)


def over_spines(made: PathPlan, spines: list[int]) -> PathPlan:
    """Return the plan with these spines and the loads that they give."""
    spine = np.array(spines, np.int64)
    return replace(made, spine=spine, load=FlowPaths(made.network, made.flows).find_loads(spine))


@pytest.mark.parametrize(
    ("sizes", "spine0", "bound", "spines", "above"),
    [
        ([100.0] * 5, 1.0, 2.5 / 4, [0, 0, 1, 1, 1], 0),
        ([100.0] * 5, 1.0, 2.5 / 4, [0, 0, 0, 0, 1], 1),
        ([100.0] * 5, 1.0, 2.5 / 4, [0, 0, 0, 0, 0], 2),
        ([100.0] * 5, 0.25, 1.0, [0, 1, 1, 1, 1], 0),  # a slow link has a ceiling of its own
        ([100.0] * 5, 0.25, 1.0, [1, 1, 1, 1, 1], 1),
        ([100.0] * 5, 0.25, 1.0, [0, 0, 1, 1, 1], 1),
        ([100.0] * 4, 0.5, 4 / 6, [0, 1, 1, 1], 0),  # three flows of four fit on the fast link, and one on the slow
        ([100.0] * 4, 0.5, 4 / 6, [0, 0, 1, 1], 1),
        ([100.0] * 4, 0.5, 4 / 6, [1, 1, 1, 1], 1),
        ([200.0, 100.0, 100.0], 1.0, 0.5, [0, 1, 1], 0.0),  # unequal flows are counted in the largest
        ([200.0, 100.0, 100.0], 1.0, 0.5, [0, 0, 1], 0.5),
        ([], 1.0, 0.0, [], 0.0),
    ],
)
def test_flows_are_counted_above_the_lowest_use_that_whole_flows_give(
    sizes: list[float], spine0: float, bound: float, spines: list[int], above: float
) -> None:
    made = plan(sizes, slow={"leaf0--spine0": spine0, "leaf1--spine0": spine0})
    assert made.bound == pytest.approx(bound)
    assert count_above(over_spines(made, spines), made.bound) == pytest.approx(above)


def test_a_plan_over_a_dead_link_without_a_path_or_with_loads_of_its_own_is_refused() -> None:
    made = plan([100.0, 100.0])
    check_plan(made)
    dead = replace(made, network=without(made.network, ["leaf0--spine0"]))
    for broken in (dead, replace(made, spine=np.array([UNPLACED, 0]))):
        with pytest.raises(AssertionError, match="without a path, or over a dead one"):
            check_plan(broken)
    with pytest.raises(AssertionError, match="loads are not those of its paths"):
        check_plan(replace(made, load=made.load * 2))


def test_a_plan_is_scored_beside_all_yardsticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.paths_score._MILP_LIMIT_S", 600.0)  # a busy machine finds it, too
    score = score_case(SMALL, milp_always=True)
    assert score.has_equal_flows
    assert score.whole is not None
    assert score.bound <= score.whole * (1 + 1e-6) <= score.use * (1 + 2e-6)
    assert len(score.ecmp) == 20
    assert min(score.ecmp) > score.use
    assert score.use <= score.greedy
    assert score.unreachable == 0
    assert score.effort.wall_s > 0
    unequal = score_case(Case("leaves 16 x 8", "intact", "four sizes", 100, 1), milp_always=True)
    assert (unequal.has_equal_flows, unequal.whole) == (False, None)


def test_flows_without_a_path_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    network, flows = build_case(SMALL)
    cut_off = {f"h{number}/eth0" for number in range(4)}
    lost = [flow for flow in flows if (flow.src in cut_off) != (flow.dst in cut_off)]
    uplinks = [f"leaf0--spine{spine}" for spine in range(7)]
    monkeypatch.setattr(benchmarks.paths_score, "build_case", lambda _: (without(network, uplinks), flows))
    assert score_case(SMALL).unreachable == len(lost) > 0


def test_each_lost_link_is_planned_around() -> None:
    lost = replan_case(SMALL, links=4)
    assert len(lost) == 4
    assert all(one.wall_s > one.without_s > 0 for one in lost)
    assert any(one.must_move > 0 for one in lost)


def test_memory_is_of_the_call_alone_and_not_of_what_was_before() -> None:
    before = np.ones(200 << 17)  # 200 MB that the call has no part in
    del before
    result, effort = with_effort(lambda: float(np.ones(60 << 17).sum()))
    assert result == 60 << 17
    assert 50 < effort.peak_mb < 120


def test_of_several_times_the_quickest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([("first", 5.0, 3.0), ("second", 2.0, 2.0), ("third", 4.0, 1.0)])
    monkeypatch.setattr(benchmarks.paths_score, "clocked", lambda call: next(times))
    result, effort = with_effort(lambda: "unused", times=3)
    assert result == "first"
    assert (effort.wall_s, effort.cpu_s) == (2.0, 1.0)


LIMIT_S = 60.0


def paths_of(case: Case) -> FlowPaths:
    network, flows = build_case(case)
    return FlowPaths(network, place_flows(network, flows))


def two_leaves(flows: int, spines: int = 2, slow: dict[str, float] | None = None) -> FlowPaths:
    """Return flows of 100 Gbit/s from one leaf to another."""
    network = build_network(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=spines))
    sent = [Flow(id=str(number), src="h0", dst="h1", gbps=100.0) for number in range(flows)]
    return FlowPaths(with_rates(network, slow or {}), place_flows(network, sent))


def random_flows(topology: Topology, seed: int) -> FlowPaths:
    print(f"seed {seed}")
    rng, network = np.random.default_rng(seed), build_network(topology)
    hosts = [host.id for host in topology.hosts]
    pairs = [rng.choice(len(hosts), 2, replace=False) for _ in range(100)]
    flows = [
        Flow(id=str(n), src=hosts[a], dst=hosts[b], gbps=float(rng.integers(1, 9))) for n, (a, b) in enumerate(pairs)
    ]
    return FlowPaths(network, place_flows(network, flows))


FABRICS = {
    "leaf-spine": leaf_spine(hosts=16, nics_per_host=1, leaves=8, spines=5),
    "rails": rail_optimised(hosts=8, rails=3, spines=4, pods=2),
    "planes": dual_plane(hosts=12, leaves_per_plane=4, spines_per_plane=3),
    "k=4": fat_tree(4),
    "k=6": fat_tree(6),
}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("seed", long_except([1], [1, 2, 3]))
def test_closed_form_is_the_fractional_optimum_of_intact_fabrics(fabric: str, seed: int) -> None:
    paths = random_flows(FABRICS[fabric], seed)
    assert solve_fraction(build_program(paths), LIMIT_S) == pytest.approx(find_bound(paths), rel=1e-6)


@pytest.mark.parametrize("fabric", ["k=6", "leaves 12 x 7", "rails 16 x 6"])
@pytest.mark.parametrize("damage", ["4 % of links missing", "4 % of links slow", "three spines missing"])
@pytest.mark.parametrize("seed", long_except([1], [1, 2]))
def test_fractional_optimum_of_broken_fabrics_is_not_below_closed_form(fabric: str, damage: str, seed: int) -> None:
    paths = paths_of(Case(fabric, damage, "random", 200, seed))
    found = solve_fraction(build_program(paths), LIMIT_S)
    assert found is not None
    assert found >= find_bound(paths) * (1 - 1e-6)


def test_closed_form_may_be_below_the_fractional_optimum_of_a_broken_fabric() -> None:
    # h0 and h1 reach h2 only over spine0, each alone within its own share of it, together not.
    network = build_network(leaf_spine(hosts=3, nics_per_host=1, leaves=3, spines=3))
    broken = without(network, ["leaf0--spine1", "leaf1--spine2", "leaf2--spine1", "leaf2--spine2"])
    links = [Flow(id=name, src=name, dst="h2", gbps=100.0) for name in ("h0", "h1")]
    across = [Flow(id="across", src="h0", dst="h1", gbps=300.0)]
    paths = FlowPaths(broken, place_flows(broken, links + across))
    assert find_bound(paths) <= 0.75
    assert solve_fraction(build_program(paths), LIMIT_S) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("flows", "slow", "fraction", "whole"),
    [(3, 1.0, 1.5 / 4, 0.5), (5, 0.25, 1.0, 1.0), (4, 0.25, 0.8, 1.0), (0, 1.0, 0, 0)],
)
def test_whole_flows_cannot_be_halved(flows: int, slow: float, fraction: float, whole: float) -> None:
    program = build_program(two_leaves(flows, slow={"leaf0--spine0": slow}))
    assert solve_fraction(program, LIMIT_S) == pytest.approx(fraction)
    assert solve_whole(program, 100.0, LIMIT_S) == pytest.approx(whole)


def test_time_that_does_not_suffice_gives_no_optimum() -> None:
    program = build_program(paths_of(Case("k=8", "4 % of links missing", "rings", 512, 1)))
    assert solve_fraction(program, 1e-6) is None
    assert solve_whole(program, 50.0, 1e-6) is None


@pytest.mark.parametrize(
    ("fabric", "damage", "paths"),
    [("leaves 12 x 7", "intact", 350), ("leaves 12 x 7", "4 % of links missing", 256)]
    + [("k=6", "intact", 474), ("k=6", "4 % of links missing", 422)],
)
def test_programs_have_a_variable_for_each_path_of_each_pair_of_leaves(fabric: str, damage: str, paths: int) -> None:
    found = paths_of(Case(fabric, damage, "random", 60, 3))
    assert build_program(found).variables == count_variables(found) == paths


def test_random_choice_takes_all_paths_equally_often_and_keeps_off_dead_links() -> None:
    paths = two_leaves(flows=4_000, spines=4)
    uses = draw_at_random(paths, range(100, 105))
    even = highest_use(paths, np.arange(4_000) % 4)
    assert all(even < use < 1.1 * even for use in uses)
    assert len(set(uses)) > 1
    broken = paths_of(Case("k=6", "three spines missing", "rings", 200, 1))
    uses = draw_at_random(broken, range(100, 103))
    assert uses == draw_at_random(broken, range(100, 103)), "repeatable"
    assert np.isfinite(uses).all()


def test_greedy_choice_fills_a_slow_link_last_and_one_road_leaves_no_choice() -> None:
    slow = {"leaf0--spine0": 0.25}
    chosen = [choose_greedily(two_leaves(flows, slow=dead)) for flows, dead in ((4, {}), (1, slow), (5, slow))]
    assert chosen == [0.5, 0.25, 1.0]
    paths = two_leaves(flows=4, spines=1)
    assert draw_at_random(paths, range(100, 102)) == [1.0, 1.0]
    assert choose_greedily(paths) == 1.0
    assert solve_whole(build_program(paths), 100.0, LIMIT_S) == pytest.approx(1.0)
