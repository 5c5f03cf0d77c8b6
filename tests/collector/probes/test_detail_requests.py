"""Requests for probes are taken once, within bounds, and refused with a reason when they leave the topology."""

from typing import Any

import pytest

from collector.probes.packets import Flow
from collector.probes.paths import AddressBook
from collector.probes.schedule import MOST_PENDING, ProbeOrders
from lockstep.batches import DetailRequest
from lockstep.fabrics import dual_plane, leaf_spine, rail_optimised
from lockstep.topology import Topology
from tests.builders import SECOND, T0

FABRIC = leaf_spine(hosts=3, nics_per_host=1, leaves=1, spines=1)


def every_address(topology: Topology) -> dict[str, str]:
    ports = [f"{host.id}/{nic.id}" for host in topology.hosts for nic in host.nics]
    return {port: f"10.0.{number >> 8}.{number & 255}" for number, port in enumerate(ports, 1)}


def orders(topology: Topology = FABRIC, without: str = "") -> ProbeOrders:
    addresses = {port: address for port, address in every_address(topology).items() if port != without}
    return ProbeOrders("h0", topology, AddressBook(topology, addresses))


def request(name: str = "w1", host: str = "h0", kind: str = "probe", **details: Any) -> DetailRequest:
    details = {"dst": "h1", "dst_nic": "eth0", "proto": "tcp", "sport": 50_000} | details
    return DetailRequest(id=name, host=host, kind=kind, details=details, expires_ns=T0 + SECOND)


def take_all(waiting: ProbeOrders, now_ns: int = T0) -> list[Flow]:
    taken = []
    while flow := waiting.next(now_ns):
        taken.append(flow)
        waiting.done()
    return taken


def test_detail_request_becomes_probes_of_its_ports_as_often_as_it_says_once_until_it_expires() -> None:
    waiting = orders()
    assert waiting.take_in([request("a", kind="detail"), request("b", host="h1")]) == []
    assert take_all(waiting) == []
    flows = [Flow("eth0", "h1", "eth0", "tcp", sport, 80) for sport in (50_000, 50_001)]
    for taken in (flows * 3, []):
        assert waiting.take_in([request(ports=2, count=3, dport=80)] * 3) == []
        assert take_all(waiting) == taken
    waiting.take_in([request("w2", count=5)])
    assert waiting.next(T0) is not None
    assert waiting.next(T0 + SECOND) is None, "it has expired"
    for topology in (rail_optimised(hosts=2, rails=2, spines=1), dual_plane(2, 1, 1)):
        waiting = orders(topology)
        waiting.take_in([request(dst_nic="eth1")])
        assert [flow.src_nic for flow in take_all(waiting)] == ["eth1"], "of the same rail or plane"
    waiting = orders()
    refusals = waiting.take_in([request(str(number), count=MOST_PENDING // 4) for number in range(6)])
    assert [refusal.request for refusal in refusals] == ["4", "5"], "together they stay within the bound"
    assert len(take_all(waiting)) == MOST_PENDING


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"dst": "8.8.8.8"}, "no other host with such a NIC in the topology: '8.8.8.8'"),
        ({"dst": "leaf0"}, "no other host with such a NIC"),
        ({"dst": "h0"}, "no other host with such a NIC"),
        ({"dst_nic": "eth7"}, "no other host with such a NIC in the topology: 'h1', 'eth7'"),
        ({"dst": "h2"}, "the address of h2/eth0 is not known"),
        ({"src_nic": "eth7"}, "this host has no NIC 'eth7' with a known address"),
        ({"proto": "icmp"}, "protocol 'icmp' is none of tcp, udp, roce"),
        ({"sport": 0}, "its sport: Input should be greater than or equal to 1"),
        ({"sport": "50000"}, "its sport: Input should be a valid integer"),
        ({"sport": 65_535, "ports": 2}, "source ports end at 65535, but 65536"),
        ({"count": MOST_PENDING, "ports": 2}, "20000 probes more than 10000"),
        ({"count": -1}, "its count"),
        ({"dst": None}, "its dst: Input should be a valid string"),
        ({"dst": "x" * 10_000}, "..."),
    ],
)
def test_detail_request_that_cannot_be_carried_out_is_refused_once_with_the_reason(
    details: dict[str, Any], reason: str
) -> None:
    waiting = orders(without="h2/eth0")
    (refusal,) = waiting.take_in([request(**details)])
    assert (refusal.request, refusal.component) == ("w1", "host:h0")
    assert reason in refusal.reason
    assert len(refusal.reason) < 200
    assert waiting.take_in([request(**details)]) == []
    assert take_all(waiting) == []


def test_address_book_takes_what_the_topology_names_and_complains_about_the_rest() -> None:
    addresses = {"h0/eth0": "10.0.0.1", "leaf0": ["10.0.1.1", "10.0.1.2"], "spine0/swp1": "10.0.2.1"}
    wrong = {"h9/eth0": "10.0.0.9", "h1/eth9": "10.0.0.8", "h1/eth0": "10.0.0.1", "h2/eth0": "fe80::1"}
    book = AddressBook(FABRIC, {**addresses, **wrong})
    assert book.address_of("h0", "eth0") == "10.0.0.1"
    assert (book.end_at("10.0.1.2"), book.end_at("10.0.2.1")) == ("leaf0", "spine0/swp1")
    assert (book.host_at("10.0.0.1"), book.host_at("10.0.1.1"), book.host_at("1.1.1.1")) == ("h0", None, None)
    assert book.complaints == (
        "h9/eth0 is no NIC and no switch of the topology",
        "h1/eth9 is no NIC and no switch of the topology",
        "10.0.0.1 of h1/eth0 already belongs to h0/eth0",
        "'fe80::1' of h2/eth0 is no IPv4 address",
    )
