"""A topology's paths are composed, not searched, and agree with those that a search finds."""

import numpy as np
import pytest

from lockstep.errors import BadInput
from lockstep.fabrics import fat_tree, leaf_spine
from lockstep.topology import Link, Node, Topology, TopologyIndex
from planner.paths.flows import FlowPaths
from planner.paths.network import build_network, find_directed_links, with_rates, without
from planner.paths.planning import plan_paths
from tests.planner.paths.build import flows_between


def test_paths_of_a_fat_tree_are_those_that_a_search_finds() -> None:
    topology = fat_tree(4)
    network, index = build_network(topology), TopologyIndex(topology)
    for src, dst in (("h0", "h1"), ("h0", "h2"), ("h0", "h15")):
        plan = plan_paths(network, flows_between([(f"{src}/eth0", f"{dst}/eth0")]))
        paths = FlowPaths(network, plan.flows)
        directed_links = paths.links(0, paths.spines(0)).ravel().tolist() if paths.height[0] else []
        found = {network.link_of(directed_link) for directed_link in [*directed_links, *plan.flows.ends[0].tolist()]}
        assert found == {link.id for link in index.links_between(src, "eth0", dst, "eth0")}


def test_each_cable_between_two_switches_is_a_path_of_its_own() -> None:
    hosts = ({"id": name, "kind": "host", "nics": ({"id": "eth0"},)} for name in ("h0", "h1"))
    tiers = {"leaf0": "leaf", "leaf1": "leaf", "spine0": "spine"}
    switches = ({"id": name, "kind": "switch", "tier": tier} for name, tier in tiers.items())
    nodes = tuple(Node.model_validate(fields) for fields in (*hosts, *switches))
    links = (
        Link(id="a", a="h0/eth0", b="leaf0", gbps=400),
        Link(id="b", a="h1/eth0", b="leaf1", gbps=400),
        *(
            Link(id=f"{leaf}-{port}", a=f"leaf{leaf}/{port}", b=f"spine0/{leaf}{port}", gbps=100)
            for leaf in range(2)
            for port in range(2)
        ),
    )
    network = build_network(Topology(routing="ecmp", nodes=nodes, links=links))
    flows = flows_between([("h0", "h1")] * 4)
    plan = plan_paths(network, flows)
    assert plan.highest_use == plan.bound == 2.0
    poorer = without(network, ["0-0", "1-1"])  # another cable up than down is left
    rest = plan_paths(poorer, flows, plan)
    assert (rest.unreachable, rest.highest_use, rest.must_move) == ([], 4.0, 4)
    assert all(
        {"0-1", "1-0"} < {network.link_of(directed_link) for directed_link in directed_links}
        for directed_links in rest.all_directed_links()
    )


def test_parts_are_known_by_name_and_their_loss_leaves_the_network_they_came_from_as_it_is() -> None:
    network = build_network(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=2))
    by_id, by_verdict = (find_directed_links(network, [name]) for name in ("leaf0--spine1", "link:leaf0--spine1"))
    assert (by_id == by_verdict).all()
    assert len(find_directed_links(network, ["switch:spine1"])) == 4
    assert len(find_directed_links(network, ["nic:h0/eth0"])) == len(find_directed_links(network, ["host:h0"])) == 2
    with pytest.raises(BadInput, match="no part named spine9, leaf7"):
        find_directed_links(network, ["spine9", "spine0", "leaf7"])
    before = network.gbps.copy()
    assert without(network, ["spine0"]).gbps.sum() == before.sum() - 4 * 400
    assert with_rates(network, {"leaf0--spine0": 0.25}).gbps.sum() == before.sum() - 2 * 300
    assert np.array_equal(network.gbps, before)
