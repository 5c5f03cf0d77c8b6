"""TCP sockets are listed with what the kernel knows of them; garbage and older kernels give less, never nonsense."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.kernel import inet_diag
from collector.kernel.inet_diag import TcpSocket, decode_sockets, list_tcp_sockets, read_tcp_table, records_of
from collector.kernel.netlink import Datagram, NetlinkSocket, pack_attribute
from lockstep.errors import NotPresent
from tests.collector.sources.link_namespaces import Flow, joined_namespaces

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


def found(sockets: list[TcpSocket], end: socket.socket) -> TcpSocket:
    (mine,) = [each for each in sockets if each.inode == os.fstat(end.fileno()).st_ino]
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
    assert (mine.state, mine.uid, mine.interface) == (1, os.getuid(), 0)
    assert mine.cookie == int.from_bytes(client.getsockopt(socket.SOL_SOCKET, 57, 8), "little")  # SO_COOKIE
    assert (mine.bytes_sent, mine.bytes_retrans, mine.retrans_total, mine.lost) == (100_000, 0, 0, 0)
    rtt, variation = struct.unpack_from("=II", info, 68)
    (floor,), (busy,) = struct.unpack_from("=I", info, 148), struct.unpack_from("=Q", info, 168)
    assert (mine.rtt_us, mine.rttvar_us, mine.min_rtt_us, mine.busy_us) == (rtt, variation, floor, busy)
    assert mine.rtt_us
    assert mine.delivery_rate_bps == 8 * struct.unpack_from("=Q", info, 160)[0]
    assert found(list_tcp_sockets(), server).bytes_sent == 0


def test_addresses_of_ipv6_are_listed_and_ipv4_in_them_is_ipv4() -> None:
    with ExitStack() as opened:
        six, four = connect("::1", socket.AF_INET6), socket.socket(socket.AF_INET6)
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        for end in (*six, four):
            opened.enter_context(end)
        four.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        sockets = list_tcp_sockets()
        assert found(sockets, six[0]).local == "::1"
        assert (found(sockets, four).local, found(sockets, four).rport) == ("127.0.0.1", listener.getsockname()[1])


def test_only_sockets_in_the_wanted_states_are_listed(connection: Connection) -> None:
    client, server = connection
    with socket.create_server(("127.0.0.1", 0)) as listener:
        inodes = {each.inode for each in list_tcp_sockets()}
        assert os.fstat(listener.fileno()).st_ino not in inodes
        assert os.fstat(client.fileno()).st_ino in inodes
        assert found(list_tcp_sockets(states=(10,)), listener).state == 10
    server.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    assert not [each for each in list_tcp_sockets() if each.inode == os.fstat(client.fileno()).st_ino]
    assert found(list_tcp_sockets(states=inet_diag.SENDING_STATES), client).state == 8  # CLOSE_WAIT


def test_hundreds_of_sockets_come_each_once_and_a_table_too_large_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as opened:
        ends = [opened.enter_context(end) for _ in range(200) for end in connect("127.0.0.1")]
        wanted = {os.fstat(end.fileno()).st_ino for end in ends}
        listed = [each.inode for each in list_tcp_sockets() if each.inode in wanted]
        assert sorted(listed) == sorted(wanted)
        monkeypatch.setattr(inet_diag, "MOST_SOCKETS", 100)
        monkeypatch.setattr(inet_diag, "_BATCH", 1)
        table = read_tcp_table()
    assert table.is_cut
    assert 50 <= len(table) < 400


@pytest.mark.needs_root
def test_sockets_of_another_namespace_are_listed_from_outside() -> None:
    with joined_namespaces() as pair, closing(Flow(pair)) as flow:
        mine = found(list_tcp_sockets(namespace_fd=pair.here.fd), flow.sender)
        assert (mine.local, mine.remote) == ("10.9.0.1", "10.9.0.2")
        assert mine.inode not in {each.inode for each in list_tcp_sockets()}


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
    for at, value in {24: 4, 32: 5, 68: 100, 72: 50, 100: 9, 148: 80}.items():
        struct.pack_into("=I", info, at, value)
    for at, wide in {160: 1_000, 168: 7, 200: 2**40, 208: 3_000}.items():
        struct.pack_into("=Q", info, at, wide)
    (mine,) = records_of(decode_sockets(datagram(diag_message(info=bytes(info)))))
    expected: dict[str, object] = {"inode": 4711, "uid": 1000, "state": 1, "interface": 3, "cookie": 77}
    expected |= {"local": "10.0.0.1", "lport": 40_000, "remote": "10.0.0.2", "rport": 443}
    expected |= {"retrans_total": 9, "rtt_us": 100, "rttvar_us": 50, "min_rtt_us": 80, "delivery_rate_bps": 8_000}
    expected |= {"lost": 5, "unacked": 4, "bytes_sent": 2**40, "bytes_retrans": 3_000, "busy_us": 7}
    assert asdict(mine) == expected


@pytest.mark.parametrize(("length", "known"), [(0, 0), (104, 5), (152, 6), (192, 8), (216, 10), (400, 10)])
def test_older_kernel_that_says_less_leaves_the_rest_unknown(length: int, known: int) -> None:
    (mine,) = records_of(decode_sockets(datagram(diag_message(info=b"\1" * length))))
    flow = [mine.retrans_total, mine.rtt_us, mine.rttvar_us, mine.lost, mine.unacked, mine.min_rtt_us]
    flow += [mine.delivery_rate_bps, mine.busy_us, mine.bytes_sent, mine.bytes_retrans]
    assert [value is not None for value in flow] == [True] * known + [False] * (10 - known)


def test_round_trip_never_measured_is_unknown_and_sockets_with_and_without_information_do_not_mix() -> None:
    info = bytearray(232)
    struct.pack_into("=I", info, 148, 0xFFFF_FFFF)
    (mine,) = records_of(decode_sockets(datagram(diag_message(info=bytes(info)))))
    assert (mine.rtt_us, mine.rttvar_us, mine.min_rtt_us) == (None, None, None)
    table = decode_sockets(datagram(diag_message(info=None), diag_message(info=b"\1" * 232), b"short"))
    assert [each.retrans_total for each in records_of(table)] == [None, 0x01010101]
    assert table.info["lost"].tolist() == [0, 0x01010101]  # sums over a column need no mask


@given(st.lists(st.binary(max_size=200), max_size=5), st.binary(max_size=300))
def test_garbage_never_raises_and_never_moves_what_is_before_it(messages: list[bytes], garbage: bytes) -> None:
    whole = [message for message in messages if len(message) >= 72]
    assert len(records_of(decode_sockets(datagram(*messages)))) == len(whole)
    (mine,) = records_of(decode_sockets(datagram(diag_message()[:72] + garbage)))
    assert (mine.inode, mine.lport) == (4711, 40_000)
