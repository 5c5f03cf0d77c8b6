"""Which way each source port takes, asked with the collector's own probes from inside a host of the fabric."""

from collections.abc import Sequence

from collector.path_ports import PortProber, Ports, Send
from collector.probes.paths import AddressBook, addresses_in
from collector.probes.sockets import RawExchange
from lockstep.clock import SystemClock
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.paths.flows import Nic

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
