"""Round trip and loss of every path between hosts, and which path a source port leads over.

A row in `probes` is a packet that was sent through one flow and what became of it; `rtt_ns` is that of the host for
TCP, and of the last switch before the host for RoCE and UDP (probes/packets.py says why). Its `hops` were seen now
or when the flow was last traced. A row in `paths` is written when a flow was traced in full: each time its way was
unknown, has grown old, has lost a packet, or another flow was found to have moved.

Silence of somebody who has never answered this kind of probe is no loss: a firewall, or a switch that tells nobody
its name, looks the same. It is said once, as an event, and no row is written.
"""

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import structlog

from collector.probes.packets import Flow
from collector.probes.paths import SILENT, AddressBook, Atlas, FlowPath, PathCatalogue, PathFinder, Remembered
from collector.probes.schedule import (
    DEFAULT_MESH,
    MeshOptions,
    Outcome,
    ProbeOrders,
    Round,
    Schedule,
    read_outcomes,
    shots_of,
)
from collector.probes.sockets import RawExchange
from collector.sources.source import ChangeLog, EventReporter, PlainSource, Reading, filled_tables_of
from lockstep.batches import DetailRequest
from lockstep.clock import SystemClock
from lockstep.errors import NotPresent
from lockstep.probing import Mesh
from lockstep.records import Event, Probe
from lockstep.records import Path as PathRow
from lockstep.topology import Topology, nic_name, split_end

_SILENCES = 3  # rounds without any answer after which somebody is called silent
_ANSWERS = -1
_MOST_ANSWERERS = 16_384  # remembered, about 300 bytes each
_MOST_STRANGERS = 1_024  # addresses of switches that nobody named


@dataclass(frozen=True, slots=True)
class Entry:
    """What one look gives to write down."""

    probe: Probe | None = None
    path: PathRow | None = None
    silence: str = ""  # said once about somebody who has never answered


class ProbeLedger:
    """Judges looks one after the other; remembers ways and who answers."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._silences: OrderedDict[tuple[str, str, str, bool], int] = OrderedDict()
        self.strangers: set[str] = set()  # addresses that answered and that the settings do not name

    def write(self, each: Round, outcome: Outcome, now_ns: int) -> Entry:
        """Return what one look gives; silence of somebody who never answered gives no row, for it may be no loss."""
        is_answered = outcome.rtt_ns is not None
        silences = self._count_silence(each, is_answered)
        path = self._atlas.paths.resolve(each.flow, self._name(outcome.responders))
        known = self._learn(each, path, now_ns) if is_answered or outcome.responders else None
        if not is_answered:
            self._atlas.catalogue.suspect(each.flow)
        return Entry(
            None if silences > 0 else self._probe_row(each.flow, outcome, path),
            self._path_row(each.flow, known) if known else None,
            _describe_silence(each) if silences == _SILENCES else "",
        )

    def _learn(self, each: Round, path: FlowPath | None, now_ns: int) -> Remembered | None:
        if path is None or not path.is_complete or not each.is_traced:
            return None
        return self._atlas.catalogue.learn(each.flow, path, now_ns)

    def _name(self, responders: Sequence[str]) -> list[str]:
        """Return the switches behind addresses; strangers are noted and left out."""
        ends = [self._atlas.book.end_at(address) for address in responders]
        unknown = {address for address, end in zip(responders, ends, strict=True) if end is None}
        if len(self.strangers) < _MOST_STRANGERS:
            self.strangers |= unknown
        return [end for end in ends if end is not None]

    def _count_silence(self, each: Round, is_answered: bool) -> int:
        """Return how often somebody has been silent who never answered; `_ANSWERS` when he did, now or before."""
        who = (each.flow.dst, each.flow.dst_nic, each.flow.proto, each.ends_at_host)
        before = self._silences.pop(who, 0)
        count = _ANSWERS if is_answered or before == _ANSWERS else min(before + 1, _SILENCES + 1)
        self._silences[who] = count
        if len(self._silences) > _MOST_ANSWERERS:
            self._silences.popitem(last=False)
        return count

    def _probe_row(self, flow: Flow, outcome: Outcome, path: FlowPath | None) -> Probe:
        hops = list(path.hops) if path else [split_end(end)[0] for end in self._name(outcome.responders)]
        known = self._atlas.catalogue.recall(flow)
        if path and known and _agrees(path.hops, known.path.hops):
            hops = list(known.path.hops)
        return Probe(host=self._atlas.host, ts_ns=outcome.sent_ns, rtt_ns=outcome.rtt_ns, hops=hops, **asdict(flow))

    def _path_row(self, flow: Flow, known: Remembered) -> PathRow:
        return PathRow(
            host=self._atlas.host,
            **asdict(flow),
            links=list(known.path.links),
            seen_ns=known.seen_ns,
            confidence=known.confidence,
        )


def _agrees(seen: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether nothing that was seen now contradicts what is remembered."""
    return len(seen) == len(known) and all(s in (SILENT, k) for s, k in zip(seen, known, strict=True))


