"""The agent that path_shim asks where a destination's port is not known beforehand: it finds ports by probing.

At a unix address (SOCK_SEQPACKET). A question is one packet, `1 SOURCE DESTINATION DPORT`; the answer is ports to try
in their order (`4000,4001`), or `-` for none. A pair of NICs with several planned paths gets them by turns, one for
each connection that asks.
"""

import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import structlog

from collector.probes.packets import Arrival, Flow, Shot, build_packets, fit_token
from collector.probes.paths import AddressBook, PathFinder
from lockstep.errors import LockstepError, NotPresent
from lockstep.host_paths import PathChoice
from lockstep.topology import Topology

Send = Callable[[Sequence[Shot]], list[Arrival | None]]  # probes in, what became of each out
Ports = tuple[int, int]  # source and destination

# Those that Linux gives to sockets that ask for none; sockets with others are taken for no data connections here.
PORTS = range(32_768, 61_000)
PROBE_WAIT_S = 0.1  # for answers: a connection waits for half a second in all, and few switches are that slow
_TRIES = 2  # of a probe: under load one in some dozens gets lost
_AT_A_TIME = 48  # 12 for each of 4 ways: with fewer than 4 wanted, one round is enough nearly always
_ROUNDS = 4  # of probes for one connection, which waits
WANTED = 4  # one to use and some to spare, for ports that are busy or in TIME_WAIT


class PortProber:
    """Asks which way TCP takes from this host, port by port; used by one thread."""

    def __init__(self, topology: Topology, host: str, book: AddressBook, send: Send) -> None:
        self._host, self._book, self._send = host, book, send
        self._finder = PathFinder(topology, host)
        self._tokens = count()

    def prepare(self) -> None:
        """Load what makes packets, which takes a second, before anybody waits for it."""
        build_packets([Shot(Flow("", "", "", "tcp", 1, 1), "127.0.0.1", "127.0.0.1", 1, fit_token("tcp", 0))])

    def find_paths(self, nic: str, dst: str, dst_nic: str, ports: Sequence[Ports]) -> dict[Ports, tuple[str, ...]]:
        """Return the links that TCP between these ports takes now; ports whose probes got lost are left out.

        No packet arrives: each is sent to expire at the switches where there is a choice.
        """
        layers = self._finder.layers(nic, dst, dst_nic)
        if layers is None:
            raise NotPresent(f"there is no way over switches from {self._host}/{nic} to {dst}/{dst_nic}")
        found: dict[Ports, tuple[str, ...]] = {}
        for _ in range(_TRIES):
            flows = [Flow(nic, dst, dst_nic, "tcp", *each) for each in ports if each not in found]
            found |= self._probe(flows, layers.open)
        return found

    def _probe(self, flows: Sequence[Flow], ttls: Sequence[int]) -> dict[Ports, tuple[str, ...]]:
        shots = [self._aim(flow, ttl) for flow in flows for ttl in ttls]
        arrivals = self._send(shots) if shots else []
        found = {}
        for number, flow in enumerate(flows):
            path = self._finder.resolve(flow, self._name(arrivals[number * len(ttls) : (number + 1) * len(ttls)]))
            if path and path.is_complete:
                found[flow.sport, flow.dport] = path.links
        return found

    def _aim(self, flow: Flow, ttl: int) -> Shot:
        source = self._book.address_of(self._host, flow.src_nic)
        target = self._book.address_of(flow.dst, flow.dst_nic)
        if source is None or target is None:
            raise NotPresent(f"an address of {self._host}/{flow.src_nic} or {flow.dst}/{flow.dst_nic} is not known")
        return Shot(flow, source, target, ttl, fit_token("tcp", next(self._tokens)))

    def _name(self, arrivals: Sequence[Arrival | None]) -> list[str]:
        ends = (self._book.end_at(each.responder) for each in arrivals if each and each.kind == "expired")
        return [end for end in ends if end is not None]


class PortFinder:
    """Finds ports for connections of this host; never gives the same port twice while it is remembered."""

    def __init__(self, prober: PortProber, seed: int, ports: range = PORTS) -> None:
        self._prober, self._ports = prober, ports
        self._random = Random(seed)  # noqa: S311  # ports to try are no secret
        self._given: dict[int, None] = {}

    def find(self, nic: str, dst: str, dst_nic: str, dport: int, links: Sequence[str]) -> tuple[int, ...]:
        """Return ports from which a connection takes these links; empty when no such port was found."""
        found: list[int] = []
        for _ in range(_ROUNDS):
            drawn = self._random.sample(self._ports, _AT_A_TIME)
            tried = [(port, dport) for port in drawn if port not in self._given]
            paths = self._prober.find_paths(nic, dst, dst_nic, tried)
            found += [sport for (sport, _), path in paths.items() if set(links) <= set(path)]
            if len(found) >= WANTED:
                break
        self._remember(found[:WANTED])
        return tuple(found[:WANTED])

    def _remember(self, ports: Sequence[int]) -> None:
        """Note what was given; once half of all ports are, the oldest are free again."""
        self._given |= dict.fromkeys(ports)
        for port in list(self._given)[: max(0, len(self._given) - len(self._ports) // 2)]:
            del self._given[port]


_log = structlog.get_logger("paths")

Choices = Callable[[], Sequence[PathChoice]]  # what this host is told now

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

    def __init__(self, finder: PortFinder, choices: Choices) -> None:
        self._finder, self._choices = finder, choices
        self._answers: Counter[tuple[str, str]] = Counter()
        self.answered = self.refused = 0

    def answer(self, question: bytes) -> bytes:
        ports = self._find(question.decode(errors="replace").split(" "))
        self.answered += bool(ports)
        self.refused += not ports
        return write_ports(ports)

    def _find(self, words: Sequence[str]) -> tuple[int, ...]:
        if len(words) != 4 or words[0] != VERSION or not words[3].isdigit():
            return ()
        source, destination, dport = words[1], words[2], int(words[3])
        ends = (source, destination, "tcp")
        choices = [choice for choice in self._choices() if (choice.source, choice.destination, choice.proto) == ends]
        if not choices or not 0 < dport < 65_536:
            return ()
        number = self._answers[source, destination]
        self._answers[source, destination] += 1
        choice = choices[number % len(choices)]
        try:
            return self._finder.find(choice.nic, choice.dst, choice.dst_nic, dport, choice.links)
        except (LockstepError, OSError) as error:
            _log.warning("no port was found for a planned path", connection=choice.connection, reason=str(error))
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
