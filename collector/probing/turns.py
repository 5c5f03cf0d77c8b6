"""Whose turn it is: wishes first, then the pairs of the mesh, as many as the budget lets through."""

import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from collector.probing.budget import PacketBudget
from collector.probing.packets import ROCE_PORT, Flow
from collector.probing.paths import Atlas
from collector.probing.rounds import Round, plan_round
from collector.probing.wishes import ProbeOrders
from lockstep.clock import NS_PER_S
from lockstep.probing import Mesh, Pair

_FIRST_PORT, _PORT_WINDOWS = 0xC000, 64  # RoCE's source ports begin there; each lap uses the next window of them
_MOST_BEHIND = 256  # steps that are caught up with after a pause
_SAMPLED = 64  # pairs from which the number of open hops of the fabric is taken


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """How the mesh probes a pair."""

    protos: tuple[str, ...] = ("tcp",)  # a site with RoCE takes ("roce", "tcp")
    ports: int = 2  # source ports per pair and visit
    tcp_port: int = 9  # discard: nobody listens, and a closed port answers
    packets_per_s: float = 20.0  # of this host, wishes included
    is_on: bool = True  # False: only what is wished for


DEFAULT_MESH = MeshOptions()


class Turns:
    """Chooses the rounds of each read. A host's mesh never takes more than the budget; wishes come out of the same
    budget and push pairs of the mesh out, whose turn comes again a lap later."""

    def __init__(self, atlas: Atlas, mesh: Mesh, orders: ProbeOrders, options: MeshOptions) -> None:
        self._atlas, self._mesh, self._orders, self._options = atlas, mesh, orders, options
        self._budget = PacketBudget(options.packets_per_s, burst=2 * options.packets_per_s)
        self._last_step: int | None = None
        self.step_ns = self._find_step_ns()

    @property
    def lap_s(self) -> float:
        """Seconds in which all pairs of this host have their turn."""
        return self._mesh.steps_per_lap * self.step_ns / NS_PER_S

    def choose(self, now_ns: int) -> list[Round]:
        """Return what is to be probed now."""
        self._budget.refill(now_ns)
        return [*self._wished(now_ns), *(self._meshed(now_ns) if self._options.is_on else ())]

    def _wished(self, now_ns: int) -> Iterator[Round]:
        while flow := self._orders.next(now_ns):
            planned = self._plan(flow, now_ns, is_live=flow.proto == "tcp" and self._is_taken(flow))
            if planned and not self._budget.take(planned.packets):
                return
            self._orders.done()
            if planned:
                yield planned

    def _meshed(self, now_ns: int) -> Iterator[Round]:
        step = now_ns // self.step_ns
        first = step if self._last_step is None else max(self._last_step + 1, step - _MOST_BEHIND)
        self._last_step = step
        for pair in filter(None, map(self._mesh.pair_at, range(first, step + 1))):
            for flow in self._flows(pair):
                planned = self._plan(flow, now_ns)
                if planned and self._budget.take(planned.packets):
                    yield planned

    def _flows(self, pair: Pair) -> Iterator[Flow]:
        begin = _FIRST_PORT + pair.lap % _PORT_WINDOWS * self._options.ports
        for proto in self._options.protos:
            dport = self._options.tcp_port if proto == "tcp" else ROCE_PORT
            for sport in range(begin, begin + self._options.ports):
                yield Flow(pair.src_nic, pair.dst, pair.dst_nic, proto, sport, dport)

    def _plan(self, flow: Flow, now_ns: int, *, is_live: bool = False) -> Round | None:
        """Return the round of a flow, or None where an address or a way is not known."""
        source = self._atlas.book.address_of(self._atlas.host, flow.src_nic)
        target = self._atlas.book.address_of(flow.dst, flow.dst_nic)
        layers = self._atlas.ways.layers(flow.src_nic, flow.dst, flow.dst_nic)
        if source is None or target is None or layers is None:
            return None
        is_traced = not self._atlas.catalogue.is_fresh(flow, now_ns)
        return plan_round(flow, source, target, layers, is_traced=is_traced, is_live=is_live)

    def _is_taken(self, flow: Flow) -> bool:
        """Return whether a socket of this host has the port: its connection may be the very flow to be probed."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
            try:
                trial.bind((self._atlas.book.address_of(self._atlas.host, flow.src_nic) or "", flow.sport))
            except OSError as error:
                return error.errno == errno.EADDRINUSE
        return False

    def _find_step_ns(self) -> int:
        """Return the length of a step: what its packets may take when every flow of it must be traced."""
        pairs = filter(None, map(self._mesh.pair_at, range(_SAMPLED)))
        layers = [self._atlas.ways.layers(pair.src_nic, pair.dst, pair.dst_nic) for pair in pairs]
        open_hops = max((len(each.open) for each in layers if each), default=0)
        packets = self._options.ports * len(self._options.protos) * (1 + open_hops)
        return max(1, round(packets * NS_PER_S / self._options.packets_per_s))
