"""Asks another collector for the time, some questions in a row, and waits a bounded time for the answers."""

import secrets
import select
from itertools import islice

from collector.probing.sockets import receive_stamped
from collector.timing.estimate import Estimate, Exchange, estimate_offset
from collector.timing.responder import CLOCK_PORT, open_stamped
from collector.timing.wire import MOST_APART_NS, ClockWire, Reply
from lockstep.clock import NS_PER_S, Clock

_BURST = 8
_MOST_STRAYS = 64  # packets of strangers looked at while waiting


class ClockAsker:
    """Compares this host's clock with that of others."""

    def __init__(
        self, wire: ClockWire, clock: Clock, port: int = CLOCK_PORT, timeout_s: float = 0.2, burst: int = _BURST
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
