"""Between which NICs a connection runs, and over which queue pairs or sockets, as far as telemetry can tell.

Best known first: the row of `connections` of that end, the rows of its transfers, the address, the host alone.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.topology import TopologyIndex

KEY = ("job", "attempt", "comm", "rank", "peer", "channel")
Key = tuple[str, int, int, int, int, int]  # values of KEY
SUMS = ("direction", "bytes", "seconds", "wire_ns", "host", "nic", "transport", "last_ns")

_NETWORKS = ("ib", "socket", "ofi")  # transports that leave the host over a NIC and have a peer
_ADDRESS = re.compile(r"[0-9.]+")  # without the port that NCCL writes behind it


@dataclass(frozen=True)
class DemandFacts:
    """What the store knows of the sends of some seconds; tables may have more columns than are named here."""

    members: pa.Table  # job, attempt, comm, rank, host, init_ns
    connections: pa.Table  # rows of the table of that name, of both directions
    sums: pa.Table  # as sum_stats gives them
    start_ns: int  # of the first whole second
    end_ns: int  # of the last one
    topology: TopologyIndex
    notes: tuple[str, ...] = ()  # what the reader had to leave out


def sum_stats(stats: pa.Table, start_ns: int, end_ns: int) -> pa.Table:
    """Return rows of `transfer_stats` summed over some seconds: a row per connection and direction.

    Columns after the key: direction, bytes, seconds in which it moved any, wire_ns, and host, nic and transport as
    they were last, at last_ns.
    """
    inside = pc.and_(pc.greater_equal(stats["ts_ns"], start_ns), pc.less(stats["ts_ns"], end_ns))
    stats = stats.filter(pc.and_(inside, pc.and_(pc.greater_equal(stats["peer"], 0), pc.greater(stats["bytes"], 0))))
    grouped = stats.sort_by("ts_ns").group_by([*KEY, "direction"], use_threads=False)  # in order, for the last ones
    last = [(name, "last") for name in ("host", "nic", "transport", "ts_ns")]
    sums = grouped.aggregate([("bytes", "sum"), ("ts_ns", "count_distinct"), ("wire_ns", "sum"), *last])
    return sums.rename_columns([*KEY, *SUMS])


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
        self._told_nic = _find_receivers(facts.sums)
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
        wires = []
        for number in range(count):
            pair = pairs[number % len(pairs)]
            far = self._far_nics(str(dst), back, pair)
            ends = self._join(src, near[number % len(pairs)], str(dst), far, number)
            wires.append(Wiring(*ends, carrier, pair.sport if len(pairs) == count else None))
        return wires, ""

    def _refuse(self, src: str, dst: str | None, transport: str | None) -> str:
        if src == dst or transport in ("p2p", "shm"):
            return "they stay inside a host"
        if transport is not None and transport not in _NETWORKS:
            return f"{transport} has no peers to plan for"
        if dst is None:
            return "nobody told on which host their peer is"
        if not (self._topology.nics_of(src) and self._topology.nics_of(dst)):
            return "the topology does not have one of their hosts"
        return ""

    def _far_nics(self, dst: str, back: Key, pair: "_Known") -> list[str]:
        """Return the NICs at the other end: of the same queue pair, else of all of its connection."""
        theirs = self._known.get((*back, "recv"), [])
        exact = [each for each in theirs if pair.rqpn is not None and each.lqpn == pair.rqpn]
        told = ",".join(dict.fromkeys(each.nic for each in exact or theirs if each.nic))
        return self._nics(dst, told or self._told_nic.get(back), pair.remote)

    def _nics(self, host: str, told: str | None, address: str) -> list[str]:
        """Return the ports of a connection's NIC, none where they are unknown or not in the topology."""
        if not told:
            at = self._at(address)
            return [at[1]] if at[0] == host else []
        nics = [nic for nic in told.split(",") if self._topology.leaf_of(host, nic)]
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
    told = rows.sort_by([("confidence", "ascending"), ("seen_ns", "ascending")])  # what was learnt best comes last
    found: dict[tuple[object, ...], list[_Known]] = defaultdict(list)
    keys = zip(*(told[name].to_pylist() for name in (*KEY, "direction")), strict=True)
    values = zip(*(told[name].to_pylist() for name in _Known.__slots__), strict=True)
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
