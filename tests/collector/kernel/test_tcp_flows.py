"""Flows are counted for the NIC that carries them, and what they sent again never falls although flows end."""

import socket
from typing import Any

import numpy as np
import pytest

from collector.kernel import tcp_flows
from collector.kernel.inet_diag import TcpTable, decode_sockets
from collector.kernel.netlink import Datagram
from collector.kernel.tcp_flows import TCP_COUNTERS, FlowWatch, NicFlows

HERE, OTHER_NIC, THERE = "10.0.0.1", "10.0.1.1", "10.0.0.2"
NICS = {2: "eth0", 3: "eth1"}


def address(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6, text if ":" in text else f"::ffff:{text}")


ADDRESSES = {address(HERE): 2, address(OTHER_NIC): 3, address("127.0.0.1"): 1, address("fd00::1"): 2}


def flow(cookie: int, retrans: int = 0, **fields: Any) -> dict[str, Any]:
    return {"cookie": cookie, "retrans_total": retrans, "rtt_us": 100, "min_rtt_us": 50, **fields}


def table(*flows: dict[str, Any], info_bytes: int = 216, is_cut: bool = False) -> TcpTable:
    """Return flows as the kernel lists them; from HERE to THERE unless said otherwise."""
    empty = decode_sockets(Datagram(b"", []))
    sockets, infos = np.zeros(len(flows), empty.socket.dtype), np.zeros(len(flows), empty.info.dtype)
    for row, given in enumerate(flows):
        ends = {"local": HERE, "remote": THERE, **given}
        is_ipv6 = ":" in ends["local"]
        sockets["family"][row] = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        for end in ("local", "remote"):
            raw = address(ends[end]) if is_ipv6 else socket.inet_aton(ends[end]) + bytes(12)
            sockets[end][row] = np.void(raw)
        for name in given.keys() & set(sockets.dtype.names) - {"local", "remote"}:
            sockets[name][row] = given[name]
        for name in given.keys() & set(infos.dtype.names):
            infos[name][row] = given[name]
    return TcpTable(sockets, infos, np.full(len(flows), info_bytes), is_cut)


class Host:
    def __init__(self) -> None:
        self.watch = FlowWatch()

    def observe(self, *flows: dict[str, Any], **options: Any) -> dict[str, NicFlows]:
        return self.watch.observe(table(*flows, **options), NICS, ADDRESSES)

    def retrans(self, *flows: dict[str, Any], **options: Any) -> int:
        return self.observe(*flows, **options)["eth0"].retrans


def test_flows_are_counted_for_the_nic_with_their_local_address() -> None:
    found = Host().observe(flow(1, 5), flow(2, 7, local=OTHER_NIC), flow(3, 11, local="fd00::1", remote="fd00::2"))
    assert {name: flows.retrans for name, flows in found.items()} == {"eth0": 16, "eth1": 7}
    assert found["eth0"].counters["tcp_flows"] == 2


@pytest.mark.parametrize(
    ("ends", "counted"),
    [
        ({"interface": 3}, (0, 5)),  # it is bound to it
        ({"local": f"::ffff:{HERE}", "remote": f"::ffff:{THERE}"}, (5, 0)),
        *(({"remote": inside}, (0, 0)) for inside in (HERE, OTHER_NIC, "127.0.0.1")),
        *(({"local": no_nic}, (0, 0)) for no_nic in ("127.0.0.1", "10.7.7.7")),
    ],
)
def test_flow_is_counted_where_it_leaves_the_host(ends: dict[str, Any], counted: tuple[int, int]) -> None:
    found = Host().observe(flow(1, 5, **ends))
    assert (found["eth0"].retrans, found["eth1"].retrans) == counted
    assert found["eth0"].counters["tcp_flows"] == bool(counted[0])


@pytest.mark.parametrize(
    ("readings", "totals"),
    [
        ([(flow(1, 5), flow(2, 0)), (flow(1, 8), flow(2, 1)), (flow(2, 1), flow(1, 8))], [5, 9, 9]),
        ([(flow(1, 5),), (), (flow(2, 0),), (flow(2, 3),), ()], [5, 5, 5, 8, 8]),
        ([(flow(1, 5),), (), (), (flow(1, 6),)], [5, 5, 5, 6]),
        ([(flow(1, total),) for total in (5, 4, 6)], [5, 5, 7]),
    ],
    ids=["rises", "flows end and begin", "a dump skips one", "a count falls"],
)
def test_total_rises_by_what_was_sent_again_and_never_falls(
    readings: list[tuple[dict[str, Any], ...]], totals: list[int]
) -> None:
    host = Host()
    assert [host.retrans(*flows) for flows in readings] == totals
    for _ in range(tcp_flows._PATIENCE + 1):
        assert host.retrans() == totals[-1]
    assert len(host.watch._cookies) == 0, "flows that are long gone are forgotten"


def test_flow_listed_twice_counts_once_and_one_that_is_new_in_a_cut_table_from_where_it_is_seen() -> None:
    found = Host().observe(flow(1, 5), flow(1, 5))["eth0"]
    assert (found.retrans, found.counters["tcp_flows"]) == (5, 1)
    host = Host()
    assert [host.retrans(flow(1, total), is_cut=True) for total in (1_000, 1_003)] == [0, 3]
    unknown = Host().observe(flow(1, 5), info_bytes=0)["eth0"]
    assert unknown.retrans == 0
    assert unknown.counters == {"tcp_flows": 1, "tcp_flows_sending": 0, "tcp_lost": 0, "tcp_unacked": 0}


def test_worst_flow_is_named_by_its_ports() -> None:
    host = Host()
    host.observe(flow(1, 0), flow(2, 100))
    counters = host.observe(
        flow(1, 4, rtt_us=900, lport=1001, rport=501, lost=2, unacked=3),
        flow(2, 101, rtt_us=100, min_rtt_us=40, lport=1002, rport=502, lost=1, unacked=4),
        flow(3, 0, rtt_us=200, lport=1003, rport=503),
    )["eth0"].counters
    round_trip = {"median_us": 200, "max_us": 900, "max_lport": 1001, "max_rport": 501, "floor_us": 40}
    expected = {"flows": 3, "flows_sending": 3, "lost": 3, "unacked": 7, "retrans_max": 4}
    expected |= {"retrans_max_lport": 1001, "retrans_max_rport": 501}
    expected |= {f"rtt_{name}": value for name, value in round_trip.items()}
    assert counters == {f"tcp_{name}": value for name, value in expected.items()}
    assert counters.keys() == TCP_COUNTERS.keys()
    rests = flow(2, rtt_us=9_000, last_data_sent_ms=60_000)  # so that its round trip is too old to count
    counters = Host().observe(flow(1, rtt_us=100), rests)["eth0"].counters
    assert (counters["tcp_rtt_max_us"], counters["tcp_flows_sending"], counters["tcp_flows"]) == (100, 1, 2)


def test_only_nics_with_an_address_are_reported_and_gone_ones_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_flows, "_MOST_NICS", 3)
    watch = FlowWatch()
    assert watch.observe(table(), NICS, {address(HERE): 2}).keys() == {"eth0"}
    for number in range(10):
        found = watch.observe(table(), {2: f"eth{number}"}, {address(HERE): 2})
    assert len(found) <= 4
    assert "eth9" in found
