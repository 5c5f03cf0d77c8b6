"""On paper every NIC and port has its own address and name, and what cannot be built is said before."""

import pytest

from lockstep.errors import BadTopology
from lockstep.fabrics import FabricOptions, fat_tree, leaf_spine
from lockstep.topology import Link, Nic, Node, Topology, check_topology
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.fabric.plan import plan_fabric

SMALL = leaf_spine(hosts=4, nics_per_host=2, leaves=2, spines=2, options=FabricOptions(gbps=100, uplink_gbps=50))


def test_every_nic_and_every_port_of_a_switch_has_an_address_of_its_own() -> None:
    plan = plan_fabric(SMALL, ShapeOptions())
    nics = [nic.address for host in plan.topology.hosts for nic in host.nics]
    ports = [address for switch in plan.topology.switches for address in switch.addresses or ()]
    assert None not in nics
    assert len({*nics, *ports}) == 8 + 8 + 8  # NICs, their ports on leaves, two ends of four trunks
    assert check_topology(plan.topology) == []


def test_nics_are_numbered_by_leaf_and_named_as_the_topology_names_them() -> None:
    plan = plan_fabric(SMALL, ShapeOptions())
    cable, port = plan.cable_by_port["h3", "eth1"]
    assert (port.address, cable.far_end(port).address) == ("10.2.3.2", "10.2.3.1")
    assert (cable.far_end(port).node, cable.far_end(port).name) == ("leaf1", "h3-eth1")
    assert {name for node, name in plan.cable_by_port if node == "spine1"} == {"leaf0", "leaf1"}


def test_rates_are_scaled_alike_and_told_in_the_topology() -> None:
    plan = plan_fabric(SMALL, ShapeOptions(mbps_per_gbps=1.0))
    rates = {cable.link.id: cable.rate_mbps for cable in plan.cables}
    assert (rates["h0/eth0--leaf0"], rates["leaf0--spine0"]) == (100, 50)
    assert {link.gbps for link in plan.topology.links} == {0.1, 0.05}


def test_a_built_topology_can_be_planned_again_with_the_same_names_and_addresses() -> None:
    plan = plan_fabric(SMALL, ShapeOptions())
    again = plan_fabric(plan.topology, ShapeOptions(mbps_per_gbps=1000))
    assert [(cable.a, cable.b) for cable in again.cables] == [(cable.a, cable.b) for cable in plan.cables]
    assert [cable.rate_mbps for cable in again.cables] == pytest.approx([cable.rate_mbps for cable in plan.cables])


def test_two_cables_between_the_same_switches_have_two_ports_each() -> None:
    switches = (Node(id="leaf0", kind="switch"), Node(id="spine0", kind="switch"))
    trunks = tuple(Link(id=f"trunk{n}", a="leaf0", b="spine0", gbps=1) for n in (0, 1))
    plan = plan_fabric(Topology(routing="ecmp", nodes=switches, links=trunks), ShapeOptions())
    assert len(plan.cable_by_port) == 4


def test_names_that_are_too_long_for_an_interface_are_replaced_on_switches() -> None:
    plan = plan_fabric(fat_tree(4), ShapeOptions())
    assert all(len(name) <= 15 for _, name in plan.cable_by_port)
    assert len(plan.cable_by_port) == 2 * len(plan.cables)


def test_all_that_cannot_be_built_is_said_at_once() -> None:
    hosts = tuple(Node(id=f"h{n}", kind="host", nics=(Nic(id="a name too long"), Nic(id="mgmt"))) for n in (0, 1))
    direct = Link(id="direct", a="h0/mgmt", b="h1/mgmt", gbps=1)
    with pytest.raises(BadTopology) as refusal:
        plan_fabric(Topology(routing="ecmp", nodes=hosts, links=(direct,)), ShapeOptions())
    assert len(refusal.value.complaints) == 5
    assert "link direct joins two hosts" in str(refusal.value)
    assert "NIC 'mgmt' of h1 cannot be the name of an interface" in str(refusal.value)


def test_more_hosts_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(BadTopology, match="251 hosts, but the testbed has room for 250"):
        plan_fabric(leaf_spine(hosts=251, nics_per_host=1, leaves=1, spines=1), ShapeOptions())
