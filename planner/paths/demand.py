"""Which flows there are: what the jobs' connections really sent lately, as flows to plan, and what could not be told.

Rates decide: whatever sent bytes to another host in the window is a flow, once per queue pair or socket where
`connections` tells of several, else once. So rings, trees and all-to-all need not be known as such: who sends to whom
is in the transfers. What is not known is not made up: an unknown NIC leaves the host alone as an end, and a send of
which an end is unknown is left out and counted.

Cost: array operations and a loop over connections; their seconds were summed before (wiring.py, or the store).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.clock import NS_PER_S
from lockstep.topology import TopologyIndex
from planner.paths.flows import Flow
from planner.paths.wiring import KEY, DemandFacts, Key, Wiring, WiringBook

_ACKNOWLEDGED = ("ib", "ofi")  # whose wire time ends with the acknowledgement; a socket's when the kernel has copied
_COMM = ("job", "attempt", "comm")


@dataclass(frozen=True, slots=True)
class DemandOptions:
    """What is worth a plan."""

    trickle_share: float = 0.01  # of a NIC's rate: its smallest sends, while all of them together stay below this


@dataclass(frozen=True)
class Demand:
    """The flows, how each is wired now, and a sentence for each kind of send that is not among them."""

    flows: list[Flow]
    wiring: Mapping[str, Wiring] = field(default_factory=dict)  # by flow
    left_out: tuple[str, ...] = ()


def find_flows(facts: DemandFacts, options: DemandOptions | None = None) -> list[Flow]:
    """Return the flows to plan, in the order of their ids."""
    return find_demand(facts, options).flows


def find_demand(facts: DemandFacts, options: DemandOptions | None = None) -> Demand:
    """Return the flows to plan, and what was left out."""
    book, missing = WiringBook(facts), Counter[str]()
    found: list[tuple[Flow, Wiring]] = []
    for send in _describe_sends(facts):
        wires, why = book.wire(send.key, send.host, send.nic, send.transport)
        missing[why] += 1
        found += _as_flows(send, wires, facts.topology)
    kept = _drop_trickles(found, facts.topology, options or DemandOptions())
    missing["together they are a trickle on their NIC"] = len(found) - len(kept)
    kept.sort(key=lambda pair: pair[0].id)
    said = [f"{count} sends are no flows: {why}" for why, count in sorted(missing.items()) if why and count]
    said += [f"{count} {what}" for what, count in sorted(book.remarks.items())]
    return Demand([flow for flow, _ in kept], {flow.id: wire for flow, wire in kept}, (*facts.notes, *said))


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
    sums = _newest_attempts(facts.sums.filter(pc.equal(facts.sums["direction"], "send")))
    lasting_ns = _find_lasting(sums, facts)
    gbps = _floats(sums, "bytes") * 8 / lasting_ns  # bits per nanosecond
    seconds = _floats(sums, "seconds") * NS_PER_S / lasting_ns
    wire = _floats(sums, "wire_ns") / lasting_ns
    knows_wire = np.asarray(pc.is_in(sums["transport"], pa.array(_ACKNOWLEDGED))) & (wire > 0)
    duty = np.minimum(np.where(knows_wire, np.minimum(wire, seconds), seconds), 1.0)
    rows = [sums[name].to_pylist() for name in (*KEY, "host", "nic", "transport")]
    for *key, host, nic, transport, rate, share in zip(*rows, gbps.tolist(), duty.tolist(), strict=True):
        yield _Send((key[0], key[1], key[2], key[3], key[4], key[5]), host, nic, transport, rate, share)


def _newest_attempts(sums: pa.Table) -> pa.Table:
    """Leave out what a job sent before it was restarted."""
    newest = sums.group_by("job").aggregate([("attempt", "max")])
    return sums.join(newest, "job").filter(pc.equal(pc.field("attempt"), pc.field("attempt_max")))


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


def _as_flows(send: _Send, wires: Sequence[Wiring], topology: TopologyIndex) -> Iterator[tuple[Flow, Wiring]]:
    """Yield a flow per queue pair: a connection shares its bytes out evenly among them."""
    job, _, comm, rank, peer, channel = send.key
    for number, wire in enumerate(wires):
        average = send.gbps / len(wires)
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
    found: list[tuple[Flow, Wiring]], topology: TopologyIndex, options: DemandOptions
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
        first = int(np.searchsorted(load, options.trickle_share * _rate_of(end, topology), side="right"))
        kept += mine[first:]
    return kept
