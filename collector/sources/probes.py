"""Round trip and loss of every path between hosts, and which path a source port leads over.

A row in `probes` is a packet that was sent through one flow and what became of it; `rtt_ns` is that of the host for
TCP, and of the last switch before the host for RoCE and UDP (probing/packets.py says why). Its `hops` were seen now
or when the flow was last traced. A row in `paths` is written when a flow was traced in full: each time its way was
unknown, has grown old, has lost a packet, or another flow was found to have moved.

Silence of somebody who has never answered this kind of probe is no loss: a firewall, or a switch that tells nobody
its name, looks the same. It is said once, as an event, and no row is written.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from collector.probing.addresses import AddressBook
from collector.probing.answers import Arrival
from collector.probing.ledger import Entry, ProbeLedger
from collector.probing.packets import Shot
from collector.probing.paths import Atlas, PathCatalogue, WayFinder
from collector.probing.rounds import read_outcomes, shots_of
from collector.probing.sockets import RawExchange
from collector.probing.turns import DEFAULT_MESH, MeshOptions, Turns
from collector.probing.wishes import ProbeOrders
from collector.source import PlainSource, Reading
from lockstep.arrow import rows_of
from lockstep.clock import Clock, SystemClock
from lockstep.errors import NotPresent
from lockstep.probing import Mesh
from lockstep.records import Event, HostRecord
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Topology, nic_name
from lockstep.wish import Wish

_log = structlog.get_logger("probes")

_TOKENS = 1 << 32


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Whether, how much and how this host probes."""

    is_on: bool = False
    mesh: MeshOptions = DEFAULT_MESH
    fresh_s: float = 600.0  # a way that was confirmed within this time is not traced again
    timeout_s: float = 0.5  # thousands of times a healthy round trip
    seed: int = 0  # turns the order of the mesh; the same on all hosts


OFF = ProbeOptions()


class Exchange(Protocol):
    """Sends packets and returns what came back."""

    @property
    def fault(self) -> str:
        """Why packets of the last batch could not be sent; empty when all were."""
        ...

    def check(self) -> None: ...

    def run(self, shots: Sequence[Shot]) -> list[Arrival | None]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a host that may probe works with."""

    orders: ProbeOrders
    turns: Turns
    ledger: ProbeLedger


class ProbesSource(PlainSource):
    """Probes the fabric from one host; `addresses` are those of NICs (`h3/eth1`) and switches (`spine0`).

    Memory: at most 16,384 paths and as many answerers (about 20 MB), 10,000 waiting wishes, and scapy.
    """

    name = "probes"
    period_s = 1.0

    def __init__(
        self,
        host: str,
        topology: Topology | None,
        addresses: Mapping[str, str | Sequence[str]],
        options: ProbeOptions = OFF,
        clock: Clock | None = None,
        exchange: Exchange | None = None,
        root: Path = Path("/"),
    ) -> None:
        self._host, self._topology, self._addresses, self._options = host, topology, addresses, options
        self._exchange = exchange or RawExchange(clock or SystemClock(), options.timeout_s, root)
        self._token = random.randrange(_TOKENS)  # noqa: S311  # tells our packets from those of an earlier life
        self._complaints: dict[str, str] = {}
        self._parts: _Parts | None = None

    def read(self, now_ns: int, wishes: Sequence[Wish]) -> Reading:
        parts = self._parts = self._parts or self._prepare()
        refusals = parts.orders.take_in(wishes)
        events = [
            self._event(now_ns, "probe_refused", "warning", each.component, f"wish {each.wish}: {each.reason}")
            for each in refusals
        ]
        entries = self._probe(parts, now_ns)
        events += [
            self._event(now_ns, "probe_silent", "info", component, entry.silence)
            for component, entry in entries
            if entry.silence
        ]
        self._complain(
            "answers come from addresses that the settings do not name", sorted(parts.ledger.strangers)[:5]
        )
        made: dict[str, list[HostRecord]] = {
            "probes": [entry.probe for _, entry in entries if entry.probe],
            "paths": [entry.path for _, entry in entries if entry.path],
            "events": [*events],
        }
        tables = {name: rows_of(TABLE_BY_NAME[name], rows) for name, rows in made.items() if rows}
        return Reading(tables, watermark_ns=now_ns)

    def close(self) -> None:
        """Close the sockets."""
        self._exchange.close()

    def _prepare(self) -> _Parts:
        """Put the parts together, or raise NotPresent with what is missing."""
        host, topology = self._host, self._topology
        if not self._options.is_on:
            raise NotPresent("probes are off")
        if topology is None:
            raise NotPresent("probes need a topology, and none is set")
        book = AddressBook(topology, self._addresses)
        self._complain("addresses that are left out", book.complaints)
        if not book.addresses_of(host):
            raise NotPresent(f"probes need the address of a NIC of this host, and none is set for {host}")
        self._exchange.check()
        atlas = Atlas(host, WayFinder(topology, host), book, PathCatalogue(self._options.fresh_s))
        orders = ProbeOrders(host, topology, book)
        turns = Turns(atlas, Mesh(topology, host, self._options.seed), orders, self._options.mesh)
        _log.info("probes are on", packets_per_s=self._options.mesh.packets_per_s, lap_s=round(turns.lap_s))
        return _Parts(orders, turns, ProbeLedger(atlas))

    def _probe(self, parts: _Parts, now_ns: int) -> list[tuple[str, Entry]]:
        """Carry out whose turn it is; return what to write, each with the NIC that it is about."""
        rounds = parts.turns.choose(now_ns)
        if not rounds:
            return []
        shots = shots_of(rounds, self._token)
        self._token = (self._token + len(shots)) % _TOKENS
        arrivals = self._exchange.run(shots)
        self._complain("packets cannot be sent", [self._exchange.fault] if self._exchange.fault else [])
        return [
            (nic_name(each.flow.dst, each.flow.dst_nic), parts.ledger.write(each, outcome, now_ns))
            for each, outcome in read_outcomes(rounds, arrivals)
        ]

    def _complain(self, what: str, details: Sequence[str]) -> None:
        """Say it when it changes, not each time round."""
        complaint = "; ".join(details)
        if complaint and complaint != self._complaints.get(what):
            _log.warning("probes are incomplete", problem=what, details=complaint)
        self._complaints[what] = complaint

    def _event(self, now_ns: int, kind: str, severity: str, component: str, message: str) -> Event:
        return Event(
            host=self._host,
            ts_ns=now_ns,
            source=self.name,
            kind=kind,
            component=component,
            severity=severity,
            message=message,
        )
