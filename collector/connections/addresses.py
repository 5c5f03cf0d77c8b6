"""Which interface has which address, in this network namespace or in that of another process (rtnetlink)."""

import socket
import struct

from collector.netlink import NETLINK_ROUTE, NetlinkSocket, attributes_of
from lockstep.errors import NotPresent

# linux/rtnetlink.h, linux/if_addr.h, linux/if_link.h
_NEW_LINK, _GET_LINK, _NEW_ADDRESS, _GET_ADDRESS = 16, 18, 20, 22
_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_IFLA_NAME, _IFA_ADDRESS, _IFA_LOCAL = 3, 1, 2


def list_addresses(namespace_fd: int | None = None) -> dict[str, str]:
    """Return the interface of each address; NotPresent where the kernel does not say.

    `namespace_fd` is an open /proc/PID/ns/net; without it these are the addresses of our own namespace.
    """
    try:
        route = NetlinkSocket(NETLINK_ROUTE, namespace_fd=namespace_fd)
    except OSError as error:
        raise NotPresent(f"this kernel has no rtnetlink: {error.strerror or error}") from None
    try:
        names = dict(found for payload in _payloads(route, _GET_LINK, _NEW_LINK) if (found := decode_link(payload)))
        places = [decode_address(payload) for payload in _payloads(route, _GET_ADDRESS, _NEW_ADDRESS)]
    except OSError as error:
        raise NotPresent(f"the kernel does not list addresses: {error.strerror or error}") from None
    finally:
        route.close()
    return {place[0]: names[place[1]] for place in places if place and place[1] in names}


def decode_link(payload: bytes) -> tuple[int, str] | None:
    """Return index and name of an interface, or None for anything else."""
    if len(payload) < _LINK.size:
        return None
    name = attributes_of(payload, _LINK.size).get(_IFLA_NAME, b"")
    text = name.partition(b"\0")[0].decode(errors="replace")
    return (_LINK.unpack_from(payload)[2], text) if text else None


def decode_address(payload: bytes) -> tuple[str, int] | None:
    """Return an address and the index of its interface, or None for anything else."""
    if len(payload) < _ADDRESS.size:
        return None
    family, _, _, _, index = _ADDRESS.unpack_from(payload)
    fields = attributes_of(payload, _ADDRESS.size)
    raw = fields.get(_IFA_LOCAL) or fields.get(_IFA_ADDRESS) or b""  # IPv6 has only the second
    length = {socket.AF_INET: 4, socket.AF_INET6: 16}.get(family)
    return (socket.inet_ntop(family, raw), index) if len(raw) == length else None


def _payloads(route: NetlinkSocket, question: int, answer: int) -> list[bytes]:
    body = bytes(_LINK.size) if question == _GET_LINK else bytes(_ADDRESS.size)
    return [payload for found in route.dump(question, body) for kind, payload in found.payloads() if kind == answer]
