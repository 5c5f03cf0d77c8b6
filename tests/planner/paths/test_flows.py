"""Rows of flows are read with all complaints at once, and get ports that fit each other."""

import pytest

from lockstep.errors import BadFlows
from lockstep.fabrics import dual_plane, leaf_spine, rail_optimised
from planner.paths.flows import Flow, parse_flows, place_flows
from planner.paths.network import build_network
from tests.planner.paths.build import flows_between


def test_rows_become_flows_and_all_complaints_come_at_once() -> None:
    flows = parse_flows([{"id": "a", "src": "h0/eth0", "dst": "h1", "gbps": 200, "duty": 0.5, "job": "j"}])
    assert flows == [Flow(id="a", src="h0/eth0", dst="h1", gbps=200.0, duty=0.5, job="j")]
    with pytest.raises(BadFlows) as caught:
        parse_flows([{"id": "a", "src": "h0", "dst": "h1", "gbps": -1}, {"id": "b", "src": "h0", "gbps": "x"}])
    assert len(caught.value.complaints) == 3
    assert caught.value.complaints[0].startswith("row 0, gbps")
    row = {"id": "a", "src": "h0", "dst": "h1", "gbps": 1}
    with pytest.raises(BadFlows, match="flow a is there more than once"):
        parse_flows([row, row, row])


def test_ends_that_have_no_port_and_flows_between_planes_are_named() -> None:
    network = build_network(dual_plane(hosts=2, leaves_per_plane=1, spines_per_plane=1))
    with pytest.raises(BadFlows) as caught:
        place_flows(network, flows_between([("h0", "h9"), ("h0/eth0", "h1/eth1"), ("h1", "h1")]))
    assert caught.value.complaints == [
        "flow f0: h9 is no host or NIC with a cable to a leaf",
        "flow f1 goes from plane 0 to plane 1, which never meet",
        "flow f2 goes from h1 to itself",
    ]


def test_ends_are_on_one_plane_and_spread_over_all_nics() -> None:
    network = build_network(rail_optimised(hosts=4, rails=4, spines=2))
    table = place_flows(network, flows_between([("h0", "h1"), ("h0", "h2")] * 8))
    out = [network.name_directed_link(link).split(" -> ")[0] for link in table.ends[:, 0].tolist()]
    assert {name: out.count(name) for name in sorted(set(out))} == {f"h0/eth{rail}": 4 for rail in range(4)}
    network = build_network(dual_plane(hosts=2, leaves_per_plane=1, spines_per_plane=1, nics_per_host=4))
    table = place_flows(network, flows_between([("h0/eth3", "h1"), ("h1", "h0/eth2")]))
    names = [[network.name_directed_link(link) for link in ends] for ends in table.ends.tolist()]
    assert names[0][1].endswith("h1/eth3")
    assert names[1][0].startswith("h1/eth2")
    topology = leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1)
    links = tuple(link.model_copy(update={"up": False}) for link in topology.links)
    network = build_network(topology.model_copy(update={"links": links}))
    assert len(place_flows(network, flows_between([("h0", "h1")]))) == 1
