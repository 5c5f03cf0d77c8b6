"""Probe packets as bytes: scapy makes one of a kind, arrays make the others, which differ in few fields.

What a probe looks like to the fabric is the flow that it stands for, because the protocol is part of the hash:

- `roce`: UDP to 4791 with a RoCEv2 transport header and a right ICRC, so that a NIC that sees one after all counts no
  error; its queue pair number belongs to nobody. It is sent to expire at the last switch, because RDMA hardware
  answers nothing.
- `tcp`: an ACK that belongs to no connection. A host answers it with a reset, keeps no state as for a SYN, logs no
  half-open connection, and its ICMP limits do not apply. Inside a live connection it is out of the window, and
  dropped.
- `udp`: any other port. Hosts limit the answers (port unreachable), so it also expires at the last switch.
"""

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from socket import inet_aton

import numpy as np
import numpy.typing as npt

ROCE_PORT = 4791  # assigned to RoCEv2 by IANA
PROTOCOLS = {"tcp": 6, "udp": 17, "roce": 17}

_ID, _TTL, _ADDRESSES, _PORTS = slice(4, 6), 8, slice(12, 20), slice(20, 22)
_TCP_SEQ, _TCP_ACK, _TCP_SUM = slice(24, 28), slice(28, 32), slice(36, 38)
_NOBODYS_QP = 0xFFFFFF  # the number of multicast, to which reliable traffic is never addressed
# Bytes that may change on the way count as all ones in the ICRC: type of service, TTL, both checksums, and the byte
# with the congestion marks of the transport header (InfiniBand Architecture, annex A17).
_VARIANT = [1, 8, 10, 11, 26, 27, 32]
_ICRC_BYTES = 4
_SEND_ONLY = 0x04  # of a reliable connection

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Flow:
    """What decides the way: NICs, protocol and ports."""

    src_nic: str
    dst: str
    dst_nic: str
    proto: str
    sport: int
    dport: int


@dataclass(frozen=True, slots=True)
class Shot:
    """One packet to send."""

    flow: Flow
    source: str  # addresses
    target: str
    ttl: int
    token: int  # by which its answer is known: 32 bits in TCP, otherwise the 16 bits of the IP identification

    @property
    def key(self) -> tuple[str, int, int, int, int]:
        """What an answer repeats of this packet."""
        return self.target, PROTOCOLS[self.flow.proto], self.flow.sport, self.flow.dport, self.token


def fit_token(proto: str, number: int) -> int:
    """Return a number as a token of this protocol; numbers that follow each other give different ones.

    Its lower half is the IP identification, and never 0, because the kernel replaces that.
    """
    upper, lower = divmod(number, 0xFFFF)
    return (upper % (1 << 16) << 16 if proto == "tcp" else 0) | (lower + 1)


def build_packets(shots: Sequence[Shot]) -> list[bytes]:
    """Return each shot as an IP packet; the kernel fills in the IP checksum. Loads scapy at its first call."""
    packets: list[bytes] = [b""] * len(shots)
    kinds: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number, shot in enumerate(shots):
        kinds[shot.flow.proto, shot.flow.dport].append(number)
    for (proto, dport), numbers in kinds.items():
        made = _finish(proto, _template(proto, dport), [shots[number] for number in numbers])
        for number, packet in zip(numbers, made, strict=True):
            packets[number] = packet.tobytes()
    return packets


@lru_cache(maxsize=4096)  # at most 200 bytes each
def _template(proto: str, dport: int) -> bytes:
    # 23 MB and half a second, which only hosts that probe shall pay.
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import IP, TCP, UDP
    from scapy.packet import Raw

    ip = IP(src="0.0.0.0", dst="0.0.0.0", ttl=64, id=0)  # noqa: S104  # filled in later
    udp = UDP(sport=0, dport=dport, chksum=0)
    behind = {
        "tcp": TCP(sport=0, dport=dport, flags="A", seq=0, ack=0, window=0),
        "udp": udp / Raw(b"lockstep"),
        "roce": udp / BTH(opcode=_SEND_ONLY, dqpn=_NOBODYS_QP),
    }
    return bytes(ip / behind[proto])


def _finish(proto: str, template: bytes, shots: Sequence[Shot]) -> Bytes:
    """Return the template once per shot, with all that the shot says and the checksums that follow from it."""
    packets = np.tile(np.frombuffer(template, np.uint8), (len(shots), 1))
    packets[:, _TTL] = [shot.ttl for shot in shots]
    packets[:, _ID] = _big_endian([shot.token & 0xFFFF for shot in shots], 2)
    packets[:, _PORTS] = _big_endian([shot.flow.sport for shot in shots], 2)
    ends = b"".join(inet_aton(address) for shot in shots for address in (shot.source, shot.target))
    packets[:, _ADDRESSES] = np.frombuffer(ends, np.uint8).reshape(-1, 8)
    if proto == "tcp":
        _finish_tcp(packets, shots)
    elif proto == "roce":
        _finish_roce(packets)
    return packets


def _finish_tcp(packets: Bytes, shots: Sequence[Shot]) -> None:
    # A reset repeats the acknowledged number, an ICMP error the sequence number.
    packets[:, _TCP_SEQ] = packets[:, _TCP_ACK] = _big_endian([shot.token for shot in shots], 4)
    packets[:, _TCP_SUM] = 0
    words = packets[:, 12:40].copy().view(">u2").sum(axis=1, dtype=np.uint32)  # addresses and TCP header
    total = words + PROTOCOLS["tcp"] + 20
    total = (total >> 16) + (total & 0xFFFF)
    total = (total >> 16) + (total & 0xFFFF)
    packets[:, _TCP_SUM] = _big_endian(~total & 0xFFFF, 2)


def _finish_roce(packets: Bytes) -> None:
    covered = packets[:, :-_ICRC_BYTES].copy()
    covered[:, _VARIANT] = 0xFF
    sums = [zlib.crc32(b"\xff" * 8 + row.tobytes()) for row in covered]  # eight bytes stand for an InfiniBand header
    packets[:, -_ICRC_BYTES:] = np.array(sums, "<u4").view(np.uint8).reshape(-1, 4)


def _big_endian(values: Sequence[int] | npt.NDArray[np.uint32], width: int) -> Bytes:
    return np.asarray(values).astype(f">u{width}").view(np.uint8).reshape(-1, width)
