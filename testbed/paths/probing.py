"""Which way each source port takes, asked with the collector's own probes from inside a host of the fabric."""

from collections.abc import Callable, Sequence
from itertools import count

from collector.probing.addresses import AddressBook, addresses_in
from collector.probing.answers import Arrival
from collector.probing.packets import Flow, Shot, fit_token
from collector.probing.paths import WayFinder
from collector.probing.sockets import RawExchange
from lockstep.clock import SystemClock
from lockstep.errors import LockstepError
from testbed.fabric.fabric import Fabric
from testbed.paths.flows import Nic

_WAIT_S = 0.1  # an answer takes 0.2 ms, behind a full queue 20 ms a hop
_TRIES = 2
Ports = tuple[int, int]  # source and destination


class PathProber:
    """Probes for all hosts of a fabric; may be used by several threads."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._book = AddressBook(fabric.topology, addresses_in(fabric.topology))
        self._finders = {host: WayFinder(fabric.topology, host) for host in fabric.plan.hosts}
        self._exchanges = {host: RawExchange(SystemClock(), _WAIT_S) for host in fabric.plan.hosts}
        self._tokens = count()

    def close(self) -> None:
        for exchange in self._exchanges.values():
            exchange.close()

    def find_ways(self, src: Nic, dst: Nic, ports: Sequence[Ports]) -> dict[Ports, tuple[str, ...]]:
        """Return the links that TCP between these ports takes now; ports whose probes got lost are left out.

        No packet arrives: each is sent to expire at the switches where there is a choice.
        """
        layers = self._finders[src[0]].layers(*src[1:], *dst)
        if layers is None:
            raise LockstepError(f"there is no way over switches from {'/'.join(src)} to {'/'.join(dst)}")
        found: dict[Ports, tuple[str, ...]] = {}
        for _ in range(_TRIES):
            open_ports = [each for each in ports if each not in found]
            found |= self._look(src, dst, open_ports, layers.open)
        return found

    def _look(self, src: Nic, dst: Nic, ports: Sequence[Ports], ttls: Sequence[int]) -> dict[Ports, tuple[str, ...]]:
        flows = [Flow(src[1], *dst, "tcp", sport, dport) for sport, dport in ports]
        source, target = self._fabric.address_of(*src), self._fabric.address_of(*dst)
        shots = [
            Shot(flow, source, target, ttl, fit_token("tcp", next(self._tokens))) for flow in flows for ttl in ttls
        ]
        arrivals = self._fabric.homes[src[0]].run(self._send(src[0], shots)) if shots else []
        found = {}
        for number, flow in enumerate(flows):
            seen = self._name(arrivals[number * len(ttls) : (number + 1) * len(ttls)])
            way = self._finders[src[0]].resolve(flow, seen)
            if way and way.is_complete:
                found[flow.sport, flow.dport] = way.links
        return found

    def _send(self, host: str, shots: Sequence[Shot]) -> Callable[[], list[Arrival | None]]:
        return lambda: self._exchanges[host].run(shots)

    def _name(self, arrivals: Sequence[Arrival | None]) -> list[str]:
        ends = (self._book.end_at(each.responder) for each in arrivals if each and each.kind == "expired")
        return [end for end in ends if end is not None]
