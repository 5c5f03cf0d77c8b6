"""TCP sockets are listed with what the kernel knows of them; garbage and older kernels give less, never nonsense."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.kernel import inet_diag
from collector.kernel.inet_diag import (
    TCP_COUNTERS,
    FlowWatch,
    NicFlows,
    TcpSocket,
    TcpTable,
    decode_sockets,
    list_tcp_sockets,
    read_tcp_table,
    records_of,
)
from collector.kernel.netlink import Datagram, NetlinkSocket, pack_attribute
from lockstep.errors import NotPresent

Connection = tuple[socket.socket, socket.socket]


def connect(address: str, family: int = socket.AF_INET) -> Connection:
    with socket.create_server((address, 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        return client, listener.accept()[0]


@pytest.fixture
def connection() -> Iterator[Connection]:
    with ExitStack() as opened:
        client, server = connect("127.0.0.1")
        yield opened.enter_context(client), opened.enter_context(server)


def inode_of(end: socket.socket) -> int:
    return os.fstat(end.fileno()).st_ino


def found(sockets: list[TcpSocket], end: socket.socket) -> TcpSocket:
    (mine,) = [each for each in sockets if each.inode == inode_of(end)]
    return mine


def diag_message(*, info: bytes | None = bytes(range(232)), family: int = socket.AF_INET) -> bytes:
    """Return a socket as the kernel describes it: struct inet_diag_msg and attributes."""
    ports = struct.pack(">HH", 40_000, 443)
    addresses = socket.inet_aton("10.0.0.1") + bytes(12) + socket.inet_aton("10.0.0.2") + bytes(12)
    identity = ports + addresses + struct.pack("=IQ", 3, 77)
    message = struct.pack("=BBBB", family, 1, 0, 0) + identity + struct.pack("=IIIII", 0, 0, 0, 1000, 4711)
    told = b"" if info is None else pack_attribute(2, info)
    return message + pack_attribute(8, b"\0") + told + pack_attribute(5, b"\0")


def datagram(*messages: bytes) -> Datagram:
    data, places = b"head", []
    for message in messages:
        places.append((20, len(data), len(data) + len(message)))
        data += message + bytes(-len(message) % 4)  # netlink aligns all to four bytes
    return Datagram(data, places)


def test_both_ends_of_a_connection_are_listed_with_the_flow_that_the_socket_itself_says(
    connection: Connection,
) -> None:
    client, server = connection
    client.sendall(b"x" * 100_000)
    while len(server.recv(1 << 20, socket.MSG_PEEK)) < 100_000:
        pass
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    mine = found(list_tcp_sockets(), client)
    assert (mine.local, mine.lport) == client.getsockname()
    assert (mine.remote, mine.rport) == server.getsockname()
    assert mine.cookie == int.from_bytes(client.getsockopt(socket.SOL_SOCKET, 57, 8), "little")  # SO_COOKIE
    assert (mine.bytes_sent, found(list_tcp_sockets(), server).bytes_sent) == (100_000, 0)
    table = read_tcp_table()
    (row,) = table.info[table.socket["inode"] == mine.inode]
    (rtt,), (floor,) = struct.unpack_from("=I", info, 68), struct.unpack_from("=I", info, 148)
    assert (row["rtt_us"], row["min_rtt_us"], row["retrans_total"], row["lost"]) == (rtt, floor, 0, 0)
    assert rtt


def test_only_sockets_in_the_wanted_states_are_listed_and_ipv4_inside_ipv6_is_ipv4(connection: Connection) -> None:
    def state_of(end: socket.socket, *states: int) -> int:
        table = read_tcp_table(states=states)
        (state,) = table.socket["state"][table.socket["inode"] == inode_of(end)]
        return int(state)

    client, server = connection
    with ExitStack() as opened:
        six, four = connect("::1", socket.AF_INET6), socket.socket(socket.AF_INET6)
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        for end in (*six, four):
            opened.enter_context(end)
        four.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        sockets = list_tcp_sockets()
        assert inode_of(listener) not in {each.inode for each in sockets}
        assert inode_of(client) in {each.inode for each in sockets}
        assert state_of(listener, 10) == 10
        assert found(sockets, six[0]).local == "::1"
        assert (found(sockets, four).local, found(sockets, four).rport) == ("127.0.0.1", listener.getsockname()[1])
    server.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    assert inode_of(client) not in {each.inode for each in list_tcp_sockets()}
    assert state_of(client, *inet_diag.SENDING_STATES) == 8  # CLOSE_WAIT


def test_hundreds_of_sockets_come_each_once_and_a_table_too_large_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as opened:
        ends = [opened.enter_context(end) for _ in range(200) for end in connect("127.0.0.1")]
        wanted = set(map(inode_of, ends))
        listed = [each.inode for each in list_tcp_sockets() if each.inode in wanted]
        assert sorted(listed) == sorted(wanted)
        monkeypatch.setattr(inet_diag, "MOST_SOCKETS", 100)
        monkeypatch.setattr(inet_diag, "_BATCH", 1)
        table = read_tcp_table()
    assert table.is_cut
    assert 50 <= len(table) < 400


def test_kernel_that_does_not_list_sockets_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NetlinkSocket:
        raise OSError(93, "Protocol not supported")

    with open(os.devnull) as file, pytest.raises(NotPresent, match="no such network namespace"):
        list_tcp_sockets(namespace_fd=file.fileno())
    monkeypatch.setattr(inet_diag, "NetlinkSocket", refuse)
    with pytest.raises(NotPresent, match="does not list TCP sockets: Protocol not supported"):
        list_tcp_sockets()


def test_message_is_decoded_field_by_field() -> None:
    info = bytearray(232)
    for at, value in {24: 4, 32: 5, 44: 7, 68: 100, 100: 9, 148: 80}.items():
        struct.pack_into("=I", info, at, value)
    struct.pack_into("=Q", info, 200, 2**40)
    table = decode_sockets(datagram(diag_message(info=bytes(info))))
    assert records_of(table) == [TcpSocket(4711, "10.0.0.1", 40_000, "10.0.0.2", 443, 77, 2**40)]
    (row,) = table.info
    told = dict(zip(row.dtype.names, row.item(), strict=True))
    expected = {"unacked": 4, "lost": 5, "last_data_sent_ms": 7, "rtt_us": 100, "retrans_total": 9, "min_rtt_us": 80}
    assert told == expected | {"bytes_sent": 2**40}
    assert (table.socket["state"][0], table.socket["uid"][0], table.socket["interface"][0]) == (1, 1000, 3)


def test_what_an_older_kernel_leaves_out_or_never_measured_is_unknown_and_hides_nothing_of_the_next() -> None:
    fields = ("unacked", "lost", "last_data_sent_ms", "rtt_us", "retrans_total", "min_rtt_us", "bytes_sent")
    for length, known in ((0, 0), (104, 5), (152, 6), (207, 6), (208, 7), (400, 7)):
        table = decode_sockets(datagram(diag_message(info=b"\1" * length)))
        assert [table.knows(field)[0] for field in fields] == [True] * known + [False] * (7 - known)
        assert bool(records_of(table)[0].bytes_sent) == (length >= 208)
    info = bytearray(232)
    struct.pack_into("=I", info, 148, 0xFFFF_FFFF)
    table = decode_sockets(datagram(diag_message(info=bytes(info))))
    assert [table.knows(field)[0] for field in ("rtt_us", "min_rtt_us")] == [False, False]
    table = decode_sockets(datagram(diag_message(info=None), diag_message(info=b"\1" * 232), b"short"))
    assert table.knows("retrans_total").tolist() == [False, True]
    assert table.info["lost"].tolist() == [0, 0x01010101]  # sums over a column need no mask


@given(st.lists(st.binary(max_size=200), max_size=5), st.binary(max_size=300))
def test_garbage_never_raises_and_never_moves_what_is_before_it(messages: list[bytes], garbage: bytes) -> None:
    whole = [message for message in messages if len(message) >= 72]
    assert len(records_of(decode_sockets(datagram(*messages)))) == len(whole)
    (mine,) = records_of(decode_sockets(datagram(diag_message()[:72] + garbage)))
    assert (mine.inode, mine.lport) == (4711, 40_000)


HERE, OTHER_NIC, THERE = "10.0.0.1", "10.0.1.1", "10.0.0.2"
NICS = {2: "eth0", 3: "eth1"}


def address(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6, text if ":" in text else f"::ffff:{text}")


ADDRESSES = {address(HERE): 2, address(OTHER_NIC): 3, address("127.0.0.1"): 1, address("fd00::1"): 2}


def flow(cookie: int, retrans: int = 0, **fields: Any) -> dict[str, Any]:
    return {"cookie": cookie, "retrans_total": retrans, "rtt_us": 100, "min_rtt_us": 50, **fields}


def table(*flows: dict[str, Any], info_bytes: int = 208, is_cut: bool = False) -> TcpTable:
    """Return flows as the kernel lists them; from HERE to THERE unless said otherwise."""
    empty = decode_sockets(Datagram(b"", []))
    sockets, infos = np.zeros(len(flows), empty.socket.dtype), np.zeros(len(flows), empty.info.dtype)
    for row, told in enumerate(flows):
        ends = {"local": HERE, "remote": THERE, **told}
        is_ipv6 = ":" in ends["local"]
        sockets["family"][row] = socket.AF_INET6 if is_ipv6 else socket.AF_INET
        for end in ("local", "remote"):
            raw = address(ends[end]) if is_ipv6 else socket.inet_aton(ends[end]) + bytes(12)
            sockets[end][row] = np.void(raw)
        for name in told.keys() & set(sockets.dtype.names) - {"local", "remote"}:
            sockets[name][row] = told[name]
        for name in told.keys() & set(infos.dtype.names):
            infos[name][row] = told[name]
    return TcpTable(sockets, infos, np.full(len(flows), info_bytes), is_cut)


class Host:
    def __init__(self) -> None:
        self.watch = FlowWatch()

    def observe(self, *flows: dict[str, Any], **options: Any) -> dict[str, NicFlows]:
        return self.watch.observe(table(*flows, **options), NICS, ADDRESSES)

    def retrans(self, *flows: dict[str, Any], **options: Any) -> int:
        return self.observe(*flows, **options)["eth0"].retrans


@pytest.mark.parametrize(
    ("ends", "counted"),
    [
        ({"interface": 3}, (0, 5)),  # it is bound to it
        ({"local": OTHER_NIC}, (0, 5)),
        ({"local": f"::ffff:{HERE}", "remote": f"::ffff:{THERE}"}, (5, 0)),
        *(({"remote": inside}, (0, 0)) for inside in (HERE, OTHER_NIC, "127.0.0.1")),
        *(({"local": no_nic}, (0, 0)) for no_nic in ("127.0.0.1", "10.7.7.7")),
    ],
)
def test_flow_is_counted_where_it_leaves_the_host(ends: dict[str, Any], counted: tuple[int, int]) -> None:
    found = Host().observe(flow(1, 5, **ends))
    assert (found["eth0"].retrans, found["eth1"].retrans) == counted
    assert found["eth0"].counters["tcp_flows"] == bool(counted[0])
    added = Host().observe(flow(1, 5), flow(2, 7, **ends), flow(3, 11, local="fd00::1", remote="fd00::2"))
    assert {name: flows.retrans for name, flows in added.items()} == {
        "eth0": 16 + 7 * bool(counted[0]),
        "eth1": 7 * bool(counted[1]),
    }


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
    for _ in range(inet_diag._PATIENCE + 1):
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
    monkeypatch.setattr(inet_diag, "_MOST_NICS", 3)
    watch = FlowWatch()
    assert watch.observe(table(), NICS, {address(HERE): 2}).keys() == {"eth0"}
    for number in range(10):
        found = watch.observe(table(), {2: f"eth{number}"}, {address(HERE): 2})
    assert len(found) <= 4
    assert "eth9" in found
