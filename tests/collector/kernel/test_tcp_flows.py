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


def test_flow_bound_to_an_interface_is_counted_there() -> None:
    assert Host().observe(flow(1, 5, interface=3))["eth1"].retrans == 5


def test_ipv4_in_a_socket_of_ipv6_is_the_same_address() -> None:
    assert Host().retrans(flow(1, 5, local=f"::ffff:{HERE}", remote=f"::ffff:{THERE}")) == 5


@pytest.mark.parametrize("remote", [HERE, OTHER_NIC, "127.0.0.1"])
def test_flow_between_two_addresses_of_the_host_uses_no_nic(remote: str) -> None:
    found = Host().observe(flow(1, 5, remote=remote))
    assert (found["eth0"].retrans, found["eth0"].counters["tcp_flows"]) == (0, 0)


def test_flow_of_an_interface_that_is_no_nic_is_not_counted() -> None:
    assert {flows.retrans for flows in Host().observe(flow(1, 5, local="127.0.0.1")).values()} == {0}
    assert {flows.retrans for flows in Host().observe(flow(1, 5, local="10.7.7.7")).values()} == {0}


def test_total_rises_by_what_each_flow_has_sent_again_since() -> None:
    host = Host()
    readings = [(flow(1, 5), flow(2, 0)), (flow(1, 8), flow(2, 1)), (flow(2, 1), flow(1, 8))]
    assert [host.retrans(*flows) for flows in readings] == [5, 9, 9]


def test_total_never_falls_when_flows_end_and_new_ones_begin_at_zero() -> None:
    host = Host()
    readings = [(flow(1, 5),), (), (flow(2, 0),), (flow(2, 3),), ()]
    assert [host.retrans(*flows) for flows in readings] == [5, 5, 5, 8, 8]


def test_flow_that_a_dump_skipped_is_not_counted_twice() -> None:
    host = Host()
    assert [host.retrans(*flows) for flows in [(flow(1, 5),), (), (), (flow(1, 6),)]] == [5, 5, 5, 6]


def test_flow_that_is_long_gone_is_forgotten() -> None:
    host = Host()
    host.retrans(flow(1, 5))
    for _ in range(tcp_flows._PATIENCE + 1):
        assert host.retrans() == 5
    assert len(host.watch._cookies) == 0


def test_flow_that_a_dump_lists_twice_is_counted_once() -> None:
    found = Host().observe(flow(1, 5), flow(1, 5))["eth0"]
    assert (found.retrans, found.counters["tcp_flows"]) == (5, 1)


def test_flow_that_is_new_in_a_cut_table_counts_from_where_it_is_seen() -> None:
    host = Host()
    assert host.retrans(flow(1, 1_000), is_cut=True) == 0
    assert host.retrans(flow(1, 1_003), is_cut=True) == 3


def test_count_that_falls_adds_nothing() -> None:
    host = Host()
    assert [host.retrans(flow(1, total)) for total in (5, 4, 6)] == [5, 5, 7]


def test_kernel_that_does_not_say_adds_nothing() -> None:
    found = Host().observe(flow(1, 5), info_bytes=0)["eth0"]
    assert found.retrans == 0
    assert found.counters == {"tcp_flows": 1, "tcp_flows_sending": 0, "tcp_lost": 0, "tcp_unacked": 0}


def test_worst_flow_is_named_by_its_ports() -> None:
    host = Host()
    host.observe(flow(1, 0), flow(2, 100))
    counters = host.observe(
        flow(1, 4, rtt_us=900, lport=1001, rport=501, lost=2, unacked=3),
        flow(2, 101, rtt_us=100, min_rtt_us=40, lport=1002, rport=502, lost=1, unacked=4),
        flow(3, 0, rtt_us=200, lport=1003, rport=503),
    )["eth0"].counters
    assert counters == {
        "tcp_flows": 3,
        "tcp_flows_sending": 3,
        "tcp_lost": 3,
        "tcp_unacked": 7,
        "tcp_rtt_median_us": 200,
        "tcp_rtt_max_us": 900,
        "tcp_rtt_max_lport": 1001,
        "tcp_rtt_max_rport": 501,
        "tcp_rtt_floor_us": 40,
        "tcp_retrans_max": 4,
        "tcp_retrans_max_lport": 1001,
        "tcp_retrans_max_rport": 501,
    }
    assert counters.keys() == TCP_COUNTERS.keys()


def test_round_trip_of_a_flow_that_rests_is_too_old_to_count() -> None:
    counters = Host().observe(flow(1, rtt_us=100), flow(2, rtt_us=9_000, last_data_sent_ms=60_000))["eth0"].counters
    assert (counters["tcp_rtt_max_us"], counters["tcp_flows_sending"], counters["tcp_flows"]) == (100, 1, 2)


def test_nic_without_an_address_is_not_reported_of() -> None:
    assert FlowWatch().observe(table(), NICS, {address(HERE): 2}).keys() == {"eth0"}


def test_nics_that_are_gone_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_flows, "_MOST_NICS", 3)
    watch = FlowWatch()
    for number in range(10):
        found = watch.observe(table(), {2: f"eth{number}"}, {address(HERE): 2})
    assert len(found) <= 4
    assert "eth9" in found


def test_thousands_of_flows_are_added_up_exactly() -> None:
    host = Host()
    flows = [flow(1 + cookie, cookie % 7) for cookie in range(3_000)]
    assert host.retrans(*flows) == sum(cookie % 7 for cookie in range(3_000))
    assert host.retrans(*reversed(flows)) == sum(cookie % 7 for cookie in range(3_000))
