"""Both ends of a connection are named as well as anybody knows them, and no better."""

from typing import Any

import pytest

from lockstep.fabrics import dual_plane, leaf_spine
from lockstep.records import Comm, Connection, HostRecord
from lockstep.topology import Nic, Topology, TopologyIndex
from planner.paths.wiring import WiringBook
from tests.builders import T0, make
from tests.planner.paths.test_demand import FABRIC, facts_of, member, sends, wire

KEY = ("j1", 0, 7, 0, 1, 0)  # rank 0 to rank 1 over channel 0
BOTH = (member(0), member(1))
PLANES = TopologyIndex(dual_plane(hosts=2, leaves_per_plane=1, spines_per_plane=1))


def book(*records: HostRecord, topology: TopologyIndex = FABRIC) -> WiringBook:
    return WiringBook(facts_of(*records, topology=topology))


def ends(*records: HostRecord, topology: TopologyIndex = FABRIC, nic: str | None = None) -> list[tuple[str, str]]:
    wires, why = book(*records, topology=topology).wire(KEY, "h0", nic, None)
    assert why == ""
    return [(each.src, each.dst) for each in wires]


def back(**fields: Any) -> Connection:
    return wire(1, 0, direction="recv", **fields)


def with_addresses(topology: Topology) -> TopologyIndex:
    """Return the fabric with the address 10.<host>.0.<nic> for each NIC."""
    nodes = []
    for number, node in enumerate(topology.nodes):
        nics = tuple(Nic(id=nic.id, address=f"10.{number}.0.{place}") for place, nic in enumerate(node.nics))
        nodes.append(node.model_copy(update={"nics": nics}))
    return TopologyIndex(topology.model_copy(update={"nodes": tuple(nodes)}))


ADDRESSED = with_addresses(leaf_spine(hosts=2, nics_per_host=2, leaves=2, spines=1))


def test_the_peers_own_row_names_the_far_nic() -> None:
    assert ends(*BOTH, wire(0, 1, nic="eth1"), back(nic="eth0")) == [("h0/eth1", "h1/eth0")]


def test_transfers_name_nics_where_connections_do_not() -> None:
    received = sends(1, 0, direction="recv", nic="eth1")
    assert ends(*BOTH, *received, nic="eth0") == [("h0/eth0", "h1/eth1")]


def test_an_address_names_host_and_nic() -> None:
    told = wire(0, 1, nic=None, local="10.0.0.1", remote="10.1.0.0<49152>")
    assert ends(member(0), told, topology=ADDRESSED) == [("h0/eth1", "h1/eth0")]


def test_without_any_source_the_hosts_are_the_ends() -> None:
    assert ends(*BOTH) == [("h0", "h1")]


def test_a_nic_that_the_topology_lacks_leaves_the_host_and_is_counted() -> None:
    known = book(*BOTH, wire(0, 1, nic="mlx5_0"))
    (only,), _ = known.wire(KEY, "h0", None, None)
    assert only.src == "h0"
    assert list(known.remarks.values()) == [1]


def test_the_other_queue_pair_is_told_by_its_number() -> None:
    mine = [wire(0, 1, nic="eth0", lqpn=1, rqpn=22), wire(0, 1, nic="eth1", lqpn=2, rqpn=21)]
    theirs = [back(nic="eth0", lqpn=21), back(nic="eth1", lqpn=22)]
    assert ends(*BOTH, *mine, *theirs) == [("h0/eth0", "h1/eth1"), ("h0/eth1", "h1/eth0")]


def test_a_fused_nic_has_a_flow_on_each_of_its_ports_left_to_left() -> None:
    told = wire(0, 1, nic="eth0,eth1"), back(nic="eth0,eth1")
    assert ends(*BOTH, *told, topology=PLANES) == [("h0/eth0", "h1/eth0"), ("h0/eth1", "h1/eth1")]


def test_nics_on_planes_that_never_meet_are_not_believed() -> None:
    known = book(*BOTH, wire(0, 1, nic="eth0"), back(nic="eth1"), topology=PLANES)
    (only,), _ = known.wire(KEY, "h0", None, None)
    assert (only.src, only.dst) == ("h0/eth0", "h1")
    assert "planes that never meet" in next(iter(known.remarks))


@pytest.mark.parametrize("exact", [{"sport": 50_000}, {"lqpn": 9}, {"lqpn": 9, "sport": 50_000}])
def test_a_connection_told_again_with_more_is_still_one(exact: dict[str, int]) -> None:
    first, later = wire(0, 1), wire(0, 1, seen_ns=T0 + 1, **exact)
    assert len(ends(*BOTH, first, later)) == 1
    assert len(ends(*BOTH, first, wire(0, 1, lqpn=9), later)) == (1 if "lqpn" in exact else 2)


def test_a_socket_whose_queue_pair_is_told_later_is_that_queue_pair() -> None:
    assert len(ends(*BOTH, wire(0, 1, sport=50_000), wire(0, 1, sport=50_000, lqpn=9))) == 1
    assert len(ends(*BOTH, wire(0, 1, sport=50_000), wire(0, 1, sport=50_001))) == 2


def test_connections_that_do_not_say_whose_they_are_are_counted() -> None:
    assert book(*BOTH, wire(0, 1, channel=None)).remarks == {"connections do not say whose they are": 1}


def test_a_rank_that_moved_is_where_it_last_sent() -> None:
    moved = sends(1, 0, host="h3", direction="recv")
    assert ends(*BOTH, *moved) == [("h0", "h3")]


def test_the_newest_row_of_a_communicator_wins() -> None:
    again = make(Comm, host="h2", rank=1, init_ns=T0 + 5)
    assert ends(again, *BOTH) == [("h0", "h2")]