def _describe_silence(each: Round) -> str:
    flow = each.flow
    who = f"{flow.dst}/{flow.dst_nic} has never answered a {flow.proto} probe"
    if not each.ends_at_host:
        who = f"the switch before {flow.dst}/{flow.dst_nic} has never answered"
    return f"{who}; its silence is not counted as loss"


_log = structlog.get_logger("probes")

_TOKENS = 1 << 32


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Whether, how much and how this host probes."""

    is_on: bool = False
    mesh: MeshOptions = DEFAULT_MESH
    fresh_s: float = 600.0  # a way that was confirmed within this time is not traced again
    timeout_s: float = 0.5  # thousands of times a healthy round trip


OFF = ProbeOptions()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a host that may probe works with."""

    orders: ProbeOrders
    schedule: Schedule
    ledger: ProbeLedger


class ProbesSource(PlainSource):
    """Probes the fabric from one host; `addresses` are those of NICs (`h3/eth1`) and switches (`spine0`).

    Memory: at most 16,384 paths and as many answerers (about 20 MB), 10,000 waiting detail requests, and scapy.
    """

    name = "probes"
    period_s = 1.0

    def __init__(
        self,
        host: str,
        topology: Topology | None,
        addresses: Mapping[str, str | Sequence[str]],
        options: ProbeOptions = OFF,
        exchange: RawExchange | None = None,
    ) -> None:
        self._host, self._topology, self._addresses, self._options = host, topology, addresses, options
        self._exchange = exchange or RawExchange(SystemClock(), options.timeout_s)
        self._token = random.randrange(_TOKENS)  # noqa: S311  # tells our packets from those of an earlier life
        self._problems = ChangeLog(_log)
        self._parts: _Parts | None = None

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        parts = self._parts = self._parts or self._prepare()
        events = []
        for refusal in parts.orders.take_in(requests):
            message = f"detail request {refusal.request}: {refusal.reason}"
            events.append(self._event(now_ns, refusal.component, "probe_refused", "warning", message))
        entries = self._probe(parts, now_ns)
        for component, entry in entries:
            if entry.silence:
                events.append(self._event(now_ns, component, "probe_silent", "info", entry.silence))
        self._note("answers come from addresses that the settings do not name", sorted(parts.ledger.strangers)[:5])
        tables = filled_tables_of(
            probes=[entry.probe for _, entry in entries if entry.probe],
            paths=[entry.path for _, entry in entries if entry.path],
            events=events,
        )
        return Reading(tables, watermark_ns=now_ns)

    def close(self) -> None:
        self._exchange.close()

    def _prepare(self) -> _Parts:
        """Put the parts together, or raise NotPresent with what is missing."""
        host, topology = self._host, self._topology
        if not self._options.is_on:
            raise NotPresent("probes are off")
        if topology is None:
            raise NotPresent("probes need a topology, and none is set")
        book = AddressBook(topology, self._addresses)
        self._note("addresses that are left out", book.complaints)
        if not book.addresses_of(host):
            raise NotPresent(f"probes need the address of a NIC of this host, and none is set for {host}")
        self._exchange.check()
        atlas = Atlas(host, PathFinder(topology, host), book, PathCatalogue(self._options.fresh_s))
        orders = ProbeOrders(host, topology, book)
        schedule = Schedule(atlas, Mesh(topology, host), orders, self._options.mesh)
        _log.info("probes are on", packets_per_s=self._options.mesh.packets_per_s, lap_s=round(schedule.lap_s))
        return _Parts(orders, schedule, ProbeLedger(atlas))

    def _probe(self, parts: _Parts, now_ns: int) -> list[tuple[str, Entry]]:
        """Carry out whose turn it is; return what to write, each with the NIC that it is about."""
        rounds = parts.schedule.choose(now_ns)
        if not rounds:
            return []
        shots = shots_of(rounds, self._token)
        self._token = (self._token + len(shots)) % _TOKENS
        arrivals = self._exchange.run(shots)
        self._note("packets cannot be sent", [self._exchange.fault] if self._exchange.fault else [])
        return [
            (nic_name(each.flow.dst, each.flow.dst_nic), parts.ledger.write(each, outcome, now_ns))
            for each, outcome in read_outcomes(rounds, arrivals)
        ]

    def _event(self, now_ns: int, component: str, kind: str, severity: str, message: str) -> Event:
        return EventReporter(self._host, self.name, component).report(now_ns, kind, severity, message)

    def _note(self, problem: str, details: Sequence[str]) -> None:
        self._problems.note("probes are incomplete", "; ".join(details), "details", problem=problem)
