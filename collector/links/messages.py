"""The kernel's messages about interfaces, queues and addresses as records (rtnetlink, ethtool netlink); all pure."""

import socket
import struct

from collector.links.readings import STATISTICS, Link, Queue
from collector.netlink import attributes_of, pack_attribute, to_number, to_text

# linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/pkt_sched.h, linux/gen_stats.h
NEW_LINK, DELETED_LINK, GET_LINK = 16, 17, 18
NEW_ADDRESS, GET_ADDRESS = 20, 22
NEW_QUEUE, GET_QUEUE = 36, 38
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
    operstate, kind = _operstate(fields), to_text(attributes_of(fields.get(_LINK_INFO, b"")).get(_INFO_KIND))
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
        statistics=_decode_statistics(fields.get(_STATISTICS, b"")),
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


def _operstate(fields: dict[int, bytes]) -> str:
    number = to_number(fields.get(_OPERSTATE))
    return _OPERSTATES[number] if number is not None and number < len(_OPERSTATES) else "unknown"


def _decode_statistics(value: bytes) -> dict[str, int]:
    """Return as many counters as this kernel gives."""
    count = min(len(value) // 8, len(STATISTICS))
    return dict(zip(STATISTICS, struct.unpack_from(f"={count}Q", value), strict=False))
