"""A plan that was written is the plan that is read again, also after links were lost."""

import json

import pytest

from lockstep.errors import BadInput
from lockstep.fabrics import fat_tree
from planner.paths.network import build_network, without
from planner.paths.plan_file import from_json, to_json
from planner.paths.planning import plan_paths
from tests.planner.paths.fabrics import flows_between, some_flows


def test_a_written_plan_comes_back() -> None:
    network = build_network(fat_tree(4))
    flows = some_flows(network, 50, seed=2)
    plan = plan_paths(network, flows)
    again = from_json(network, flows, json.loads(json.dumps(to_json(plan))))
    assert again.top.tolist() == plan.top.tolist()
    assert again.load.tolist() == pytest.approx(plan.load.tolist())


def test_only_flows_on_the_lost_link_move() -> None:
    network = build_network(fat_tree(4))
    flows = flows_between([(f"h{i}", f"h{(i + 5) % 16}") for i in range(16)])
    written = to_json(plan_paths(network, flows))
    lost = written["flows"]["f0"][1]
    hit = [name for name, links in written["flows"].items() if lost in links]
    poorer = without(network, [lost])
    after = plan_paths(poorer, flows, from_json(poorer, flows, written))
    assert after.must_move == len(hit) > 0
    changed = {name for name, links in to_json(after)["flows"].items() if links != written["flows"][name]}
    assert changed >= set(hit)
    assert len(changed) == after.must_move + after.may_move


def test_figures_are_beside_the_roads() -> None:
    written = to_json(plan_paths(build_network(fat_tree(4)), flows_between([("h0", "h15")] * 3, gbps=300.0)))
    assert (written["max_load"], written["max_load_gbps"], written["enforceable"]) == (1.5, 600.0, True)
    assert written["bound"] == pytest.approx(900 / 800)
    assert len(written["flows"]["f0"]) == 6


@pytest.mark.parametrize("written", [None, [], {}, {"flows": []}, "x"])
def test_what_is_no_plan_is_refused(written: object) -> None:
    with pytest.raises(BadInput, match="a plan is a JSON object"):
        from_json(build_network(fat_tree(4)), [], written)


@pytest.mark.parametrize("links", [None, [], ["x"], ["h0/eth0--pod0-leaf0"] * 6, list(range(6))])
def test_a_road_that_is_none_is_planned_anew(links: object) -> None:
    network = build_network(fat_tree(4))
    flows = flows_between([("h0", "h15")])
    held = from_json(network, flows, {"flows": {"f0": links}})
    assert len(plan_paths(network, flows, held).all_lanes()[0]) == 6
