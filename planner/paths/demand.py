"""Which flows there are: what the jobs' connections really sent lately, as flows to plan, and what could not be told.

Rates decide: whatever sent bytes to another host in the window is a flow, once per queue pair or socket where
`connections` tells of several, else once. So rings, trees and all-to-all need not be known as such: who sends to whom
is in the transfers. What is not known is not made up: an unknown NIC leaves the host alone as an end, and a send of
which an end is unknown is left out and counted.

Cost: array operations and a loop over connections; their seconds are summed by the store, so that a row per
connection and direction leaves it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from planner.paths.flows import Flow

KEY = ("job", "attempt", "comm", "rank", "peer", "channel")
Key = tuple[str, int, int, int, int, int]  # values of KEY
SUMS = ("direction", "bytes", "seconds", "wire_ns", "host", "nic", "transport", "last_ns")

MOST_SENDS = 1_000_000  # ends of connections: an all-to-all of 700 ranks; about 200 MB while flows are made of them
_NETWORKS = ("ib", "socket", "ofi")  # transports that leave the host over a NIC and have a peer
_ADDRESS = re.compile(r"[0-9.]+")  # without the port that NCCL writes behind it


@dataclass(frozen=True)
class DemandFacts:
    """What the store knows of the sends of some seconds; tables may have more columns than are named here."""

    members: pa.Table  # job, attempt, comm, rank, host, init_ns
    connections: pa.Table  # rows of the table of that name, of both directions
    sums: pa.Table  # a row per connection and direction: the key, then SUMS
    start_ns: int  # of the first whole second
    end_ns: int  # of the last one
    topology: TopologyIndex
    notes: tuple[str, ...] = ()  # what the reader had to leave out


_INSIDE = "ts_ns >= {start:Int64} AND ts_ns < {end:Int64}"
_WHO = "job, attempt, comm, rank"
_SUMS = f"""
SELECT {", ".join(KEY)}, direction, sum(bytes) AS moved, uniqExact(ts_ns) AS seconds, sum(wire_ns) AS wire,
       argMax(host, ts_ns) AS last_host, argMax(nic, ts_ns) AS last_nic, argMax(transport, ts_ns) AS last_transport,
       max(ts_ns) AS last_ns
FROM transfer_stats WHERE {_INSIDE} AND peer >= 0 AND bytes > 0
GROUP BY {", ".join(KEY)}, direction ORDER BY moved DESC, {", ".join(KEY)}, direction
LIMIT {{most:UInt64}}
"""
# Only of jobs that sent something: others have nothing to plan, and the tables keep weeks of them.
_ACTIVE = f"(job, attempt) IN (SELECT DISTINCT job, attempt FROM transfer_stats WHERE {_INSIDE})"
_MEMBERS = f"""
SELECT {_WHO}, argMax(host, init_ns) AS last_host, max(init_ns) AS made_ns
FROM comms WHERE {_ACTIVE} GROUP BY {_WHO} ORDER BY {_WHO}
"""
_KEYS = f"""
SELECT job, attempt, comm, rank, peer, channel, direction, transport, nic, local, remote, sport, lqpn, rqpn,
       max(confidence) AS certainty, max(seen_ns) AS last_ns
FROM connections WHERE {_ACTIVE}
GROUP BY job, attempt, comm, rank, peer, channel, direction, transport, nic, local, remote, sport, lqpn, rqpn
"""


def read_demand(store: Store, topology: TopologyIndex, start_ns: int, end_ns: int) -> DemandFacts:
    """Return what all jobs sent from one whole second to another, and what is known of their connections."""
    window = {"start": start_ns, "end": end_ns}
    sums = store.query(_SUMS, {**window, "most": MOST_SENDS + 1}).rename_columns([*KEY, *SUMS])
    names = [*KEY, "direction", "transport", "nic", "local", "remote", "sport", "lqpn", "rqpn"]
    return DemandFacts(
        members=store.query(_MEMBERS, window).rename_columns(["job", "attempt", "comm", "rank", "host", "init_ns"]),
        connections=store.query(_KEYS, window).rename_columns([*names, "confidence", "seen_ns"]),
        sums=sums.slice(0, MOST_SENDS),
        start_ns=start_ns,
        end_ns=end_ns,
        topology=topology,
        notes=(
            (f"more than {MOST_SENDS} ends of connections sent or received; only the largest are looked at",)
            if sums.num_rows > MOST_SENDS
            else ()
        ),
    )


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a queue pair or socket runs now."""

    src: str  # host/nic, or a host
    dst: str
    transport: str | None = None
    sport: int | None = None  # in use; None: unknown


