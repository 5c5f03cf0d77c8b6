"""What is known of a network interface at one moment, whoever told it: the kernel over netlink, or files in /sys."""

import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from collector.kernel.netlink import NETLINK_ROUTE, NetlinkSocket, attributes_of, pack_attribute, to_number, to_text
from lockstep.clock import Clock

Decoded = TypeVar("Decoded")

# The names of struct rtnl_link_stats64 of linux/if_link.h in its order; the files in `statistics` have the same.
STATISTICS = (
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
    "rx_length_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
)
REQUIRED = STATISTICS[2:8]  # those that have columns of their own


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface; None is what could not be learned."""

    name: str
    index: int
    is_up: bool  # has a carrier, and is open for traffic
    is_enabled: bool  # not taken down by somebody
    operstate: str
    has_device: bool  # a card behind it, in contrast to bridges, tunnels and pairs
    kind: str = ""  # veth, bond, vlan; empty for a card
    lower: int | None = None  # index of the interface that a VLAN or its like lies on
    statistics: Mapping[str, int] = field(default_factory=dict)
    carrier_downs: int | None = None  # how often the carrier was lost since boot
    carrier_ups: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits to be sent on an interface and what found no room (its root qdisc); the last three since boot."""

    backlog_bytes: int
    backlog_packets: int
    drops: int
    requeues: int
    overlimits: int

    def counters(self) -> dict[str, int]:
        return {
            "qdisc_backlog_bytes": self.backlog_bytes,
            "qdisc_backlog_packets": self.backlog_packets,
            "qdisc_drops": self.drops,
            "qdisc_requeues": self.requeues,
            "qdisc_overlimits": self.overlimits,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """An interface as a notification showed it, and when that came."""

    at_ns: int
    link: Link


@dataclass(frozen=True)
class LinkSnapshot:
    """All interfaces at one moment, and what was told of them since the look before."""

    links: Sequence[Link]
    changes: Sequence[Change] = ()  # in order
    queues: Mapping[int, Queue] = field(default_factory=dict)  # by index of the interface
    addresses: Mapping[bytes, int] | None = None  # own addresses as 16 bytes of IPv6, and the interface that has each
    broken: Mapping[str, str] = field(default_factory=dict)  # by name of the interface: why it cannot be read
    is_whole: bool = True  # an interface that is not listed is gone


# linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/pkt_sched.h, linux/gen_stats.h
NEW_LINK, GET_LINK, GET_ADDRESS, GET_QUEUE = 16, 18, 22, 38
LINK_GROUP = 1
_INTERFACE = struct.Struct("=BxHiII")  # family, kind of hardware, index, flags, changed flags
_QUEUE = struct.Struct("=BxxxiIII")  # family, interface, handle, parent, info
_ADDRESS = struct.Struct("=BBBBI")  # family, bits of the prefix, flags, scope, interface
_QUEUE_STATISTICS = struct.Struct("=5I")  # packets and bytes waiting, drops, requeues, overlimits
ASK_ALL_LINKS, ASK_ALL_QUEUES, ASK_ALL_ADDRESSES = bytes(_INTERFACE.size), bytes(_QUEUE.size), bytes(_ADDRESS.size)
_NAME, _LOWER, _OPERSTATE, _LINK_INFO, _STATISTICS, _CARRIER = 3, 5, 16, 18, 23, 33
_CARRIER_UPS, _CARRIER_DOWNS, _PARENT_DEVICE = 47, 48, 56
_INFO_KIND, _QUEUE_STATS2, _STATS_QUEUE = 1, 7, 3
_FLAG_UP = 1
_ROOT = 0xFFFF_FFFF
_LOCAL, _ANY = 2, 1
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_ON_ANOTHER = {"vlan", "macvlan", "ipvlan"}  # what lies on one interface; of a pair the same field names the peer

# linux/genetlink.h and linux/ethtool_netlink.h
CONTROL_FAMILY, GET_LINK_MODES = 16, 4
_GENERIC = struct.Struct("=BBxx")  # command, version
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_MODES_HEADER, _HEADER_INDEX, _MODES_SPEED = 1, 1, 5
_NESTED = 0x8000
_NO_SPEED = 0xFFFF_FFFF
_MAPPED = bytes(10) + b"\xff\xff"  # before the four bytes of an IPv4 address


def decode_link(payload: bytes) -> Link | None:
    """Return an interface, or None for anything else; what a bridge tells of its ports is not about the interface."""
    if len(payload) < _INTERFACE.size:
        return None
    family, _, index, flags, _ = _INTERFACE.unpack_from(payload)
    fields = attributes_of(payload, _INTERFACE.size)
    name = to_text(fields.get(_NAME))
    if family != socket.AF_UNSPEC or not name:
        return None
    number = to_number(fields.get(_OPERSTATE))
    operstate = _OPERSTATES[number] if number is not None and number < len(_OPERSTATES) else "unknown"
    kind = to_text(attributes_of(fields.get(_LINK_INFO, b"")).get(_INFO_KIND))
    counts = fields.get(_STATISTICS, b"")[: 8 * len(STATISTICS)]  # fewer in older kernels
    return Link(
        name=name,
        index=index,
        # The kernel corrects operstate up to a second after the carrier; and not every driver keeps it: the kernel
        # wants "unknown" to be taken for usable.
        is_up=operstate in ("up", "unknown") and to_number(fields.get(_CARRIER)) == 1 and bool(flags & _FLAG_UP),
        is_enabled=bool(flags & _FLAG_UP),
        operstate=operstate,
        has_device=_PARENT_DEVICE in fields,
        kind=kind,
        lower=to_number(fields.get(_LOWER)) if kind in _ON_ANOTHER else None,
        statistics=dict(zip(STATISTICS, struct.unpack_from(f"={len(counts) // 8}Q", counts), strict=False)),
        carrier_downs=to_number(fields.get(_CARRIER_DOWNS)),
        carrier_ups=to_number(fields.get(_CARRIER_UPS)),
    )


def decode_root_queue(payload: bytes) -> tuple[int, Queue] | None:
    """Return the interface and the state of its root qdisc, or None for anything else, further qdiscs included.

    A root with a queue for each ring of the card (mq) counts what its queues count.
    """
    if len(payload) < _QUEUE.size:
        return None
    _, index, _, parent, _ = _QUEUE.unpack_from(payload)
    if parent != _ROOT:
        return None
    statistics = attributes_of(attributes_of(payload, _QUEUE.size).get(_QUEUE_STATS2, b"")).get(_STATS_QUEUE, b"")
    if len(statistics) < _QUEUE_STATISTICS.size:
        return None
    packets, waiting, drops, requeues, overlimits = _QUEUE_STATISTICS.unpack_from(statistics)
    return index, Queue(waiting, packets, drops, requeues, overlimits)


def decode_address(payload: bytes) -> tuple[bytes, int] | None:
    """Return an address of this host as 16 bytes, and the interface that has it; None for anything else."""
    if len(payload) < _ADDRESS.size:
        return None
    family, _, _, _, index = _ADDRESS.unpack_from(payload)
    fields = attributes_of(payload, _ADDRESS.size)
    address = fields.get(_LOCAL) or fields.get(_ANY) or b""  # between two ends the second is the other's
    if family == socket.AF_INET and len(address) == 4:
        return _MAPPED + address, index
    return (address, index) if family == socket.AF_INET6 and len(address) == 16 else None


def dump(
    route: NetlinkSocket, kind: int, body: bytes, decode: Callable[[bytes], Decoded | None]
) -> Iterator[Decoded]:
    """Yield all that there is of a kind; what `decode` makes nothing of is left out."""
    for datagram in route.dump(kind, body):
        for _, payload in datagram.payloads():
            if (decoded := decode(payload)) is not None:
                yield decoded


def ask_family(name: str) -> bytes:
    """Return the question for the number of a generic family."""
    return _GENERIC.pack(_GET_FAMILY, 1) + pack_attribute(_FAMILY_NAME, name.encode() + b"\0")


def decode_family(payload: bytes) -> int | None:
    return to_number(attributes_of(payload, _GENERIC.size).get(_FAMILY_ID))


def ask_speed(index: int) -> bytes:
    """Return the question for the link modes of an interface."""
    header = pack_attribute(_HEADER_INDEX, struct.pack("=I", index))
    return _GENERIC.pack(GET_LINK_MODES, 1) + pack_attribute(_MODES_HEADER | _NESTED, header)


def decode_speed(payload: bytes) -> int | None:
    """Return the negotiated rate in Mbit/s, or None while there is none."""
    speed = to_number(attributes_of(payload, _GENERIC.size).get(_MODES_SPEED))
    return speed if speed and speed < _NO_SPEED else None


_MOST_CHANGES = 4_096  # kept until they are taken, the newest; the counts of carriers see what is lost


class LinkChanges:
    """An open subscription to changes in this thread's network namespace; OSError where the kernel refuses it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported: deque[Change] = deque(maxlen=_MOST_CHANGES)
        self._failure: OSError | None = None
        self._socket = NetlinkSocket(NETLINK_ROUTE, (LINK_GROUP,))
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._listen, name="link changes", daemon=True)
        self._thread.start()

    @property
    def overruns(self) -> int:
        """How often changes were lost because there were too many at once."""
        return self._socket.overruns

    @property
    def waiting(self) -> int:
        return len(self._reported)

    def take(self) -> list[Change]:
        """Return what was told since the last time, in order; raise OSError when nothing more can be heard."""
        if self._failure:
            raise self._failure
        return [self._reported.popleft() for _ in range(len(self._reported))]

    def close(self) -> None:
        """End the subscription and its thread; a second time does no harm."""
        if self._stop >= 0:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
            self._socket.close()
            os.close(self._stop)
            self._stop = -1

    def _listen(self) -> None:
        waiting = select.poll()
        for file in (self._socket.fileno(), self._stop):
            waiting.register(file, select.POLLIN)
        try:
            while self._stop not in {file for file, _ in waiting.poll()}:
                for datagram in self._socket.notices():
                    now_ns = self._clock.now_ns()
                    links = (decode_link(payload) for kind, payload in datagram.payloads() if kind == NEW_LINK)
                    self._reported.extend(Change(now_ns, link) for link in links if link)
        except OSError as failure:
            self._failure = failure
