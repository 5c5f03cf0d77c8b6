"""Whose turn it is: detail requests first, then the pairs of the mesh, as many as the budget lets through."""

import errno
import socket
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from reprlib import repr as shorten

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collector.probes.packets import PROTOCOLS, ROCE_PORT, Arrival, Flow, Shot, fit_token
from collector.probes.paths import AddressBook, Atlas, Layers
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.probing import Mesh, Pair
from lockstep.topology import Nic, Topology


class PacketBudget:
    """Lets `per_s` packets through in a second on average, and at most `burst` at once.

    A clock that is set back gives nothing and takes nothing away; one that jumps ahead gives one burst.
    """

    def __init__(self, per_s: float, burst: float | None = None) -> None:
        self._per_s, self._burst = per_s, max(per_s, 1.0) if burst is None else burst
        self._packets = self._burst
        self._last_ns: int | None = None

    def refill(self, now_ns: int) -> None:
        """Add what has become allowed since the last time."""
        passed_ns = 0 if self._last_ns is None else max(0, now_ns - self._last_ns)
        self._packets = min(self._burst, self._packets + self._per_s * passed_ns / NS_PER_S)
        self._last_ns = now_ns

    def take(self, packets: int = 1) -> bool:
        """Take that many and return True; or return False and take none.

        More than a whole burst is let through when the bucket is full, and is paid back afterwards, because
        it would wait for ever otherwise.
        """
        if self._packets < min(packets, self._burst):
            return False
        self._packets -= packets
        return True


MOST_PENDING = 10_000  # probes of all detail requests together that wait for their turn: about 3 MB
_MOST_REMEMBERED = 4_096  # ids of detail requests that were taken or refused


class _Details(BaseModel):
    """What a detail request says, before anybody looks whether it may be done."""

    model_config = ConfigDict(extra="ignore", strict=True)  # a server may be newer than its agents

    dst: str
    dst_nic: str
    proto: str
    sport: int = Field(ge=1, le=65_535)
    dport: int = Field(ROCE_PORT, ge=1, le=65_535)
    src_nic: str | None = None
    ports: int = Field(1, ge=1, le=MOST_PENDING)
    count: int = Field(1, ge=1, le=MOST_PENDING)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A detail request that is not carried out, and why."""

    request: str
    component: str
    reason: str


class ProbeOrders:
    """What was requested and waits for its turn."""

    def __init__(self, host: str, topology: Topology, book: AddressBook) -> None:
        self._host, self._book = host, book
        self._nics = {node.id: {nic.id: nic for nic in node.nics} for node in topology.hosts}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._pending: deque[tuple[int, Flow]] = deque()

    def take_in(self, requests: Sequence[DetailRequest]) -> list[Refusal]:
        """Note the requests that are new and return those that are refused; a request is looked at once."""
        refusals = []
        for request in requests:
            if request.kind == "probe" and request.host == self._host and request.id not in self._known:
                self._known[request.id] = None
                if len(self._known) > _MOST_REMEMBERED:
                    self._known.popitem(last=False)
                try:
                    self._queue(request)
                except BadInput as error:
                    refusals.append(Refusal(request.id, f"host:{self._host}", str(error)))
        return refusals

    def next(self, now_ns: int) -> Flow | None:
        """Return whose turn it is, without taking it off the list; what has expired is dropped."""
        while self._pending and self._pending[0][0] <= now_ns:
            self._pending.popleft()
        return self._pending[0][1] if self._pending else None

    def done(self) -> None:
        """Take the one whose turn it was off the list."""
        self._pending.popleft()

    def _queue(self, request: DetailRequest) -> None:
        details = _read_details(request)
        flow = self._first_flow(details)
        last = details.sport + details.ports - 1
        if last > 65_535:
            raise BadInput(f"source ports end at 65535, but {last} was requested")
        if len(self._pending) + details.ports * details.count > MOST_PENDING:
            raise BadInput(f"{details.ports * details.count} probes more than {MOST_PENDING} waiting ones in all")
        for _, sport in product(range(details.count), range(details.sport, last + 1)):
            self._pending.append((request.expires_ns, replace(flow, sport=sport)))

    def _first_flow(self, details: _Details) -> Flow:
        if details.proto not in PROTOCOLS:
            raise BadInput(f"protocol {shorten(details.proto)} is none of {', '.join(PROTOCOLS)}")
        if details.dst == self._host or details.dst_nic not in self._nics.get(details.dst, ()):
            described = f"{shorten(details.dst)}, {shorten(details.dst_nic)}"
            raise BadInput(f"there is no other host with such a NIC in the topology: {described}")
        if self._book.address_of(details.dst, details.dst_nic) is None:
            raise BadInput(f"the address of {details.dst}/{details.dst_nic} is not known")
        src_nic = details.src_nic or self._nearest(self._nics[details.dst][details.dst_nic])
        if src_nic is None or self._book.address_of(self._host, src_nic) is None:
            raise BadInput(f"this host has no NIC {shorten(src_nic)} with a known address")
        return Flow(src_nic, details.dst, details.dst_nic, details.proto, details.sport, details.dport)

    def _nearest(self, other: Nic) -> str | None:
        """Return our NIC of the same plane, of the same rail if there is one."""
        mine = [nic for nic in self._nics.get(self._host, {}).values() if nic.plane == other.plane]
        same = [nic.id for nic in mine if nic.rail == other.rail]
        return next(iter(same + [nic.id for nic in mine]), None)


def _read_details(request: DetailRequest) -> _Details:
    try:
        return _Details.model_validate(request.details)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BadInput(f"its {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


_FAR = 64  # a TTL that reaches every host of a fabric


@dataclass(frozen=True, slots=True)
class Round:
    """The packets of one look: the first is timed and counted, those behind it ask switches for their names."""

    flow: Flow
    source: str  # addresses
    target: str
    end_ttl: int  # of the first: the last switch's distance, or far enough for the host
    is_traced: bool  # whether its way is to be learnt, which takes no packet where there is no choice
    asked: tuple[int, ...] = ()  # TTLs at which the way is open

    @property
    def packets(self) -> int:
        return 1 + len(self.asked)

    @property
    def ends_at_host(self) -> bool:
        return self.end_ttl == _FAR


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one look gave."""

    sent_ns: int
    rtt_ns: int | None  # None: no answer to the first packet
    responders: tuple[str, ...]  # addresses at which a TTL ran out, in the order of the way


