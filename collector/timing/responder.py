"""Answers other collectors who ask for the time: a thread with one UDP socket.

It answers only hosts of the topology, only questions sealed with the cluster's key, with as many bytes as it was
sent, and not more than a bounded number a second, of all and of each. Everything else gets no answer at all.
"""

import socket
import threading
from collections.abc import Callable

from collector.probing.addresses import AddressBook
from collector.probing.budget import PacketBudget
from collector.probing.sockets import SO_TIMESTAMPNS, arrival_ns
from collector.timing.estimate import Estimate
from collector.timing.wire import MESSAGE_BYTES, ClockWire, Reply
from lockstep.clock import Clock

CLOCK_PORT = 8641
_PER_S, _PER_HOST_S = 4_000.0, 32.0  # 1,000 hosts that each ask for a burst of eight at once wait no two seconds
_LOOK_S = 0.2  # between two looks whether to end


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
        nonce = self._wire.read_question(message) if host and len(message) == MESSAGE_BYTES else None
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
    """Runs until it is closed; `knowledge` says what is known of this clock, None while nothing is.

    `shift_ns` sets its clock wrong on purpose, for tests.
    """

    def __init__(
        self,
        wire: ClockWire,
        book: AddressBook,
        clock: Clock,
        knowledge: Callable[[], Estimate | None],
        port: int = CLOCK_PORT,
        shift_ns: int = 0,
    ) -> None:
        self._wire, self._clock, self._knowledge, self._shift_ns = wire, clock, knowledge, shift_ns
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
        """End the thread and close the socket."""
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        self._socket.settimeout(_LOOK_S)
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
        shift_ns = self._shift_ns
        sent_ns = max(self._clock.now_ns(), received_ns)
        reply = Reply(nonce, received_ns + shift_ns, sent_ns + shift_ns, known.offset_ns, known.error_ns)
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
