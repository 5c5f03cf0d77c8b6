"""The agent that path_shim asks where a destination's port is not known beforehand: it finds ports by probing.

At a unix address (SOCK_SEQPACKET). A question is one packet, `1 SOURCE DESTINATION DPORT`; the answer is ports to try
in their order (`4000,4001`), or `-` for none. A pair of NICs with several planned roads gets them by turns, one for
each connection that asks.
"""

import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from collector.paths.ports import PortFinder
from lockstep.errors import LockstepError
from lockstep.host_paths import PathChoice

_log = structlog.get_logger("paths")

Roads = Callable[[], Sequence[PathChoice]]  # what this host is told now

VERSION = "1"
_NONE = b"-"
_MOST_BYTES = 1024
_QUESTION_S = 0.5  # a shim that has sent no question by then is gone
_MODE = 0o666  # jobs of all users ask


class AnswerServer:
    """Answers whoever asks, one after the other; `close` ends it."""

    def __init__(self, server: socket.socket, answer: Callable[[bytes], bytes]) -> None:
        self._server, self._answer = server, answer
        self._thread = threading.Thread(target=self._serve, name="path-agent", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                asker, _ = self._server.accept()
            except OSError:
                return
            with asker, suppress(OSError):  # it did not wait
                asker.settimeout(_QUESTION_S)
                asker.send(self._answer(asker.recv(_MOST_BYTES)))


class PathAgent:
    """Knows the answers of one host."""

    def __init__(self, finder: PortFinder, roads: Roads) -> None:
        self._finder, self._roads = finder, roads
        self._turns: Counter[tuple[str, str]] = Counter()
        self.answered = self.refused = 0

    def answer(self, question: bytes) -> bytes:
        """Return the answer to a question, whatever it is."""
        ports = self._find(question.decode(errors="replace").split(" "))
        self.answered += bool(ports)
        self.refused += not ports
        return write_ports(ports)

    def _find(self, words: Sequence[str]) -> tuple[int, ...]:
        if len(words) != 4 or words[0] != VERSION or not words[3].isdigit():
            return ()
        source, destination, dport = words[1], words[2], int(words[3])
        ends = (source, destination, "tcp")
        roads = [road for road in self._roads() if (road.source, road.destination, road.proto) == ends]
        if not roads or not 0 < dport < 65_536:
            return ()
        turn = self._turns[source, destination]
        self._turns[source, destination] += 1
        road = roads[turn % len(roads)]
        try:
            return self._finder.find(road.nic, road.dst, road.dst_nic, dport, road.links)
        except (LockstepError, OSError) as error:
            _log.warning("no port was found for a planned path", connection=road.connection, reason=str(error))
            return ()


def write_ports(ports: Sequence[int]) -> bytes:
    """Return an answer: ports in their order, or that there is none."""
    return ",".join(map(str, ports)).encode() or _NONE


def listen(address: str) -> socket.socket:
    """Return a socket that listens at a path, which is replaced, or at an abstract name such as @lockstep."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if address.startswith("@"):
        server.bind("\0" + address[1:])
    else:
        path = Path(address)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server.bind(address)
        path.chmod(_MODE)
    server.listen(64)
    return server