class WiringBook:
    """Who is where, and what is known of each connection."""

    def __init__(self, facts: DemandFacts) -> None:
        self.remarks = Counter[str]()
        self._topology = facts.topology
        self._host_of = _find_hosts(facts)
        self._known = _find_connections(facts.connections, self.remarks)
        self._reported_nic = _find_receivers(facts.sums)
        hosts = facts.topology.topology.hosts
        self._nic_at = {nic.address: (host.id, nic.id) for host in hosts for nic in host.nics if nic.address}
        self._plane = {(host.id, nic.id): nic.plane for host in hosts for nic in host.nics}

    def wire(self, key: Key, src: str, nic: str | None, transport: str | None) -> tuple[list[Wiring], str]:
        """Return the queue pairs of what one rank sends to another, or none and why; its transfers told the rest."""
        job, attempt, comm, rank, peer, channel = key
        back: Key = (job, attempt, comm, peer, rank, channel)
        pairs = self._known.get((*key, "send")) or [_Known()]
        carrier = pairs[0].transport or transport
        dst = self._host_of.get((job, attempt, comm, peer)) or self._at(pairs[0].remote)[0]
        if why := self._refuse(src, dst, carrier):
            return [], why
        near = [self._nics(src, pair.nic or nic, pair.local) for pair in pairs]
        # A fused NIC takes queue pairs by turns (NCCL goes round its devices), so there is one per port at least.
        count = max(len(pairs), len(near[0]))
        wirings = []
        for number in range(count):
            pair = pairs[number % len(pairs)]
            far = self._far_nics(str(dst), back, pair)
            ends = self._join(src, near[number % len(pairs)], str(dst), far, number)
            wirings.append(Wiring(*ends, carrier, pair.sport if len(pairs) == count else None))
        return wirings, ""

    def _refuse(self, src: str, dst: str | None, transport: str | None) -> str:
        if src == dst or transport in ("p2p", "shm"):
            return "they stay inside a host"
        if transport is not None and transport not in _NETWORKS:
            return f"{transport} has no peers to plan for"
        if dst is None:
            return "nobody reported on which host their peer is"
        if not (self._topology.nics_of(src) and self._topology.nics_of(dst)):
            return "the topology does not have one of their hosts"
        return ""

    def _far_nics(self, dst: str, back: Key, pair: "_Known") -> list[str]:
        """Return the NICs at the other end: of the same queue pair, else of all of its connection."""
        theirs = self._known.get((*back, "recv"), [])
        exact = [each for each in theirs if pair.rqpn is not None and each.lqpn == pair.rqpn]
        reported = ",".join(dict.fromkeys(each.nic for each in exact or theirs if each.nic))
        return self._nics(dst, reported or self._reported_nic.get(back), pair.remote)

    def _nics(self, host: str, reported: str | None, address: str) -> list[str]:
        """Return the ports of a connection's NIC, none where they are unknown or not in the topology."""
        if not reported:
            at = self._at(address)
            return [at[1]] if at[0] == host else []
        nics = [nic for nic in reported.split(",") if self._topology.leaf_of(host, nic)]
        if not nics:
            self.remarks["ends have a NIC that the topology does not; they count for the host as a whole"] += 1
        return nics

    def _at(self, address: str) -> tuple[str, str] | tuple[None, None]:
        plain = _ADDRESS.match(address)
        return self._nic_at.get(plain[0], (None, None)) if plain else (None, None)

    def _join(self, src: str, near: Sequence[str], dst: str, far: Sequence[str], number: int) -> tuple[str, str]:
        """Return both ends of one of a connection's queue pairs."""
        begin = near[number % len(near)] if near else None
        same = [nic for nic in far if begin is None or self._plane[src, begin] == self._plane[dst, nic]]
        if far and not same:
            self.remarks["flows have NICs on planes that never meet; the far one counts as unknown"] += 1
        end = same[number % len(same)] if same else None
        return f"{src}/{begin}" if begin else src, f"{dst}/{end}" if end else dst


