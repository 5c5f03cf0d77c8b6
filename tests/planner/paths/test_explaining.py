"""The sentences about a plan tell what it is worth, what limits it and whom it leaves out."""

from lockstep.fabrics import FabricOptions, leaf_spine
from planner.paths.explaining import explain
from planner.paths.network import build_network, without
from planner.paths.planning import plan_paths
from tests.planner.paths.fabrics import flows_between

RING = [("h0", "h2"), ("h1", "h3"), ("h2", "h0"), ("h3", "h1")]


def test_the_best_plan_is_called_the_best() -> None:
    network = build_network(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))
    said = explain(plan_paths(network, flows_between(RING)))
    assert said[0] == "4 flows, 0 of them inside one leaf; the others go over 2 switches"
    assert said[1] == "the fullest link is used to 25.0%, and no plan can do better"


def test_what_was_lost_and_moved_is_told() -> None:
    network = build_network(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))
    flows = flows_between(RING, gbps=400.0)
    before = plan_paths(network, flows)
    said = " ".join(explain(plan_paths(without(network, ["spine1"]), flows, before), before))
    assert "nothing goes over leaf0--spine1, leaf1--spine1" in said
    assert "2 flows had to move because their road is gone" in said
    assert "flows slow down to 50% of what they ask for" in said


def test_flows_without_a_way_are_named_with_what_they_have_in_common() -> None:
    network = build_network(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))
    said = explain(plan_paths(without(network, ["nic:h0/eth0"]), flows_between(RING)))
    assert said[-1] == "2 flows have no way at all: f0, f2; h0/eth0 is an end of 2 of them"


def test_a_fabric_that_routes_by_itself_is_not_told_what_to_do() -> None:
    network = build_network(leaf_spine(4, 1, 2, 2, FabricOptions(routing="adaptive")))
    assert any("no instruction" in sentence for sentence in explain(plan_paths(network, flows_between(RING))))


def test_nothing_to_plan_is_said_as_well() -> None:
    network = build_network(leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1))
    assert "no link between switches is used" in explain(plan_paths(network, flows_between([("h0", "h1")])))
