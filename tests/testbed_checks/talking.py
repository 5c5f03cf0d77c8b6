"""Sockets inside a host's namespace, for tests that talk over a fabric, and what is left of one on this machine."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyroute2 import IPRoute

from tests.testbed.fabric import ownership
from tests.testbed.fabric.cgroups import list_groups
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.namespaces import list_names

Nic = tuple[str, str]
_IP_RECVERR = 11  # linux/in.h
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_ANSWER_S = 10.0
_AT_ONCE = 50  # packets


@contextmanager
def datagrams(fabric: Fabric, nic: Nic, port: int = 0) -> Iterator[socket.socket]:
    made = fabric.homes[nic[0]].run(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with made:
        made.bind((fabric.address_of(*nic), port))
        made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 16 << 20)  # nothing is lost because we are slow
        made.settimeout(_ANSWER_S)
        yield made


def can_talk(fabric: Fabric, src: Nic, dst: Nic, patience_s: float = _ANSWER_S) -> bool:
    with datagrams(fabric, src) as here, datagrams(fabric, dst) as there:
        here.settimeout(patience_s)
        there.settimeout(patience_s)
        try:
            here.sendto(b"ask", there.getsockname())
            there.sendto(b"answer", there.recvfrom(100)[1])
            return here.recv(100) == b"answer"
        except OSError:
            return False


def count_arrivals(fabric: Fabric, src: Nic, dst: Nic, packets: int) -> int:
    """Send packets one after the other, few at a time, and return how many arrive."""
    arrived = 0
    with datagrams(fabric, src) as here, datagrams(fabric, dst) as there:
        for sent in range(packets):
            here.sendto(b"x", there.getsockname())
            if sent % _AT_ONCE == _AT_ONCE - 1:
                arrived += _drain(there, patience_s=0.0)
        return arrived + _drain(there, patience_s=0.5)  # longer than anything is on its way here


def count_held_arrivals(fabric: Fabric, src: Nic, dst: Nic, packets: int) -> int:
    """Return the same where a process holds packets: the next few leave when it has let go of those before."""
    arrived = 0
    with datagrams(fabric, src) as here, datagrams(fabric, dst) as there:
        for begin in range(0, packets, _AT_ONCE):
            for _ in range(_AT_ONCE):
                here.sendto(b"x", there.getsockname())
            arrived += _count_until(f"mark {begin}".encode(), here, there)
    return arrived


def _count_until(mark: bytes, here: socket.socket, there: socket.socket) -> int:
    """Send a mark until one arrives, as it may be lost, and return how many packets came before it."""
    arrived = 0
    there.settimeout(0.2)
    for _ in range(300):
        here.sendto(mark, there.getsockname())
        with suppress(TimeoutError):
            while (got := there.recv(100)) != mark:
                arrived += got == b"x"
            return arrived
    raise AssertionError(f"{mark!r} does not arrive")


def find_answerers(fabric: Fabric, src: Nic, dst: Nic, port: int) -> list[str]:
    """Return the addresses from which switches answer packets whose time to live ends there, hop by hop."""
    found = []
    for hops in (1, 2, 3):
        with datagrams(fabric, src, port) as probe:
            probe.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hops)
            probe.sendto(b"x", (fabric.address_of(*dst), 33_434))
            with suppress(OSError):
                probe.recv(100)  # returns with an error when the answer is there
            _, extra, _, _ = probe.recvmsg(100, 500, socket.MSG_ERRQUEUE)
            found.append(socket.inet_ntoa(extra[0][2][20:24]))  # sock_extended_err, then who was offended
    return found


def _drain(receiver: socket.socket, patience_s: float) -> int:
    receiver.settimeout(patience_s)
    arrived = 0
    with suppress(BlockingIOError, TimeoutError):
        while receiver.recv(100):
            arrived += 1
    return arrived


def find_remains(prefix: str) -> list[str]:
    with IPRoute() as route:
        interfaces = [link.get_attr("IFLA_IFNAME") for link in route.get_links()]
    names = [*list_names(), *interfaces, *list_groups(), *os.listdir(ownership.FOLDER)]
    return [name for name in names if ownership.prefix_of(name) == prefix]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
