"""Rules for packets of one interface, written straight to the kernel: a table with one chain of one rule each.

Neither the `nft` program is needed nor pyroute2's nftables, which has neither random numbers nor payloads to set.
"""

import os
import socket
import struct
from collections.abc import Sequence

from collector.kernel.netlink import pack_attribute, walk_messages
from tests.testbed.fabric.namespaces import Home

# linux/netfilter/nfnetlink.h and nf_tables.h
INGRESS, EGRESS = 0, 1
REGISTER = 1
_NETLINK_NETFILTER, _SUBSYSTEM = 12, 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE = ((_SUBSYSTEM << 8) + kind for kind in (0, 2, 3, 6))
_FAMILY_NETDEV = 5
_REQUEST, _ACK, _CREATE, _NESTED, _ERROR = 0x1, 0x4, 0x400, 0x8000, 2
_HEADER = struct.Struct("=IHHII")
_CHAIN = b"rule\0"
_ANSWER_S = 10.0

_Message = tuple[int, int, bytes]  # type, flags and attributes


def add_rule(home: Home, table: str, interface: str, hook: int, expressions: Sequence[bytes]) -> None:
    """Make a table whose rule looks at what enters or leaves an interface; OSError when the kernel refuses."""
    named = _name(table)
    hook_attributes = nest(4, number(1, hook), number(2, 0), pack_attribute(3, f"{interface}\0".encode()))
    chain = pack_attribute(3, _CHAIN) + hook_attributes + pack_attribute(7, b"filter\0")
    rule = pack_attribute(2, _CHAIN) + nest(4, *expressions)
    messages = [
        (_NEW_TABLE, _CREATE, named),
        (_NEW_CHAIN, _CREATE, named + chain),
        (_NEW_RULE, _CREATE, named + rule),
    ]
    home.run(lambda: _commit(messages))


def remove_rule(home: Home, table: str) -> None:
    home.run(lambda: _commit([(_DELETE_TABLE, 0, _name(table))]))


def expression(name: bytes, *attributes: bytes) -> bytes:
    return nest(1, pack_attribute(1, name + b"\0"), nest(2, *attributes))


def number(kind: int, value: int) -> bytes:
    """Return a number as an attribute, in network order."""
    return pack_attribute(kind, struct.pack("!I", value))


def nest(kind: int, *attributes: bytes) -> bytes:
    return pack_attribute(kind | _NESTED, b"".join(attributes))


def _name(table: str) -> bytes:
    return pack_attribute(1, f"{table}\0".encode())


def _commit(messages: Sequence[_Message]) -> None:
    """Have the kernel do all of it or nothing; raise OSError with its error when it refuses."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER) as netlink:
        netlink.settimeout(_ANSWER_S)
        netlink.sendto(_batch(messages), (0, 0))
        waiting = {number for number, _ in enumerate(messages, 1)}
        while waiting:
            data = netlink.recv(1 << 16)
            for kind, _, answered, start, _ in walk_messages(data):
                refusal = -struct.unpack_from("=i", data, start)[0] if kind == _ERROR else 0
                if refusal:
                    raise OSError(refusal, f"nftables refuses: {os.strerror(refusal)}")
                waiting.discard(answered)


def _batch(messages: Sequence[_Message]) -> bytes:
    inner = [
        _message(kind, flags | _ACK, sequence, _FAMILY_NETDEV, 0, body)
        for sequence, (kind, flags, body) in enumerate(messages, 1)
    ]
    begin, end = (_message(kind, 0, 0, 0, _SUBSYSTEM, b"") for kind in (_BATCH_BEGIN, _BATCH_END))
    return b"".join([begin, *inner, end])


def _message(kind: int, flags: int, sequence: int, family: int, resource: int, body: bytes) -> bytes:
    payload = struct.pack("!BBH", family, 0, resource) + body
    return _HEADER.pack(_HEADER.size + len(payload), kind, _REQUEST | flags, sequence, 0) + payload
