"""The agent that the shim asks where a destination's port is not known beforehand: it finds ports by probing.

One per host, at an abstract unix address in the host's network namespace. A question is one packet, `1 SOURCE
DESTINATION DPORT`; the answer is ports to try in their order (`4000,4001`), or `-` for none.
"""

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lockstep.errors import LockstepError
from testbed.fabric.fabric import Fabric
from testbed.paths.flows import Nic
from testbed.paths.ports import PortFinder
from testbed.paths.shim import AGENT

PairWays = Mapping[tuple[Nic, Nic], Sequence[str]]  # links from one NIC to another

_MOST_BYTES = 1024
_NONE = b"-"
_ANSWER_S = 0.5  # a shim that has sent no question by then is gone


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that was answered."""

    src: Nic
    dst: Nic
    dport: int
    ports: tuple[int, ...]
    took_s: float


class PathAgent:
    """Answers for one host from a plan that says which links lead from NIC to NIC; the end of the block ends it.

    Where the plan knows the way back, too, ports are sought whose answers take that: in a ring that sends in one
    direction the heavier way may be that of the side which accepts. A real agent would have the peer's probe it.
    """

    def __init__(self, fabric: Fabric, host: str, finder: PortFinder, plan: PairWays) -> None:
        self._fabric, self._host, self._finder, self._plan = fabric, host, finder, plan
        nics = [(node.id, nic) for node in fabric.topology.hosts for nic in node.nics]
        self._nic_at: dict[str, Nic] = {nic.address: (node, nic.id) for node, nic in nics if nic.address}
        self.asked: list[Asked] = []
        self._server = fabric.homes[host].run(_listen)
        self._thread = threading.Thread(target=self._serve, name=f"agent-{host}")
        self._thread.start()

    def __enter__(self) -> "PathAgent":
        return self

    def __exit__(self, *_: object) -> None:
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
                asker.settimeout(_ANSWER_S)
                asker.send(self._answer(asker.recv(_MOST_BYTES).decode(errors="replace")))

    def _answer(self, question: str) -> bytes:
        began = time.monotonic()
        try:
            version, source, destination, dport_text = question.split(" ")
            src, dst, dport = self._nic_at[source], self._nic_at[destination], int(dport_text)
        except (ValueError, KeyError):
            return _NONE
        if version != "1" or src[0] != self._host:
            return _NONE
        ports = self._find(src, dst, dport)
        self.asked.append(Asked(src, dst, dport, ports, time.monotonic() - began))
        return ",".join(map(str, ports)).encode() or _NONE

    def _find(self, src: Nic, dst: Nic, dport: int) -> tuple[int, ...]:
        way, back = self._plan.get((src, dst)), self._plan.get((dst, src))
        if way is None and back is None:
            return ()
        with suppress(LockstepError):
            return self._finder.find(src, dst, dport, way, back)
        return ()


def _listen() -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(AGENT.replace("@", "\0", 1))
    server.listen(64)
    return server
