"""What came back: ICMP errors and TCP resets, read from raw packets that anyone may have sent, and whose they are."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal

from collector.probing.packets import Shot

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
