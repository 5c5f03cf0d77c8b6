"""A plan that was written is the plan that is read again, and advice for stock NCCL follows from it."""

from xml.etree import ElementTree

import numpy as np
import pytest

from lockstep.errors import BadInput
from lockstep.fabrics import FabricOptions, fat_tree, leaf_spine
from planner.paths.network import advise_nccl, build_network, count_crossings, order_hosts, without
from planner.paths.planning import plan_paths
from planner.paths.report import draw_loads, explain, from_json, to_json
from tests.planner.paths.build import flows_between, some_flows


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


def test_what_is_no_plan_is_refused_and_a_path_that_is_none_planned_anew() -> None:
    network = build_network(fat_tree(4))
    nonsense: tuple[object, ...] = (None, [], {}, {"flows": []}, "x")
    for written in nonsense:
        with pytest.raises(BadInput, match="a plan is a JSON object"):
            from_json(network, [], written)
    flows = flows_between([("h0", "h15")])
    for links in (None, [], ["x"], ["h0/eth0--pod0-leaf0"] * 6, list(range(6))):
        held = from_json(network, flows, {"flows": {"f0": links}})
        assert len(plan_paths(network, flows, held).all_directed_links()[0]) == 6


def test_a_plan_is_explained_with_what_was_lost_and_moved() -> None:
    network = build_network(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))
    ring = [("h0", "h2"), ("h1", "h3"), ("h2", "h0"), ("h3", "h1")]
    messages = explain(plan_paths(network, flows_between(ring)))
    assert messages[0] == "4 flows, 0 of them inside one leaf; the others go over 2 switches"
    assert messages[1] == "the fullest link is used to 25.0%, and no plan can do better"
    flows = flows_between(ring, gbps=400.0)
    before = plan_paths(network, flows)
    lost = " ".join(explain(plan_paths(without(network, ["spine1"]), flows, before), before))
    assert "nothing goes over leaf0--spine1, leaf1--spine1" in lost
    assert "2 flows had to move because their path is gone" in lost
    assert "flows slow down to 50% of what they ask for" in lost
    cut = explain(plan_paths(without(network, ["nic:h0/eth0"]), flows_between(ring)))
    assert cut[-1] == "2 flows have no path at all: f0, f2; h0/eth0 is an end of 2 of them"
    adaptive = build_network(leaf_spine(4, 1, 2, 2, FabricOptions(routing="adaptive")))
    assert any("no instruction" in sentence for sentence in explain(plan_paths(adaptive, flows_between(ring))))
    one_leaf = build_network(leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1))
    assert "no link between switches is used" in explain(plan_paths(one_leaf, flows_between([("h0", "h1")])))


_SVG = "{http://www.w3.org/2000/svg}"


def test_every_pair_of_switches_of_all_tiers_has_a_square_with_its_figures() -> None:
    network = without(build_network(leaf_spine(hosts=8, nics_per_host=1, leaves=4, spines=2)), ["leaf0--spine0"])
    plan = plan_paths(network, some_flows(network, 20, seed=1))
    drawn = ElementTree.fromstring(draw_loads(network, {"<before>": plan.load * 2, "now": plan.load}))
    titles = [title.text or "" for title in drawn.iter(f"{_SVG}title")]
    assert len(titles) == 2 * 8
    assert sum(title.endswith("dead") for title in titles) == 2
    assert any((text.text or "").startswith("<before>") for text in drawn.iter(f"{_SVG}text"))
    tree = build_network(fat_tree(4))
    drawn = ElementTree.fromstring(draw_loads(tree, {"idle": np.zeros(tree.directed_links)}))
    assert len(list(drawn.iter(f"{_SVG}title"))) == 16 + 16


MIXED = ["h0", "h4", "h1", "h5"]


def test_hosts_of_one_leaf_and_leaves_of_one_pod_follow_each_other() -> None:
    network = build_network(leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=4))
    advice = advise_nccl(network, MIXED)
    assert (advice.host_order, advice.crossings) == (("h0", "h1", "h4", "h5"), (4, 2))
    assert advice.notes[0].startswith("this is advice")
    assert "2 hops of a ring leave a leaf instead of 4" in advice.notes[1]
    tree = build_network(fat_tree(4))
    order = order_hosts(tree, ["h0", "h8", "h2", "h10", "h1", "h9"])
    assert order == ["h0", "h1", "h2", "h8", "h9", "h10"]
    assert count_crossings(tree, order) == 4


def test_queue_pairs_are_split_where_switches_hash_and_not_where_they_choose_themselves() -> None:
    by_hash, by_itself = (
        advise_nccl(build_network(leaf_spine(8, 1, 2, 4, FabricOptions(routing=routing))), MIXED).variables
        for routing in ("ecmp", "adaptive")
    )
    assert by_hash["NCCL_IB_QPS_PER_CONNECTION"] == "4"
    assert "NCCL_IB_QPS_PER_CONNECTION" not in by_itself
    assert by_itself["NCCL_IB_ADAPTIVE_ROUTING"] == "1"


def test_a_host_goes_without_its_dead_nic_and_says_so() -> None:
    network = without(build_network(leaf_spine(hosts=4, nics_per_host=3, leaves=2, spines=2)), ["nic:h1/eth2"])
    advice = advise_nccl(network, ["h0", "h1", "nobody"])
    assert advice.by_host == {"h1": {"NCCL_IB_HCA": "=eth0,eth1"}}
    assert advice.notes[-1] == "h1 goes without the NICs that carry nothing: NCCL_IB_HCA=eth0,eth1"
