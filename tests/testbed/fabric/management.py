"""A second network beside the fabric: every host reaches this machine over a bridge that nothing shapes or breaks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from lockstep.errors import LockstepError
from tests.testbed.fabric.namespaces import Home

INTERFACE = "mgmt"
_RANGE = IPv4Network("198.18.0.0/15")  # RFC 2544: kept for measuring networks, so nobody's real network has it
_BITS = 24  # a subnet of 250 hosts for each fabric


@dataclass(frozen=True, slots=True)
class Management:
    prefix: str
    subnet: str
    hosts: tuple[str, ...]

    @property
    def bridge(self) -> str:
        return f"{self.prefix}-br"

    @property
    def head(self) -> str:
        return str(IPv4Network(self.subnet)[1])

    def address_of(self, host: str) -> str:
        return str(IPv4Network(self.subnet)[2 + self.hosts.index(host)])

    def port_of(self, host: str) -> str:
        return f"{self.prefix}-{self.hosts.index(host)}"


def choose_subnet(taken: Iterable[IPv4Address]) -> str:
    """Return a subnet in which none of the addresses lies.

    >>> choose_subnet([IPv4Address("198.18.0.1")])
    '198.18.1.0/24'
    """
    used = {IPv4Network((address, _BITS), strict=False) for address in taken if address in _RANGE}
    free = next((net for net in _RANGE.subnets(new_prefix=_BITS) if net not in used), None)
    if free is None:
        raise LockstepError(f"no subnet of {_RANGE} is free: the management networks of other fabrics have them all")
    return str(free)


def list_addresses(root: Home) -> list[IPv4Address]:
    found = root.change(lambda route: list(route.get_addr(family=2)))
    return [IPv4Address(each.get_attr("IFA_ADDRESS")) for each in found]


def set_state(home: Home, interface: str, state: str) -> None:
    home.change(lambda route: route.link("set", index=find_interface(route, interface), state=state))


def build_management(management: Management, root: Home, homes: Sequence[Home]) -> None:
    """Make the bridge and cable every host to it; `homes` are in the order of the hosts."""
    root.change(lambda route: _make_bridge(route, management))
    for host, home in zip(management.hosts, homes, strict=True):
        root.change(partial(_cable, management=management, host=host, namespace_fd=home.fd))
        home.change(partial(_set_up, address=management.address_of(host)))


def _make_bridge(route: Any, management: Management) -> None:
    route.link("add", ifname=management.bridge, kind="bridge")
    index = find_interface(route, management.bridge)
    route.addr("add", index=index, address=management.head, prefixlen=_BITS)
    route.link("set", index=index, state="up")


def _cable(route: Any, management: Management, host: str, namespace_fd: int) -> None:
    port = management.port_of(host)
    route.link("add", ifname=port, kind="veth", peer={"ifname": INTERFACE, "net_ns_fd": namespace_fd})
    index = find_interface(route, port)
    route.link("set", index=index, master=find_interface(route, management.bridge), state="up")


def _set_up(route: Any, address: str) -> None:
    index = find_interface(route, INTERFACE)
    route.addr("add", index=index, address=address, prefixlen=_BITS)
    route.link("set", index=index, state="up")


def find_interface(route: Any, name: str) -> int:
    """Return the index of an interface; LockstepError when it is not there."""
    found = route.link_lookup(ifname=name)
    if not found:
        raise LockstepError(f"there is no interface {name} any more")
    return int(found[0])
