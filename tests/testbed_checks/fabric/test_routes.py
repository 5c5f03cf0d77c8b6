"""Routes on paper lead from everywhere to everywhere, by all shortest ways and no other."""

from ipaddress import IPv4Address, IPv4Network

import pytest

from lockstep.fabrics import dual_plane, fat_tree, leaf_spine, rail_optimised
from lockstep.topology import Topology, TopologyIndex
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.fabric.plan import FabricPlan, plan_fabric
from tests.testbed.fabric.routes import MAIN_TABLE, Route, plan_routes, plan_rules

SHAPES = {
    "leaf-spine": leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=3),
    "rails": rail_optimised(hosts=3, rails=2, spines=2),
    "fat tree": fat_tree(4),
}


def planned(topology: Topology) -> tuple[FabricPlan, list[Route]]:
    plan = plan_fabric(topology, ShapeOptions())
    return plan, plan_routes(plan)


def walk(plan: FabricPlan, routes: list[Route], node: str, address: str) -> set[str]:
    """Return the links on all ways from a switch to an address."""
    here = {end.address: cable for cable, end in plan.cables_of(node)}
    near = [cable for cable, end in plan.cables_of(node) if cable.far_end(end).address == address]
    if near:
        return {near[0].link.id}
    (route,) = [route for route in routes if route.node == node and IPv4Address(address) in IPv4Network(route.to)]
    found = set()
    for cable in here.values():
        near_end = cable.a if cable.a.node == node else cable.b
        far = cable.far_end(near_end)
        if far.address in route.gateways:
            found |= {cable.link.id} | walk(plan, routes, far.node, address)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_the_ways_are_all_shortest_ways_that_the_topology_knows(name: str) -> None:
    plan, routes = planned(SHAPES[name])
    index = TopologyIndex(plan.topology)
    first = plan.topology.hosts[0]
    for other in plan.topology.hosts[1:]:
        for nic in other.nics:
            leaf = index.leaf_of(first.id, first.nics[0].id)
            assert leaf is not None
            ways = walk(plan, routes, leaf, nic.address or "")
            told = index.links_between(first.id, first.nics[0].id, other.id, nic.id)
            assert ways | {f"{first.id}/{first.nics[0].id}--{leaf}"} == {link.id for link in told}


def test_a_link_that_is_down_is_no_way() -> None:
    topology = SHAPES["leaf-spine"]
    links = tuple(link.model_copy(update={"up": link.id != "leaf0--spine1"}) for link in topology.links)
    _, routes = planned(topology.model_copy(update={"links": links}))
    assert [len(route.gateways) for route in routes if route.node == "leaf0"] == [2]


def test_an_unbound_socket_leaves_through_the_nic_from_which_there_is_a_way() -> None:
    plan, routes = planned(dual_plane(hosts=2, leaves_per_plane=2, spines_per_plane=1))
    main = {route.to: route.gateways for route in routes if route.node == "h0" and route.table == MAIN_TABLE}
    assert main[plan.prefixes["plane0-leaf1"]] == ("10.1.0.1",)
    assert main[plan.prefixes["plane1-leaf1"]] == ("10.3.0.1",)


def test_each_nic_of_a_host_has_a_table_in_which_only_it_is_a_way() -> None:
    plan, routes = planned(SHAPES["leaf-spine"])
    rules = [rule for rule in plan_rules(plan) if rule.host == "h1"]
    ways = {route.table: route.gateways for route in routes if route.node == "h1" and route.to == "0.0.0.0/0"}
    assert [(rule.address, ways[rule.table]) for rule in rules] == [
        ("10.1.2.2", ("10.1.2.1",)),
        ("10.1.3.2", ("10.1.3.1",)),
    ]
