"""Scores of plans count what they say, and a plan that is none is refused."""

from dataclasses import replace

import numpy as np
import pytest

import benchmarks.paths_score
from benchmarks.paths_cases import Case, build_case
from benchmarks.paths_score import check_plan, count_above, replan_case, score_case, with_effort
from lockstep.fabrics import leaf_spine
from planner.paths.flows import Flow
from planner.paths.network import build_network, with_rates, without
from planner.paths.planning import PathPlan, plan_paths
from planner.paths.roads import UNPLACED, Roads

SMALL = Case("leaves 12 x 7", "4 % of links missing", "rings", 200, 1)


def plan(sizes: list[float], slow: dict[str, float] | None = None) -> PathPlan:
    """Return a plan of flows from one leaf to another over two spines of 400 Gbit/s."""
    network = with_rates(build_network(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=2)), slow or {})
    flows = [Flow(id=str(number), src="h0", dst="h1", gbps=size) for number, size in enumerate(sizes)]
    return plan_paths(network, flows)


def over_spines(made: PathPlan, tops: list[int]) -> PathPlan:
    """Return the plan with these tops and the loads that they give."""
    top = np.array(tops)
    return replace(made, top=top, load=Roads(made.network, made.flows).find_loads(top))


@pytest.mark.parametrize(("tops", "above"), [([0, 0, 1, 1, 1], 0), ([0, 0, 0, 0, 1], 1), ([0, 0, 0, 0, 0], 2)])
def test_equal_flows_are_counted_above_the_ceiling_of_the_bound(tops: list[int], above: int) -> None:
    made = plan([100.0] * 5)
    assert made.bound == 2.5 * 100 / 400
    assert count_above(over_spines(made, tops), made.bound) == above


@pytest.mark.parametrize(("tops", "above"), [([0, 1, 1, 1, 1], 0), ([1, 1, 1, 1, 1], 1), ([0, 0, 1, 1, 1], 1)])
def test_a_slow_link_has_a_ceiling_of_its_own(tops: list[int], above: int) -> None:
    made = plan([100.0] * 5, slow={"leaf0--spine0": 0.25, "leaf1--spine0": 0.25})
    assert made.bound == 1.0
    assert count_above(over_spines(made, tops), made.bound) == above


@pytest.mark.parametrize(("tops", "above"), [([0, 1, 1, 1], 0), ([0, 0, 1, 1], 1), ([1, 1, 1, 1], 1)])
def test_the_ceiling_is_the_lowest_use_that_whole_flows_give_on_any_link(tops: list[int], above: int) -> None:
    made = plan([100.0] * 4, slow={"leaf0--spine0": 0.5, "leaf1--spine0": 0.5})
    assert made.bound == pytest.approx(400 / 600)  # so three flows of four fit on the fast link, and one on the slow
    assert count_above(over_spines(made, tops), made.bound) == above


def test_unequal_flows_are_counted_in_the_largest() -> None:
    made = plan([200.0, 100.0, 100.0])
    assert count_above(over_spines(made, [0, 1, 1]), made.bound) == pytest.approx(0.0)
    assert count_above(over_spines(made, [0, 0, 1]), made.bound) == pytest.approx(0.5)


def test_nothing_is_above_anything_where_nothing_flows() -> None:
    assert count_above(plan([]), 0.0) == 0.0


def test_a_plan_over_a_dead_link_or_without_a_road_is_refused() -> None:
    made = plan([100.0, 100.0])
    check_plan(made)
    with pytest.raises(AssertionError, match="without a road, or over a dead one"):
        check_plan(replace(made, network=without(made.network, ["leaf0--spine0"])))
    with pytest.raises(AssertionError, match="without a road, or over a dead one"):
        check_plan(replace(made, top=np.array([UNPLACED, 0])))


def test_a_plan_with_loads_of_its_own_is_refused() -> None:
    made = plan([100.0, 100.0])
    with pytest.raises(AssertionError, match="loads are not those of its roads"):
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


def test_unequal_flows_have_no_whole_optimum() -> None:
    score = score_case(Case("leaves 16 x 8", "intact", "four sizes", 100, 1), milp_always=True)
    assert not score.has_equal_flows
    assert score.whole is None


def test_flows_without_a_way_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(benchmarks.paths_score, "_clocked", lambda call: next(times))
    result, effort = with_effort(lambda: "unused", times=3)
    assert result == "first"
    assert (effort.wall_s, effort.cpu_s) == (2.0, 1.0)
