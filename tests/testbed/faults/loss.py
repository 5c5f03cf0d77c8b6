"""Random loss on an interface: an nftables rule that drops some of what arrives.

The loss is silent: no counter of the interface or of its queue knows it. Bundles of segments (GSO) are lost whole, as
everywhere on veth.
"""

import struct

from collector.kernel.netlink import pack_attribute
from lockstep.errors import NotPresent
from tests.testbed.fabric.namespaces import Home
from tests.testbed.fabric.nftables import INGRESS, REGISTER, add_rule, expression, nest, number, remove_rule

# linux/netfilter/nf_tables.h
_DROP, _VERDICT_REGISTER = 0, 0
_RANDOM, _TO_NETWORK_ORDER, _LESS_THAN = 1, 1, 2
_ONE_IN = 1_000_000


def lose(home: Home, interface: str, share: float) -> None:
    """Drop this share of what arrives at an interface from now on, each packet on its own."""
    try:
        add_rule(home, _table(interface), interface, INGRESS, _expressions(share))
    except OSError as refusal:
        raise NotPresent(f"packets cannot be lost here: {refusal}") from refusal


def stop_losing(home: Home, interface: str) -> None:
    """Let everything through again."""
    remove_rule(home, _table(interface))


def _table(interface: str) -> str:
    return f"loss-{interface}"


def _expressions(share: float) -> list[bytes]:
    """Return the rule `numgen random mod 1000000 < n drop`; numbers are compared in network order."""
    threshold = struct.pack("!I", round(share * _ONE_IN))
    return [
        expression(b"numgen", number(1, REGISTER), number(2, _ONE_IN), number(3, _RANDOM)),
        expression(
            b"byteorder",
            number(1, REGISTER),
            number(2, REGISTER),
            number(3, _TO_NETWORK_ORDER),
            number(4, 4),
            number(5, 4),
        ),
        expression(b"cmp", number(1, REGISTER), number(2, _LESS_THAN), nest(3, pack_attribute(1, threshold))),
        expression(b"immediate", number(1, _VERDICT_REGISTER), nest(2, nest(2, number(1, _DROP)))),
    ]
