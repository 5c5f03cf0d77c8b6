"""Moves a live TCP connection to another way: its source port is translated on the wire, and back before it arrives.

A connection keeps its ports for life, but switches hash what they see. The sender's host writes another source port
into what leaves, the receiver's host puts the old one back before its TCP looks: neither program notices. Only the
direction that is told moves. Two nftables rules, without connection tracking; checksums follow.
"""

import socket
import struct
from dataclasses import dataclass

from collector.kernel.netlink import pack_attribute
from lockstep.errors import NotPresent
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.namespaces import Home
from tests.testbed.fabric.nftables import EGRESS, INGRESS, REGISTER, add_rule, expression, nest, number, remove_rule
from tests.testbed.paths.flows import Nic

# linux/netfilter.h and linux/netfilter/nf_tables.h
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_EQUAL, _INTERNET_CHECKSUM = 0, 1
_PROTOCOL_AT, _ADDRESSES_AT, _PORTS_AT, _TCP_CHECKSUM_AT = 9, 12, 0, 16  # in the headers of IPv4 and TCP


@dataclass(frozen=True, slots=True)
class Direction:
    """What one end of a connection sends to the other."""

    src: Nic
    dst: Nic
    sport: int
    dport: int


class Translation:
    """A direction that has another source port on the wire; as before when the block ends."""

    def __init__(self, fabric: Fabric, direction: Direction, sport: int) -> None:
        self._sender, self._receiver = fabric.homes[direction.src[0]], fabric.homes[direction.dst[0]]
        self._table = f"to-{direction.sport}-{direction.dport}-{sport}"
        ends = socket.inet_aton(fabric.address_of(*direction.src)) + socket.inet_aton(
            fabric.address_of(*direction.dst)
        )
        old, new = direction.sport, sport
        # The receiver first: what arrives with the new port before it knows would be answered with a reset.
        self._lay(self._receiver, direction.dst[1], INGRESS, _rule(ends, new, direction.dport, old))
        self._lay(self._sender, direction.src[1], EGRESS, _rule(ends, old, direction.dport, new))

    def __enter__(self) -> "Translation":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Let the direction have its own port again."""
        for home in (self._sender, self._receiver):
            remove_rule(home, self._table)

    def _lay(self, home: Home, interface: str, hook: int, rule: list[bytes]) -> None:
        try:
            add_rule(home, self._table, interface, hook, rule)
        except OSError as refusal:
            raise NotPresent(f"ports cannot be translated here: {refusal}") from refusal


def _rule(ends: bytes, sport: int, dport: int, new_sport: int) -> list[bytes]:
    """Return the rule `ip protocol tcp ip saddr . ip daddr ... tcp sport . tcp dport ... tcp sport set NEW`."""
    return [
        *_match(_NETWORK_HEADER, _PROTOCOL_AT, bytes([socket.IPPROTO_TCP])),
        *_match(_NETWORK_HEADER, _ADDRESSES_AT, ends),
        *_match(_TRANSPORT_HEADER, _PORTS_AT, struct.pack("!HH", sport, dport)),
        expression(b"immediate", number(1, REGISTER), nest(2, pack_attribute(1, struct.pack("!H", new_sport)))),
        expression(
            b"payload",
            number(2, _TRANSPORT_HEADER),
            number(3, _PORTS_AT),
            number(4, 2),
            number(5, REGISTER),
            number(6, _INTERNET_CHECKSUM),
            number(7, _TCP_CHECKSUM_AT),
        ),
    ]


def _match(header: int, offset: int, value: bytes) -> list[bytes]:
    values = (REGISTER, header, offset, len(value))
    return [
        expression(b"payload", *(number(kind, each) for kind, each in enumerate(values, 1))),
        expression(b"cmp", number(1, REGISTER), number(2, _EQUAL), nest(3, pack_attribute(1, value))),
    ]
