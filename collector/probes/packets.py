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

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address
from socket import inet_aton
from typing import Literal

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


_TCP, _UDP = 6, 17
_UNREACHABLE, _EXPIRED = 3, 11
_PORT_UNREACHABLE = 3
_IP_HEADER, _ICMP_HEADER, _QUOTED = 20, 8, 8  # an ICMP error quotes at least 8 bytes behind the IP header (RFC 792)
_RESET = 0x04

Kind = Literal["expired", "reached", "refused"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Somebody's word about one of our packets; believed only when `key` is that of a packet on its way."""

    key: tuple[str, int, int, int, int]  # target, IP protocol, source and destination port, token
    responder: str
    kind: Kind  # the TTL ran out; the destination has it; somebody on the way will not pass it on


@dataclass(frozen=True, slots=True)
class Arrival:
    """What became of a shot that was sent."""

    sent_ns: int
    rtt_ns: int | None = None  # None: nothing came back in time
    responder: str = ""
    kind: Kind | None = None


class Batch:
    """Shots on their way, and what has come back for them so far."""

    def __init__(self, shots: Sequence[Shot], timeout_ns: int) -> None:
        self._timeout_ns = timeout_ns
        self._waiting = {shot.key: number for number, shot in enumerate(shots)}
        self._keys = [shot.key for shot in shots]
        self.arrivals: list[Arrival | None] = [None] * len(shots)  # None: not sent

    @property
    def is_complete(self) -> bool:
        return not self._waiting

    def note_sent(self, number: int, sent_ns: int) -> None:
        self.arrivals[number] = Arrival(sent_ns)

    def note_unsent(self, number: int) -> None:
        self.arrivals[number] = None
        self._waiting.pop(self._keys[number], None)

    def take(self, answers: Iterable[tuple[Answer, int]]) -> None:
        """Note answers with their times; those that are not ours, forged or come twice change nothing."""
        for answer, at_ns in answers:
            number = self._waiting.get(answer.key)
            sent = self.arrivals[number] if number is not None else None
            if number is None or sent is None:
                continue
            del self._waiting[answer.key]
            # A clock that is set in between makes nonsense of the difference, so it is kept to what is possible.
            rtt_ns = min(max(at_ns - sent.sent_ns, 0), self._timeout_ns)
            self.arrivals[number] = Arrival(sent.sent_ns, rtt_ns, answer.responder, answer.kind)


def read_icmp(packet: bytes) -> Answer | None:
    """Return the answer in an IP packet with an ICMP error, or None when it is none or cut short."""
    outer = _header_bytes(packet, 0)
    inner_at = outer + _ICMP_HEADER
    inner = _header_bytes(packet, inner_at) if outer else 0
    if not inner or len(packet) < inner_at + inner + _QUOTED:
        return None
    kind, code = packet[outer], packet[outer + 1]
    protocol = packet[inner_at + 9]
    if kind not in (_UNREACHABLE, _EXPIRED) or protocol not in (_TCP, _UDP):
        return None
    sport, dport, seq = struct.unpack_from("!HHI", packet, inner_at + inner)
    token = seq if protocol == _TCP else struct.unpack_from("!H", packet, inner_at + 4)[0]
    target = str(IPv4Address(packet[inner_at + 16 : inner_at + 20]))
    responder = str(IPv4Address(packet[12:16]))
    return Answer((target, protocol, sport, dport, token), responder, _meaning(kind, code, responder == target))


def read_reset(packet: bytes) -> Answer | None:
    """Return the answer in an IP packet with a TCP reset, or None when it is none or cut short."""
    header = _header_bytes(packet, 0)
    if not header or packet[9] != _TCP or len(packet) < header + 20:
        return None
    sport, dport, seq, _, _, flags = struct.unpack_from("!HHIIBB", packet, header)
    if not flags & _RESET:
        return None
    responder = str(IPv4Address(packet[12:16]))
    return Answer((responder, _TCP, dport, sport, seq), responder, "reached")


def _meaning(kind: int, code: int, is_from_target: bool) -> Kind:
    if kind == _EXPIRED:
        return "expired"
    return "reached" if is_from_target and code == _PORT_UNREACHABLE else "refused"


def _header_bytes(packet: bytes, at: int) -> int:
    """Return the length of the IPv4 header at a place, or 0 where there is none."""
    if len(packet) < at + _IP_HEADER or packet[at] >> 4 != 4:
        return 0
    length = (packet[at] & 15) * 4
    return length if length >= _IP_HEADER and len(packet) >= at + length + _ICMP_HEADER else 0
