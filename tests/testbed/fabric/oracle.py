"""Which way a flow takes, asked of the kernels that route it: the truth against which probes and plans are checked.

The question is written by hand, because pyroute2 leaves ports out of it without a word and then answers by chance.
"""

import socket
import struct
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from collector.kernel.netlink import NETLINK_ROUTE, NetlinkSocket, attributes_of, pack_attribute, to_number
from lockstep.errors import LockstepError
from tests.testbed.fabric.management import find_interface
from tests.testbed.fabric.namespaces import Home
from tests.testbed.fabric.plan import FabricPlan, Port

# linux/rtnetlink.h
_GET_ROUTE = 26
_DST, _SRC, _IIF, _OIF, _IP_PROTO, _SPORT, _DPORT = 1, 2, 3, 4, 27, 28, 29
_QUESTION = struct.Struct("=BBBBBBBBI")  # rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags
_MOST_HOPS = 16


@dataclass(frozen=True, slots=True)
class Flow:
    """What switches hash besides the addresses."""

    proto: Literal["tcp", "udp"]
    sport: int
    dport: int


def find_way(plan: FabricPlan, homes: Mapping[str, Home], src: Port, dst: Port, flow: Flow) -> tuple[str, ...]:
    """Return the links from NIC to NIC; LockstepError when a switch knows no way."""
    cable, _ = plan.cable_by_port[src.node, src.name]
    links, arrived = [cable.link.id], cable.far_end(src)
    while arrived != dst:
        if len(links) > _MOST_HOPS:
            raise LockstepError(f"the way from {src.address} to {dst.address} goes round in circles")
        name = _ask(homes[arrived.node], arrived, src.address, dst.address, flow)
        cable, leaving = plan.cable_by_port[arrived.node, name]
        links.append(cable.link.id)
        arrived = cable.far_end(leaving)
    return tuple(links)


def _ask(home: Home, arrived: Port, src: str, dst: str, flow: Flow) -> str:
    """Return the interface through which a switch would send a packet that came in at a port."""
    iif = home.change(lambda route: find_interface(route, arrived.name))
    body = _QUESTION.pack(socket.AF_INET, 32, 32, 0, 0, 0, 0, 0, 0) + b"".join(
        pack_attribute(kind, value)
        for kind, value in (
            (_DST, socket.inet_aton(dst)),
            (_SRC, socket.inet_aton(src)),
            (_IIF, struct.pack("=I", iif)),
            (_IP_PROTO, bytes([socket.IPPROTO_TCP if flow.proto == "tcp" else socket.IPPROTO_UDP])),
            (_SPORT, struct.pack("!H", flow.sport)),
            (_DPORT, struct.pack("!H", flow.dport)),
        )
    )
    with closing(NetlinkSocket(NETLINK_ROUTE, namespace_fd=home.fd)) as netlink:
        ((_, answer),) = netlink.ask(_GET_ROUTE, body).payloads()
    oif = to_number(attributes_of(answer, _QUESTION.size).get(_OIF))
    found = home.change(lambda route: route.get_links(oif) if oif else ())
    if not found:
        raise LockstepError(f"{arrived.node} knows no way to {dst}")
    return str(next(iter(found)).get_attr("IFLA_IFNAME"))
