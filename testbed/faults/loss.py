"""Random loss on an interface: an nftables chain that drops some of what arrives, written straight to the kernel.

The loss is silent: no counter of the interface or of its queue knows it. Neither the `nft` program is needed nor
pyroute2's nftables, which has no random numbers. Bundles of segments (GSO) are lost whole, as everywhere on veth.
"""

import os
import socket
import struct
from collections.abc import Sequence

from collector.netlink import pack_attribute, walk_messages
from lockstep.errors import NotPresent
from testbed.fabric.namespaces import Home

# linux/netfilter/nfnetlink.h and nf_tables.h
_NETLINK_NETFILTER, _SUBSYSTEM = 12, 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE = ((_SUBSYSTEM << 8) + kind for kind in (0, 2, 3, 6))
_FAMILY_NETDEV, _HOOK_INGRESS = 5, 0
_DROP, _VERDICT_REGISTER, _REGISTER = 0, 0, 1
_RANDOM, _TO_NETWORK_ORDER, _LESS_THAN = 1, 1, 2
_REQUEST, _ACK, _CREATE, _NESTED, _ERROR = 0x1, 0x4, 0x400, 0x8000, 2
_HEADER = struct.Struct("=IHHII")
_ONE_IN = 1_000_000
_CHAIN = b"lossy\0"
_ANSWER_S = 10.0

_Message = tuple[int, int, bytes]  # type, flags and attributes


def lose(home: Home, interface: str, share: float) -> None:
    """Drop this share of what arrives at an interface from now on, each packet on its own."""
    table = _table(interface)
    hook = _nest(4, _number(1, _HOOK_INGRESS), _number(2, 0), pack_attribute(3, interface.encode() + b"\0"))
    chain = pack_attribute(3, _CHAIN) + hook + pack_attribute(7, b"filter\0")
    rule = pack_attribute(2, _CHAIN) + _nest(4, *_expressions(share))
    messages = [
        (_NEW_TABLE, _CREATE, table),
        (_NEW_CHAIN, _CREATE, table + chain),
        (_NEW_RULE, _CREATE, table + rule),
    ]
    try:
        home.run(lambda: _commit(messages))
    except OSError as refusal:
        raise NotPresent(f"packets cannot be lost here: {refusal}") from refusal


def stop_losing(home: Home, interface: str) -> None:
    """Let everything through again."""
    home.run(lambda: _commit([(_DELETE_TABLE, 0, _table(interface))]))


def _table(interface: str) -> bytes:
    return pack_attribute(1, f"loss-{interface}\0".encode())


def _expressions(share: float) -> list[bytes]:
    """Return the rule `numgen random mod 1000000 < n drop`; numbers are compared in network order."""
    threshold = struct.pack("!I", round(share * _ONE_IN))
    return [
        _expression(b"numgen\0", _number(1, _REGISTER), _number(2, _ONE_IN), _number(3, _RANDOM)),
        _expression(
            b"byteorder\0",
            _number(1, _REGISTER),
            _number(2, _REGISTER),
            _number(3, _TO_NETWORK_ORDER),
            _number(4, 4),
            _number(5, 4),
        ),
        _expression(b"cmp\0", _number(1, _REGISTER), _number(2, _LESS_THAN), _nest(3, pack_attribute(1, threshold))),
        _expression(b"immediate\0", _number(1, _VERDICT_REGISTER), _nest(2, _nest(2, _number(1, _DROP)))),
    ]


def _expression(name: bytes, *attributes: bytes) -> bytes:
    return _nest(1, pack_attribute(1, name), _nest(2, *attributes))


def _number(kind: int, value: int) -> bytes:
    return pack_attribute(kind, struct.pack("!I", value))


def _nest(kind: int, *attributes: bytes) -> bytes:
    return pack_attribute(kind | _NESTED, b"".join(attributes))


def _commit(messages: Sequence[_Message]) -> None:
    """Have the kernel do all of it or nothing; raise OSError with its error when it refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER) as netlink:
        netlink.settimeout(_ANSWER_S)
        netlink.sendto(_batch(messages), (0, 0))
        waiting = {number for number, _ in enumerate(messages, 1)}
        while waiting:
            data = netlink.recv(1 << 16)
            for kind, _, number, start, _ in walk_messages(data):
                refusal = -struct.unpack_from("=i", data, start)[0] if kind == _ERROR else 0
                if refusal:
                    raise OSError(refusal, f"nftables refuses: {os.strerror(refusal)}")
                waiting.discard(number)


def _batch(messages: Sequence[_Message]) -> bytes:
    inner = [
        _message(kind, flags | _ACK, number, _FAMILY_NETDEV, 0, body)
        for number, (kind, flags, body) in enumerate(messages, 1)
    ]
    begin, end = (_message(kind, 0, 0, 0, _SUBSYSTEM, b"") for kind in (_BATCH_BEGIN, _BATCH_END))
    return b"".join([begin, *inner, end])


def _message(kind: int, flags: int, number: int, family: int, resource: int, body: bytes) -> bytes:
    payload = struct.pack("!BBH", family, 0, resource) + body
    return _HEADER.pack(_HEADER.size + len(payload), kind, _REQUEST | flags, number, 0) + payload
