"""How far two clocks are apart: asks another collector for the time, and waits a bounded time for the answers.

A packet takes some time, never less than none. So each exchange bounds the difference from both sides, by its two
ways; the bounds of a burst together are at least as tight as those of its shortest round trip alone, half of which is
the usual bound (RFC 5905). Nothing is assumed about both ways taking equally long.
"""

import hashlib
import hmac
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import islice

from collector.probes.paths import AddressBook
from collector.probes.schedule import PacketBudget
from collector.probes.sockets import SO_TIMESTAMPNS, arrival_ns, receive_stamped
from lockstep.clock import NS_PER_S, Clock
from lockstep.topology import Topology, TopologyIndex

_MAGIC, _VERSION = b"LSCK", 1
_QUESTION, _ANSWER = 1, 2
_BODY = struct.Struct("!4sBBxxQ8sqqqq")  # magic, version, kind, nonce, reference, t2, t3, offset, error
_CODE_BYTES = 16  # of HMAC-SHA256; half of it leaves a forger 2^128 tries
MESSAGE_BYTES = _BODY.size + _CODE_BYTES
_LAST_NS = 1 << 62  # the year 2116; with these two, sums of a time and an offset still fit into 64 bits
MOST_APART_NS = 1 << 61  # 73 years
_DRIFT_PPM = 200  # IEEE 802.3 allows the oscillators of a network card 100 parts in a million, each of the two


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer: sent and returned on our clock, received and answered on the other's."""

    asked_ns: int
    received_ns: int
    answered_ns: int
    returned_ns: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """One clock minus another; the truth is within `error_ns` of `offset_ns`."""

    offset_ns: int
    error_ns: int

    def aged(self, age_ns: int) -> "Estimate":
        """Return what is still known after a while in which both clocks ran freely."""
        return Estimate(self.offset_ns, self.error_ns + max(0, age_ns) * _DRIFT_PPM // 1_000_000)

    def plus(self, other: "Estimate") -> "Estimate":
        """Return our clock minus a third one, when the other's difference to that is known."""
        return Estimate(self.offset_ns + other.offset_ns, self.error_ns + other.error_ns)


EXACT = Estimate(0, 0)  # what the reference knows about itself


def estimate_offset(burst: Iterable[Exchange]) -> Estimate | None:
    """Return our clock minus the other's, or None without an answer or when a clock was set during the burst.

    >>> estimate_offset([Exchange(asked_ns=100, received_ns=60, answered_ns=70, returned_ns=130)])
    Estimate(offset_ns=50, error_ns=10)
    """
    answered = list(burst)
    if not answered:
        return None
    # received = asked - offset + way there, and returned = answered + offset + way back, both ways >= 0
    lowest_ns = max(each.asked_ns - each.received_ns for each in answered)
    highest_ns = min(each.returned_ns - each.answered_ns for each in answered)
    if lowest_ns > highest_ns:
        return None
    # Half of the width rounded up, so that the bound holds although the offset is rounded down.
    return Estimate((lowest_ns + highest_ns) // 2, (highest_ns - lowest_ns + 1) // 2)


def choose_elders(topology: Topology, host: str, reference: str) -> list[str]:
    """Return whom a host asks for the time, best first: the reference, then the first host of its leaf.

    The second stands in where the way to the first is broken; what it knows has aged, and its bound says so.
    """
    if host == reference:
        return []
    first = _first_of_leaf(topology, host)
    return [reference] if first in (None, host, reference) else [reference, str(first)]


def _first_of_leaf(topology: Topology, host: str) -> str | None:
    index = TopologyIndex(topology)
    nics: Sequence[str] = [nic.id for nic in index.nics_of(host)]
    leaf = next((leaf for nic in nics if (leaf := index.leaf_of(host, nic))), None)
    if leaf is None:
        return None
    return next(
        node.id for node in topology.hosts if any(index.leaf_of(node.id, nic.id) == leaf for nic in node.nics)
    )


@dataclass(frozen=True, slots=True)
class Reply:
    """What a responder says."""

    nonce: int
    received_ns: int  # on the responder's clock
    sent_ns: int
    offset_ns: int  # the responder's clock minus the reference
    error_ns: int  # bound on the error of that


class ClockWire:
    """Reads and writes messages of one cluster: those that share key and reference clock."""

    def __init__(self, key: bytes, reference: str) -> None:
        self._key = key
        self._reference = hashlib.sha256(reference.encode()).digest()[:8]

    def write_question(self, nonce: int) -> bytes:
        return self._seal(_QUESTION, nonce, 0, 0, 0, 0)

    def read_question(self, message: bytes) -> int | None:
        """Return the nonce of a question that is meant for us, or None."""
        fields = self._unseal(_QUESTION, message)
        return fields[0] if fields else None

    def write_reply(self, reply: Reply) -> bytes:
        return self._seal(_ANSWER, *astuple(reply))

    def read_reply(self, message: bytes) -> Reply | None:
        """Return an answer that is meant for us and makes sense, or None."""
        fields = self._unseal(_ANSWER, message)
        if fields is None:
            return None
        reply = Reply(*fields)
        are_times = 0 <= reply.received_ns <= reply.sent_ns <= _LAST_NS
        is_offset = abs(reply.offset_ns) <= MOST_APART_NS and 0 <= reply.error_ns <= MOST_APART_NS
        return reply if are_times and is_offset else None

    def _seal(self, kind: int, nonce: int, *times: int) -> bytes:
        body = _BODY.pack(_MAGIC, _VERSION, kind, nonce, self._reference, *times)
        return body + self._code(body)

    def _unseal(self, kind: int, message: bytes) -> list[int] | None:
        if len(message) != MESSAGE_BYTES:
            return None
        body, code = message[: _BODY.size], message[_BODY.size :]
        if not hmac.compare_digest(code, self._code(body)):
            return None
        magic, version, found, nonce, reference, *times = _BODY.unpack(body)
        if (magic, version, found, reference) != (_MAGIC, _VERSION, kind, self._reference):
            return None
        return [nonce, *times]

    def _code(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")[:_CODE_BYTES]


CLOCK_PORT = 8641
_PER_S, _PER_HOST_S = 4_000.0, 32.0  # 1,000 hosts that each ask for a burst of eight at once wait no two seconds
_POLL_S = 0.2  # between two looks whether to end


class ClockGuard:
    """Decides what a question gets: a pure part, apart from its memory of who asked how much (one entry a host)."""

    def __init__(self, wire: ClockWire, book: AddressBook) -> None:
        self._wire, self._book = wire, book
        self._all = PacketBudget(_PER_S)
        self._each: dict[str, PacketBudget] = {}
        self.refused = 0  # questions that got no answer

    def admit(self, message: bytes, address: str, now_ns: int) -> int | None:
        """Return the nonce of a question that deserves an answer, or None."""
        host = self._book.host_at(address)
        nonce = self._wire.read_question(message) if host else None
        if host is None or nonce is None or not self._may_ask(host, now_ns):
            self.refused += 1
            return None
        return nonce

    def _may_ask(self, host: str, now_ns: int) -> bool:
        budget = self._each.setdefault(host, PacketBudget(_PER_HOST_S))
        budget.refill(now_ns)
        self._all.refill(now_ns)
        return budget.take() and self._all.take()


class ClockResponder:
    """Runs until it is closed; `knowledge` says what is known of this clock, None while nothing is."""

    def __init__(
        self,
        wire: ClockWire,
        book: AddressBook,
        clock: Clock,
        knowledge: Callable[[], Estimate | None],
        port: int = CLOCK_PORT,
    ) -> None:
        self._wire, self._clock, self._knowledge = wire, clock, knowledge
        self._guard = ClockGuard(wire, book)
        self._socket = open_stamped(port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="clock-responder", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    @property
    def refused(self) -> int:
        return self._guard.refused

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        self._socket.settimeout(_POLL_S)
        while not self._stop.is_set():
            try:
                # One byte more than a question has, so that a longer one is seen to be longer.
                message, notes, _, sender = self._socket.recvmsg(MESSAGE_BYTES + 1, 64)
                self._answer(message, arrival_ns(notes) or self._clock.now_ns(), sender)
            except OSError:  # nobody asked, or an error that an earlier answer caused
                continue

    def _answer(self, message: bytes, received_ns: int, sender: tuple[str, int]) -> None:
        nonce = self._guard.admit(message, sender[0], self._clock.now_ns())
        known = self._knowledge()
        if nonce is None or known is None:
            return
        sent_ns = max(self._clock.now_ns(), received_ns)
        reply = Reply(nonce, received_ns, sent_ns, known.offset_ns, known.error_ns)
        self._socket.sendto(self._wire.write_reply(reply), sender)


def open_stamped(port: int = 0) -> socket.socket:
    """Return a UDP socket whose packets carry the kernel's time of arrival."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        opened.bind(("0.0.0.0", port))  # noqa: S104  # a host has a NIC per rail; strangers get no answer
    except OSError:
        opened.close()
        raise
    return opened


_MOST_STRAYS = 64  # packets of strangers looked at while waiting


class ClockAsker:
    """Compares this host's clock with that of others."""

    def __init__(
        self, wire: ClockWire, clock: Clock, port: int = CLOCK_PORT, timeout_s: float = 0.2, burst: int = 8
    ) -> None:
        self._wire, self._clock, self._port, self._burst = wire, clock, port, burst
        self._timeout_ns = int(timeout_s * NS_PER_S)
        self._socket = open_stamped()
        self._socket.setblocking(False)
        self._answer = select.poll()  # select() refuses descriptors above 1,024, which a busy agent may have
        self._answer.register(self._socket, select.POLLIN)

    def close(self) -> None:
        self._socket.close()

    def ask(self, address: str) -> Estimate | None:
        """Return our clock minus the reference, by way of the one asked; None when it does not answer.

        A host that does not answer costs one time-out, not one for each question.
        """
        answers: list[tuple[Exchange, Reply]] = []
        for _ in range(self._burst):
            answer = self._ask_once(address)
            if answer is None:
                break
            answers.append(answer)
        apart = estimate_offset(exchange for exchange, _ in answers)
        if apart is None:
            return None
        last = answers[-1][1]
        found = apart.plus(Estimate(last.offset_ns, last.error_ns))
        # Whoever has the key can still talk nonsense; what nobody could pass on is not kept.
        return found if max(abs(found.offset_ns), found.error_ns) <= MOST_APART_NS else None

    def _ask_once(self, address: str) -> tuple[Exchange, Reply] | None:
        nonce = secrets.randbits(64)
        question = self._wire.write_question(nonce)
        asked_ns = self._clock.now_ns()
        try:
            self._socket.sendto(question, (address, self._port))
        except OSError:
            return None
        deadline_ns = self._clock.monotonic_ns() + self._timeout_ns
        while (left_ns := deadline_ns - self._clock.monotonic_ns()) > 0:
            if not self._answer.poll(left_ns / 1e6):
                return None
            for message, returned_ns in islice(receive_stamped(self._socket, self._clock), _MOST_STRAYS):
                reply = self._wire.read_reply(message)
                if reply and reply.nonce == nonce:
                    return Exchange(asked_ns, reply.received_ns, reply.sent_ns, returned_ns), reply
        return None
