"""Nodes know where they are, and a node's own record moves its failure rate away from that of the fleet."""

import pytest

from lockstep.fabrics import leaf_spine, rail_optimised
from planner.recovery.allocation.nodes import estimate_failure_rates, place_nodes

DAYS = {f"h{at}": 50.0 for at in range(10)}


def test_a_node_that_failed_more_often_is_expected_to_again() -> None:
    rates = estimate_failure_rates({"h3": 4, "h4": 1}, DAYS)
    assert rates["h3"] > rates["h4"] > rates["h0"] > 0
    assert rates["h3"] == pytest.approx(5 / (50 + 100))  # the fleet: 5 failures in 500 node-days


def test_where_nothing_failed_yet_the_published_rate_is_the_start() -> None:
    assert estimate_failure_rates({}, {"h0": 0.0}) == {"h0": pytest.approx(0.0065)}
    assert estimate_failure_rates({}, DAYS)["h0"] < 0.0065


def test_failures_of_nodes_that_are_gone_count_for_nobody() -> None:
    assert estimate_failure_rates({"old": 9}, DAYS) == estimate_failure_rates({}, DAYS)


def test_hosts_on_the_same_leaves_are_together() -> None:
    topology = leaf_spine(hosts=8, nics_per_host=1, leaves=2, spines=2)
    nodes = place_nodes(topology, {"h0": 0.5, "h1": 0.1, "h2": 0.1}, unusable=["h7"])
    assert len({node.leaf for node in nodes}) == 2
    assert [node.failures_per_day for node in nodes[:4]] == [0.5, 0.1, 0.1, 0.1]
    assert [node.name for node in nodes if not node.is_usable] == ["h7"]


def test_hosts_on_several_rails_are_on_the_group_of_their_leaves() -> None:
    nodes = place_nodes(rail_optimised(hosts=8, rails=2, spines=2, pods=2), {})
    groups = {node.leaf for node in nodes}
    assert len(groups) == 2
    assert all(group and group.count("+") == 1 for group in groups)
    assert all(node.failures_per_day == 0.0 for node in nodes)