def plan_round(flow: Flow, source: str, target: str, layers: Layers, *, is_traced: bool, is_live: bool) -> Round:
    """Return a look at a flow.

    Only a TCP packet outside of a live connection is sure of the host's answer; all others run out at the last
    switch. The cable behind that leaves no choice to a hash, so that TCP probes to the same NIC cover it.
    """
    end_ttl = _FAR if flow.proto == "tcp" and not is_live else len(layers.switches)
    return Round(flow, source, target, end_ttl, is_traced, tuple(layers.open) if is_traced else ())


def shots_of(rounds: Sequence[Round], first_token: int) -> list[Shot]:
    """Return the packets of all rounds, one after the other, each with a token that no other has."""
    probes = [(each, ttl) for each in rounds for ttl in (each.end_ttl, *each.asked)]
    return [
        Shot(each.flow, each.source, each.target, ttl, fit_token(each.flow.proto, first_token + number))
        for number, (each, ttl) in enumerate(probes)
    ]


def read_outcomes(rounds: Sequence[Round], arrivals: Sequence[Arrival | None]) -> Iterator[tuple[Round, Outcome]]:
    """Yield the rounds whose first packet was sent, with what came back."""
    at = 0
    for each in rounds:
        end, asked = arrivals[at], arrivals[at + 1 : at + each.packets]
        at += each.packets
        if end is not None:
            yield each, _read_outcome(each, end, asked)


def _read_outcome(each: Round, end: Arrival, asked: Sequence[Arrival | None]) -> Outcome:
    in_order = asked if each.ends_at_host else [*asked, end]
    responders = tuple(a.responder for a in in_order if a is not None and a.kind == "expired")
    is_answered = end.kind == "reached" or (end.kind == "expired" and not each.ends_at_host)
    return Outcome(end.sent_ns, end.rtt_ns if is_answered else None, responders)


_FIRST_PORT, _PORT_WINDOWS = 0xC000, 64  # RoCE's source ports begin there; each lap uses the next window of them
_MOST_BEHIND = 256  # steps that are caught up with after a pause
_SAMPLED = 64  # pairs from which the number of open hops of the fabric is taken


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """How the mesh probes a pair."""

    protos: tuple[str, ...] = ("tcp",)  # a site with RoCE takes ("roce", "tcp")
    ports: int = 2  # source ports per pair and visit
    tcp_port: int = 9  # discard: nobody listens, and a closed port answers
    packets_per_s: float = 20.0  # of this host, detail requests included
    is_on: bool = True  # False: only what is requested


DEFAULT_MESH = MeshOptions()


class Schedule:
    """Chooses the rounds of each read. A host's mesh never takes more than the budget; requests come out of the same
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
        self._budget.refill(now_ns)
        return [*self._requested(now_ns), *(self._meshed(now_ns) if self._options.is_on else ())]

    def _requested(self, now_ns: int) -> Iterator[Round]:
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
        layers = self._atlas.paths.layers(flow.src_nic, flow.dst, flow.dst_nic)
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
        layers = [self._atlas.paths.layers(pair.src_nic, pair.dst, pair.dst_nic) for pair in pairs]
        open_hops = max((len(each.open) for each in layers if each), default=0)
        packets = self._options.ports * len(self._options.protos) * (1 + open_hops)
        return max(1, round(packets * NS_PER_S / self._options.packets_per_s))
