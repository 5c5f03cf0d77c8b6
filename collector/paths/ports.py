"""Source ports that take a planned way, found by trying: the hash of a switch can be asked, not turned round."""

from collections.abc import Callable, Sequence
from itertools import count
from random import Random

from collector.probing.addresses import AddressBook
from collector.probing.answers import Arrival
from collector.probing.packets import Flow, Shot, build_packets, fit_token
from collector.probing.paths import WayFinder
from lockstep.errors import NotPresent
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
        self._finder = WayFinder(topology, host)
        self._tokens = count()

    def prepare(self) -> None:
        """Load what makes packets, which takes a second, before anybody waits for it."""
        build_packets([Shot(Flow("", "", "", "tcp", 1, 1), "127.0.0.1", "127.0.0.1", 1, fit_token("tcp", 0))])

    def find_ways(self, nic: str, dst: str, dst_nic: str, ports: Sequence[Ports]) -> dict[Ports, tuple[str, ...]]:
        """Return the links that TCP between these ports takes now; ports whose probes got lost are left out.

        No packet arrives: each is sent to expire at the switches where there is a choice.
        """
        layers = self._finder.layers(nic, dst, dst_nic)
        if layers is None:
            raise NotPresent(f"there is no way over switches from {self._host}/{nic} to {dst}/{dst_nic}")
        found: dict[Ports, tuple[str, ...]] = {}
        for _ in range(_TRIES):
            flows = [Flow(nic, dst, dst_nic, "tcp", *each) for each in ports if each not in found]
            found |= self._look(flows, layers.open)
        return found

    def _look(self, flows: Sequence[Flow], ttls: Sequence[int]) -> dict[Ports, tuple[str, ...]]:
        shots = [self._aim(flow, ttl) for flow in flows for ttl in ttls]
        arrivals = self._send(shots) if shots else []
        found = {}
        for number, flow in enumerate(flows):
            way = self._finder.resolve(flow, self._name(arrivals[number * len(ttls) : (number + 1) * len(ttls)]))
            if way and way.is_complete:
                found[flow.sport, flow.dport] = way.links
        return found

    def _aim(self, flow: Flow, ttl: int) -> Shot:
        source, target = (
            self._book.address_of(self._host, flow.src_nic),
            self._book.address_of(flow.dst, flow.dst_nic),
        )
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
            tried = [(port, dport) for port in self._draw()]
            ways = self._prober.find_ways(nic, dst, dst_nic, tried)
            found += [sport for (sport, _), way in ways.items() if set(links) <= set(way)]
            if len(found) >= WANTED:
                break
        self._remember(found[:WANTED])
        return tuple(found[:WANTED])

    def _draw(self) -> list[int]:
        return [port for port in self._random.sample(self._ports, _AT_A_TIME) if port not in self._given]

    def _remember(self, ports: Sequence[int]) -> None:
        """Note what was given; once half of all ports are, the oldest are free again."""
        self._given |= dict.fromkeys(ports)
        for port in list(self._given)[: max(0, len(self._given) - len(self._ports) // 2)]:
            del self._given[port]
