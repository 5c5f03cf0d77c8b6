"""The stand-in for libibverbs.so.1 (RDMA verbs without a NIC): built here, and put into an environment.

A program that is started with it finds a device `soft_eth0` for each interface `eth0` of its network namespace, whose
queue pairs talk RoCE v2 packets over UDP sockets. It keeps what a kernel would show of them below `sysfs`.
"""

import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.fabric.namespaces import Home
from tests.testbed.making import make

SOURCES = Path(__file__).resolve().parent
HEADER = Path("/usr/include/infiniband/verbs.h")
ROCE_PORT = 4791
_ETH_P_IP, _UDP = 0x0800, 17
_RCVBUFFORCE = 33  # asm-generic/socket.h; Python has no name for it


def build_stand_in(folder: Path) -> "StandIn":
    """Build the library and our verbs program `exchange` in a folder; NotPresent without what that needs."""
    make("the verbs stand-in", SOURCES, folder, "all", needs=HEADER, brought_by="libibverbs-dev")
    return StandIn(folder)


@dataclass(frozen=True, slots=True)
class StandIn:
    folder: Path

    @property
    def exchange(self) -> str:
        return str(self.folder / "exchange")

    def environment(self, sysfs: Path | None = None) -> dict[str, str]:
        """Return our environment with the stand-in in it; `sysfs`: where its /sys/class/infiniband is kept."""
        kept = {"LOCKSTEP_SOFTVERBS_SYSFS": str(sysfs)} if sysfs else {}
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), **kept}


def port_of_label(label: int) -> int:
    """Return the UDP source port that Linux derives from a flow label (include/rdma/ib_verbs.h).

    >>> port_of_label(0x12345)
    58177
    """
    return (label & 0x3FFF) ^ ((label & 0xFC000) >> 14) | 0xC000


def default_label(local_qpn: int, remote_qpn: int) -> int:
    """Return the label that stands for none: both ends come to the same one."""
    mixed = local_qpn * remote_qpn
    mixed ^= mixed >> 20
    mixed ^= mixed >> 40
    return mixed & 0xFFFFF


@contextmanager
def captured_roce(home: Home) -> Iterator[Counter[tuple[str, int]]]:
    """Count the RoCE v2 packets that pass a namespace by source address and port; filled in when the block ends."""
    seen: Counter[tuple[str, int]] = Counter()
    with home.run(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))) as packets:
        packets.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 64 << 20)
        packets.setblocking(False)
        yield seen
        with suppress(BlockingIOError):
            while True:
                if source := _roce_source(packets.recv(64)):
                    seen[source] += 1


def _roce_source(packet: bytes) -> tuple[str, int] | None:
    header = (packet[0] & 0xF) * 4
    if packet[9] != _UDP or len(packet) < header + 4:
        return None
    sport, dport = struct.unpack_from("!HH", packet, header)
    return (socket.inet_ntoa(packet[12:16]), sport) if dport == ROCE_PORT else None
