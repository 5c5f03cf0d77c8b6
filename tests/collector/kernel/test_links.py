"""The kernel is asked over netlink and its messages about interfaces are decoded; garbage is nothing."""

import errno
import os
import socket
import struct
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.kernel import links
from collector.kernel import netlink as link_netlink
from collector.kernel.links import ASK_ALL_LINKS, GET_LINK, LINK_GROUP, NEW_LINK, STATISTICS, Link, Queue, decode_link
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

# linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h
IFNAME, LINK, OPERSTATE, LINKINFO, STATS64, CARRIER, UP_COUNT, DOWN_COUNT, PARENT = 3, 5, 16, 18, 23, 33, 47, 48, 56
ADDRESS, LOCAL = 1, 2
OPER_UP, OPER_DOWN, OPER_UNKNOWN, DORMANT = 6, 2, 0, 5
ROOT, INGRESS = 0xFFFF_FFFF, 0xFFFF_FFF1


def number(kind: int, value: int, layout: str = "=I") -> bytes:
    return pack_attribute(kind, struct.pack(layout, value))


def link_message(
    operstate: int = OPER_UP, carrier: int = 1, flags: int = 1, family: int = 0, more: bytes = b"", counters: int = 24
) -> bytes:
    """Return what RTM_GETLINK answers for an interface."""
    states = number(OPERSTATE, operstate, "=B") + number(CARRIER, carrier, "=B")
    counts = pack_attribute(STATS64, struct.pack(f"={counters}Q", *range(100, 100 + counters)))
    head = struct.pack("=BxHiII", family, 1, 7, flags, 0) + pack_attribute(IFNAME, b"eth0\0")
    return head + states + number(UP_COUNT, 4) + number(DOWN_COUNT, 3) + counts + more


def decoded(**options: Any) -> Link:
    link = links.decode_link(link_message(**options))
    assert link
    return link


def queue_message(parent: int = ROOT, statistics: bytes = struct.pack("=5I", 2, 3000, 4, 5, 6)) -> bytes:
    nested = pack_attribute(1, bytes(12)) + pack_attribute(3, statistics)
    return (
        struct.pack("=BxxxiIII", 0, 7, 0x10000, parent, 2) + pack_attribute(1, b"tbf\0") + pack_attribute(7, nested)
    )


def test_interface_is_decoded_with_its_counters_as_far_as_the_kernel_tells_them() -> None:
    link = decoded(more=pack_attribute(PARENT, b"0000:17:00.0\0"))
    counters = {name: 100 + index for index, name in enumerate(STATISTICS)}
    assert link == Link("eth0", 7, True, True, "up", True, statistics=counters, carrier_downs=3, carrier_ups=4)
    older = decoded(counters=8)
    assert (len(older.statistics), older.has_device) == (8, False)
    assert links.decode_link(link_message(family=7)) is None, "what a bridge says of its port is not the interface"
    for kind, lower in (("vlan", 3), ("veth", None)):  # a pair does not name its peer
        link = decoded(more=number(LINK, 3) + pack_attribute(LINKINFO, pack_attribute(1, kind.encode() + b"\0")))
        assert (link.kind, link.lower) == (kind, lower)


@pytest.mark.parametrize(
    ("operstate", "carrier", "flags", "up"),
    [(OPER_UP, 1, 1, True), (OPER_UNKNOWN, 1, 1, True), (OPER_UNKNOWN, 0, 1, False)]
    + [(OPER_UP, 0, 1, False)]  # the kernel has not corrected its state yet
    + [(OPER_DOWN, 1, 1, False), (OPER_UP, 1, 0, False), (DORMANT, 1, 1, False), (99, 1, 1, True)],
)
def test_interface_is_up_with_carrier_and_no_state_against_it(
    operstate: int, carrier: int, flags: int, up: bool
) -> None:
    assert decoded(operstate=operstate, carrier=carrier, flags=flags).is_up is up


def test_root_queue_is_decoded_and_others_are_not() -> None:
    queue = Queue(backlog_bytes=3000, backlog_packets=2, drops=4, requeues=5, overlimits=6)
    assert links.decode_root_queue(queue_message()) == (7, queue)
    counted = {"backlog_bytes": 3000, "backlog_packets": 2, "drops": 4, "requeues": 5, "overlimits": 6}
    assert queue.counters() == {f"qdisc_{name}": count for name, count in counted.items()}
    assert links.decode_root_queue(queue_message(parent=INGRESS)) is None
    assert links.decode_root_queue(queue_message(parent=0x10001)) is None
    assert links.decode_root_queue(queue_message(statistics=b"")) is None


def test_own_address_is_the_local_one_of_two_ends_and_that_of_ipv6_is_itself() -> None:
    ours, other = socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2")
    head = struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, 7)
    both = head + pack_attribute(ADDRESS, other) + pack_attribute(LOCAL, ours)
    assert links.decode_address(both) == (socket.inet_pton(socket.AF_INET6, "::ffff:10.0.0.1"), 7)
    address = socket.inet_pton(socket.AF_INET6, "fd00::1")
    head = struct.pack("=BBBBI", socket.AF_INET6, 64, 0, 0, 7)
    assert links.decode_address(head + pack_attribute(ADDRESS, address)) == (address, 7)
    assert links.decode_address(head + pack_attribute(ADDRESS, address[:4])) is None


def test_speed_is_unknown_while_there_is_none() -> None:
    speeds = {400_000: 400_000, 0: None, 0xFFFF_FFFF: None}
    assert {speed: links.decode_speed(bytes(4) + number(5, speed)) for speed in speeds} == speeds


DECODERS = [links.decode_link, links.decode_root_queue, links.decode_address, links.decode_speed, links.decode_family]


@given(st.binary(max_size=400), st.integers(0, 400))
def test_garbage_and_cut_messages_never_raise_and_give_no_counters_of_their_own(garbage: bytes, length: int) -> None:
    for decode in DECODERS:
        decode(garbage)
    links.decode_link(link_message()[:40] + garbage)
    links.decode_root_queue(queue_message()[:28] + garbage)
    link = links.decode_link(link_message()[:length])
    assert link is None or link.statistics in ({}, decoded().statistics)


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
def test_another_namespace_is_asked_and_ours_is_not_left() -> None:
    ours = os.readlink("/proc/thread-self/ns/net")
    with joined_namespaces() as pair, closing(NetlinkSocket(NETLINK_ROUTE, namespace_fd=pair.there.fd)) as route:
        assert "eth0" in names(route)
        assert os.readlink("/proc/thread-self/ns/net") == ours
        assert pair.there.run(os.readlink, "/proc/thread-self/ns/net") != ours


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
