"""The kernel is asked over netlink: it answers, refuses, tells changes; nobody else can, and garbage ends nothing."""

import errno
import os
import socket
import struct
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.kernel import netlink as link_netlink
from collector.kernel.links import ASK_ALL_LINKS, GET_LINK, LINK_GROUP, NEW_LINK, Link, decode_link
from collector.kernel.netlink import (
    NETLINK_ROUTE,
    NetlinkSocket,
    attributes_of,
    pack_attribute,
    to_number,
    to_text,
    walk_attributes,
    walk_messages,
)
from tests.collector.sources.link_namespaces import Namespace, joined_namespaces


def names(route: NetlinkSocket) -> list[str]:
    payloads = [payload for datagram in route.dump(GET_LINK, ASK_ALL_LINKS) for _, payload in datagram.payloads()]
    return [link.name for payload in payloads if (link := decode_link(payload))]


def reported(changes: NetlinkSocket) -> list[Link]:
    payloads = [payload for datagram in changes.notices() for _, payload in datagram.payloads()]
    return [link for payload in payloads if (link := decode_link(payload))]


def test_attributes_numbers_and_names_are_read_as_they_were_packed() -> None:
    packed = pack_attribute(3, b"eth0\0") + pack_attribute(0x8000 | 7, b"\1\0")
    assert list(walk_attributes(packed)) == [(3, b"eth0\0"), (7, b"\1\0")]
    assert attributes_of(b"head" + packed, 4) == {3: b"eth0\0", 7: b"\1\0"}
    numbers = {None: None, b"": None, b"\1": 1, bytes(3): None, struct.pack("=Q", 2**40): 2**40}
    assert {value: to_number(value) for value in numbers} == numbers
    assert (to_text(b"eth0\0junk"), to_text(None), to_text(b"\xff")) == ("eth0", "", "�")


@given(st.binary(max_size=200))
def test_garbage_is_walked_to_its_end_and_never_beyond(garbage: bytes) -> None:
    assert all(start <= end <= len(garbage) for _, _, _, start, end in walk_messages(garbage))
    assert sum(4 + len(value) for _, value in walk_attributes(garbage)) <= len(garbage)


def test_interfaces_are_listed_also_after_a_refusal_and_after_an_answer_that_nobody_read() -> None:
    with closing(NetlinkSocket(NETLINK_ROUTE)) as route:
        assert names(route) == names(route)
        with pytest.raises(OSError, match="No such device") as refusal:
            route.ask(GET_LINK, struct.pack("=BxHiII", 0, 0, 2**30, 0, 0))
        assert refusal.value.errno == errno.ENODEV
        assert "lo" in names(route)
        route._send(GET_LINK, 0, struct.pack("=BxHiII", 0, 0, 1, 0, 0))  # lo, and nobody reads the answer
        assert names(route).count("lo") == 1


def test_unknown_protocol_and_a_file_that_is_no_namespace_are_refused() -> None:
    with pytest.raises(OSError, match="Protocol not supported") as refusal:
        NetlinkSocket(31)
    assert refusal.value.errno == errno.EPROTONOSUPPORT
    with open(os.devnull) as file, pytest.raises(OSError, match="no such network namespace"):
        NetlinkSocket(NETLINK_ROUTE, namespace_fd=file.fileno())


@pytest.mark.needs_root
def test_another_namespace_is_asked_and_tells_its_changes_once_in_order_and_ours_is_not_left() -> None:
    mine = os.readlink("/proc/thread-self/ns/net")
    with joined_namespaces() as pair, closing(NetlinkSocket(NETLINK_ROUTE, (LINK_GROUP,), pair.here.fd)) as changes:
        with closing(NetlinkSocket(NETLINK_ROUTE, namespace_fd=pair.there.fd)) as route:
            assert "eth0" in names(route)
        assert os.readlink("/proc/thread-self/ns/net") == mine
        assert mine != pair.there.run(os.readlink, "/proc/thread-self/ns/net")
        for state in ("down", "up"):
            pair.here.set_link("eth0", state)
        enabled = [link.is_enabled for link in reported(changes) if link.name == "eth0"]
        assert enabled[0] is False
        assert enabled[-1] is True
        assert not [link for link in reported(changes) if not link.is_enabled]


@pytest.mark.needs_root
def test_too_many_changes_are_counted_as_lost_and_the_next_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_netlink, "_NOTICE_BYTES", 1)  # the kernel makes the smallest of it
    with closing(Namespace()) as here, closing(NetlinkSocket(NETLINK_ROUTE, (LINK_GROUP,), here.fd)) as changes:
        for _ in range(20):
            here.set_link("lo", "up")
            here.set_link("lo", "down")
        reported(changes)
        assert changes.overruns > 0
        here.set_link("lo", "up")
        assert reported(changes)


@pytest.mark.needs_root
def test_change_that_another_process_sends_is_not_believed() -> None:
    with closing(NetlinkSocket(NETLINK_ROUTE, (LINK_GROUP,))) as changes:
        port = changes._socket.getsockname()[0]
        forged = struct.pack("=BxHiII", 0, 1, 2, 0, 0) + pack_attribute(3, b"forged\0")
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_ROUTE) as forger:
            forger.sendto(struct.pack("=IHHII", 16 + len(forged), NEW_LINK, 0, 0, 0) + forged, (port, 0))
        assert "forged" not in [link.name for link in reported(changes)]