@dataclass(frozen=True, slots=True)
class _Known:
    """A queue pair or socket as `connections` tells it."""

    nic: str | None = None
    transport: str | None = None
    local: str = ""
    remote: str = ""
    sport: int | None = None
    lqpn: int | None = None
    rqpn: int | None = None


def _find_hosts(facts: DemandFacts) -> dict[tuple[str, int, int, int], str]:
    """Return the host of each rank of each communicator: where it last sent or received, else as it was made."""
    names = ["job", "attempt", "comm", "rank", "host"]
    tables = facts.members.sort_by("init_ns").select(names), facts.sums.sort_by("last_ns").select(names)
    rows = [row for table in tables for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    return {(job, attempt, comm, rank): host for job, attempt, comm, rank, host in rows}


def _find_receivers(sums: pa.Table) -> dict[Key, str]:
    """Return through which NIC each connection is received, as the receiver's own transfers tell it."""
    received = sums.filter(pc.and_(pc.equal(sums["direction"], "recv"), pc.is_valid(sums["nic"])))
    rows = zip(*(received[name].to_pylist() for name in (*KEY, "nic")), strict=True)
    return {(row[0], row[1], row[2], row[3], row[4], row[5]): row[6] for row in rows}


def _find_connections(rows: pa.Table, remarks: Counter[str]) -> dict[tuple[object, ...], list[_Known]]:
    """Return the queue pairs of each connection and direction, in the order of their numbers."""
    # What was learnt best comes last.
    reported = rows.sort_by([("confidence", "ascending"), ("seen_ns", "ascending")])
    found: dict[tuple[object, ...], list[_Known]] = defaultdict(list)
    keys = zip(*(reported[name].to_pylist() for name in (*KEY, "direction")), strict=True)
    values = zip(*(reported[name].to_pylist() for name in _Known.__slots__), strict=True)
    for key, known in zip(keys, values, strict=True):
        if None in key:
            remarks["connections do not say whose they are"] += 1
        else:
            found[key].append(_Known(*known))
    return {key: pairs if len(pairs) == 1 else _keep_best(pairs) for key, pairs in found.items()}


def _keep_best(pairs: list[_Known]) -> list[_Known]:
    """Return each queue pair or socket once, as it was told last: with every row more was known than before.

    A row without numbers is from before they were known, unless there are no others.
    """
    newest = {(pair.lqpn, None if pair.lqpn is not None else pair.sport): pair for pair in pairs}
    ports_of_pairs = {pair.sport for pair in newest.values() if pair.lqpn is not None}
    sockets = [
        pair for (lqpn, sport), pair in newest.items() if lqpn is None and sport not in {None, *ports_of_pairs}
    ]
    exact = [*(pair for (lqpn, _), pair in newest.items() if lqpn is not None), *sockets]
    return sorted(exact or pairs[-1:], key=lambda pair: (pair.lqpn or 0, pair.sport or 0))


_ACKNOWLEDGED = ("ib", "ofi")  # whose wire time ends with the acknowledgement; a socket's when the kernel has copied
_COMM = ("job", "attempt", "comm")


_TRICKLE_SHARE = 0.01  # of a NIC's rate: its smallest sends, while all of them together stay below this


@dataclass(frozen=True)
class Demand:
    """The flows, how each is wired now, and a sentence for each kind of send that is not among them."""

    flows: list[Flow]
    wiring: Mapping[str, Wiring] = field(default_factory=dict)  # by flow
    left_out: tuple[str, ...] = ()


def find_demand(facts: DemandFacts, trickle_share: float = _TRICKLE_SHARE) -> Demand:
    """Return the flows to plan, and what was left out."""
    book, missing = WiringBook(facts), Counter[str]()
    found: list[tuple[Flow, Wiring]] = []
    for send in _describe_sends(facts):
        wirings, why = book.wire(send.key, send.host, send.nic, send.transport)
        missing[why] += 1
        found += _as_flows(send, wirings, facts.topology)
    kept = _drop_trickles(found, facts.topology, trickle_share)
    missing["together they are a trickle on their NIC"] = len(found) - len(kept)
    kept.sort(key=lambda pair: pair[0].id)
    messages = [f"{count} sends are no flows: {why}" for why, count in sorted(missing.items()) if why and count]
    messages += [f"{count} {what}" for what, count in sorted(book.remarks.items())]
    return Demand([flow for flow, _ in kept], {flow.id: wire for flow, wire in kept}, (*facts.notes, *messages))


@dataclass(frozen=True, slots=True)
class _Send:
    """All that one rank sent to another over one channel."""

    key: Key
    host: str
    nic: str | None
    transport: str | None
    gbps: float  # on average
    duty: float


def _describe_sends(facts: DemandFacts) -> Iterator[_Send]:
    """Yield what each connection sent on average, and in which share of the time."""
    sums = facts.sums.filter(pc.equal(facts.sums["direction"], "send"))
    newest = sums.group_by("job").aggregate([("attempt", "max")])  # what a job sent before a restart is left out
    sums = sums.join(newest, "job").filter(pc.equal(pc.field("attempt"), pc.field("attempt_max")))
    lasting_ns = _find_lasting(sums, facts)
    gbps = _floats(sums, "bytes") * 8 / lasting_ns  # bits per nanosecond
    seconds = _floats(sums, "seconds") * NS_PER_S / lasting_ns
    wire = _floats(sums, "wire_ns") / lasting_ns
    knows_wire = np.asarray(pc.is_in(sums["transport"], pa.array(_ACKNOWLEDGED))) & (wire > 0)
    duty = np.minimum(np.where(knows_wire, np.minimum(wire, seconds), seconds), 1.0)
    rows = [sums[name].to_pylist() for name in (*KEY, "host", "nic", "transport")]
    for *key, host, nic, transport, rate, share in zip(*rows, gbps.tolist(), duty.tolist(), strict=True):
        yield _Send((key[0], key[1], key[2], key[3], key[4], key[5]), host, nic, transport, rate, share)


def _find_lasting(sums: pa.Table, facts: DemandFacts) -> np.ndarray:
    """Return how much of the window each connection has lived: a young communicator is not diluted."""
    born = facts.members.group_by(_COMM).aggregate([("init_ns", "min")])
    columns = (born[name].to_pylist() for name in (*_COMM, "init_ns_min"))
    began = {(job, attempt, comm): int(init_ns) for job, attempt, comm, init_ns in zip(*columns, strict=True)}
    keys = zip(*(sums[name].to_pylist() for name in _COMM), strict=True)
    since = np.array([max(began.get(key, 0), facts.start_ns) for key in keys], np.int64)
    return np.maximum(facts.end_ns - since // NS_PER_S * NS_PER_S, NS_PER_S).astype(np.float64)


def _floats(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(pc.fill_null(table[name], 0)).astype(np.float64)


def _as_flows(send: _Send, wirings: Sequence[Wiring], topology: TopologyIndex) -> Iterator[tuple[Flow, Wiring]]:
    """Yield a flow per queue pair: a connection shares its bytes out evenly among them."""
    job, _, comm, rank, peer, channel = send.key
    for number, wire in enumerate(wirings):
        average = send.gbps / len(wirings)
        duty = min(max(send.duty, average / _rate_of(wire.src, topology)), 1.0)  # none is faster than its NIC
        name = f"{job}/{comm:x}/r{rank}-r{peer}/c{channel}/q{number}"
        flow = Flow(id=name, src=wire.src, dst=wire.dst, gbps=average / duty, duty=duty, job=job)
        yield flow, wire


def _rate_of(end: str, topology: TopologyIndex) -> float:
    """Return the rate of a NIC, or of the fastest one of a host."""
    host, _, nic = end.partition("/")
    nics = [nic] if nic else [each.id for each in topology.nics_of(host)]
    return max((cable.gbps for each in nics if (cable := topology.host_link(host, each))), default=np.inf)


def _drop_trickles(
    found: list[tuple[Flow, Wiring]], topology: TopologyIndex, share: float
) -> list[tuple[Flow, Wiring]]:
    """Leave out the smallest flows of each NIC, as long as together they are next to nothing for it.

    Each alone may be small and all together the whole traffic, as in an all-to-all of many: those stay.
    """
    by_end: dict[str, list[tuple[Flow, Wiring]]] = defaultdict(list)
    for flow, wire in found:
        by_end[flow.src].append((flow, wire))
    kept: list[tuple[Flow, Wiring]] = []
    for end, mine in by_end.items():
        mine.sort(key=lambda pair: (pair[0].gbps * pair[0].duty, pair[0].id))
        load = np.cumsum([flow.gbps * flow.duty for flow, _ in mine])
        first = int(np.searchsorted(load, share * _rate_of(end, topology), side="right"))
        kept += mine[first:]
    return kept
