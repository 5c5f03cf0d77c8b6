"""The agent that the shim asks where a destination's port is not known beforehand: it finds ports by probing.

One per host, at an abstract unix address in the host's network namespace; questions and answers are those of the
collector's agent.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from collector.path_ports import VERSION, AnswerServer, listen, write_ports
from lockstep.errors import LockstepError
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.paths.flows import Nic
from tests.testbed.paths.ports import PortFinder
from tests.testbed.paths.shim import AGENT

PairWays = Mapping[tuple[Nic, Nic], Sequence[str]]  # links from one NIC to another


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
        self._server = AnswerServer(fabric.homes[host].run(lambda: listen(AGENT)), self._answer)

    def __enter__(self) -> "PathAgent":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _answer(self, question: bytes) -> bytes:
        began = time.monotonic()
        try:
            version, source, destination, dport_text = question.decode(errors="replace").split(" ")
            src, dst, dport = self._nic_at[source], self._nic_at[destination], int(dport_text)
        except (ValueError, KeyError):
            return write_ports(())
        if version != VERSION or src[0] != self._host:
            return write_ports(())
        ports = self._find(src, dst, dport)
        self.asked.append(Asked(src, dst, dport, ports, time.monotonic() - began))
        return write_ports(ports)

    def _find(self, src: Nic, dst: Nic, dport: int) -> tuple[int, ...]:
        way, back = self._plan.get((src, dst)), self._plan.get((dst, src))
        if way is None and back is None:
            return ()
        with suppress(LockstepError):
            return self._finder.find(src, dst, dport, way, back)
        return ()
