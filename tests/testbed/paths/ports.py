"""Source ports that take the planned ways, found by trying: the hash of a switch can be asked, not turned round."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TypeVar

from collector.path_ports import PortProber, Ports, Send
from collector.probes.paths import AddressBook, addresses_in
from collector.probes.sockets import RawExchange
from lockstep.clock import SystemClock
from lockstep.errors import LockstepError
from lockstep.path_file import PathEntry
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.paths.flows import FlowLinks, Nic, PlannedFlow

PORTS = range(20_000, 32_000)  # below those that the kernel gives to sockets without a plan (32768 on)
_AT_A_TIME = 48  # 12 for each of 4 spines: with fewer than 4 wanted, one round is enough nearly always
_ROUNDS = 8
_WANTED = 4  # one to use and some to spare, for ports that are busy or in TIME_WAIT

_Answer = TypeVar("_Answer")
_WAIT_S = 0.1  # an answer takes 0.2 ms, behind a full queue 20 ms a hop


class PathProber:
    """Probes for all hosts of a fabric; may be used by several threads."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._exchanges = {host: RawExchange(SystemClock(), _WAIT_S) for host in fabric.plan.hosts}
        book = AddressBook(fabric.topology, addresses_in(fabric.topology))
        self._probers = {
            host: PortProber(fabric.topology, host, book, self.send_from(host)) for host in fabric.plan.hosts
        }

    def close(self) -> None:
        for exchange in self._exchanges.values():
            exchange.close()

    def find_paths(self, src: Nic, dst: Nic, ports: Sequence[Ports]) -> dict[Ports, tuple[str, ...]]:
        """Return the links that TCP between these ports takes now; ports whose probes got lost are left out."""
        return self._probers[src[0]].find_paths(src[1], *dst, ports)

    def send_from(self, host: str) -> Send:
        """Return what sends probes inside the namespace of a host."""
        return lambda shots: self._fabric.homes[host].run(lambda: self._exchanges[host].run(shots))


class PortFinder:
    """Finds ports; never gives the same port of a host twice. May be used by several threads."""

    def __init__(self, prober: PathProber, seed: int) -> None:
        self._prober, self._random = prober, Random(seed)  # ports to try are no secret
        self._given: set[tuple[str, int]] = set()

    def find(
        self, src: Nic, dst: Nic, dport: int, links: Sequence[str] | None, back: Sequence[str] | None = None
    ) -> tuple[int, ...]:
        """Return ports of `src` from which a connection takes these links, and answers take the links `back`.

        None: any. Some of a way's links are enough. Empty when no such port was found.
        """
        found: list[int] = []
        for _ in range(_ROUNDS):
            tried = self._draw(src[0])
            if links is not None:
                seen = self._prober.find_paths(src, dst, [(port, dport) for port in tried])
                tried = [port for port in tried if set(links) <= set(seen.get((port, dport), ()))]
            if back is not None and tried:
                seen = self._prober.find_paths(dst, src, [(dport, port) for port in tried])
                tried = [port for port in tried if set(back) <= set(seen.get((dport, port), ()))]
            found += tried
            if len(found) >= _WANTED:
                break
        self._given |= {(src[0], port) for port in found[:_WANTED]}
        return tuple(found[:_WANTED])

    def _draw(self, host: str) -> list[int]:
        drawn = self._random.sample(PORTS, _AT_A_TIME)
        return [port for port in drawn if (host, port) not in self._given]


def plan_entries(fabric: Fabric, finder: PortFinder, paths: FlowLinks) -> dict[PlannedFlow, PathEntry]:
    """Return what the shim shall do for each flow; LockstepError when no port takes a flow's way."""
    found = each_at_once(lambda flow: finder.find(flow.src, flow.dst, flow.dport, paths[flow]), list(paths))
    for flow, ports in found.items():
        if not ports:
            raise LockstepError(f"no source port of {flow.name} takes {', '.join(paths[flow])}")
    return {
        flow: PathEntry(fabric.address_of(*flow.dst), ports, flow.dport, fabric.address_of(*flow.src))
        for flow, ports in found.items()
    }


def each_at_once(
    answer: Callable[[PlannedFlow], _Answer], flows: Sequence[PlannedFlow]
) -> dict[PlannedFlow, _Answer]:
    """Return an answer for each flow, asked on all hosts at the same time as the agents of real hosts would do it."""
    with ThreadPoolExecutor(max(1, len({flow.src for flow in flows}))) as hosts:
        return dict(zip(flows, hosts.map(answer, flows), strict=True))
