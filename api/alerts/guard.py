"""Which addresses a receiver may have: by default none inside the site, so that nobody reaches it through us (SSRF).

A name is looked up when a message is sent, and the connection goes to the very address that was checked: a name that
answers differently the second time (DNS rebinding) gains nothing.
"""

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from lockstep.errors import BadInput, ReceiverAway

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int], Sequence[str]]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
# Inside a site as well, yet global to some versions of Python: RFC 6890 (with Oracle's metadata), 3879, 7526, 9637.
_INSIDE = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "fec0::/10", "192.88.99.0/24", "3fff::/20")))
# Clouds answer here with credentials of the machine. Public by number (Alibaba) or inside a private network (AWS).
_METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "fd00:ec2::254")))


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the order of the system's preference."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ReceiverAway(f"{host} cannot be looked up: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def find_address(host: str, port: int, allow: Iterable[str], lookup: Lookup = resolve) -> str:
    """Return the first address of the host that may be connected to; BadInput says how to allow it."""
    addresses = lookup(host, port)
    rules = tuple(allow)
    for address in addresses:
        if is_allowed(host, address, rules):
            return address
    shown = addresses[0] if addresses else "nowhere"
    raise BadInput(
        f"{host} is {shown}, an address inside the site, and nothing is sent there unless allowed: "
        f"""set LOCKSTEP_ALERTS_ALLOW='["{shown}"]' (alerts.allow), or name the host or its network there"""
    )


def is_allowed(host: str, address: str, allow: Sequence[str]) -> bool:
    """Return whether an address is out in the world, or the settings allow it by network or by the host's name.

    >>> is_allowed("example.com", "93.184.216.34", ()), is_allowed("x", "127.0.0.1", ())
    (True, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if any(_fits(host, ip, rule) for rule in allow):
        return True
    return all(_is_public(each) for each in _meant_by(ip))


def _fits(host: str, ip: Ip, rule: str) -> bool:
    try:
        return ip in ipaddress.ip_network(rule)
    except ValueError:
        return fnmatchcase(host.lower().rstrip("."), rule.lower())


def _meant_by(ip: Ip) -> list[Ip]:
    """Return the address and the ones inside it, which is where its packets end."""
    if isinstance(ip, ipaddress.IPv4Address):
        return [ip]
    inner = [ip.ipv4_mapped, ip.sixtofour, ip.teredo[1] if ip.teredo else None]
    if ip in _NAT64:
        inner.append(ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF))
    if ip.ipv4_mapped:
        return [ip.ipv4_mapped]
    return [ip, *(each for each in inner if each is not None)]


def _is_public(ip: Ip) -> bool:
    is_inside = ip in _METADATA or any(ip in network for network in _INSIDE)
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not is_inside
