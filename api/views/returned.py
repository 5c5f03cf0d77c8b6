"""Is it the same part again? GPUs that were sent back or named before and sit elsewhere now, and failed repairs."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field

from api.dependencies import show_timestamp
from lockstep.execution import Isolated, NodeOrder, Outcome
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_isolated, list_node_orders, list_outcomes
from lockstep.state.incidents import list_incidents
from lockstep.store.store import Store
from lockstep.topology import gpu_name
from lockstep.verdict import Frozen, Incident
from lockstep.words import kind_of

# Jobs tell where they found a GPU, and lie on other shards than its readings: no shard may be left out for a host.
_SIGHTINGS = """
SELECT gpu_uuid, host, gpu, min(sightings.first_ns) AS first_ns, max(sightings.last_ns) AS last_ns
FROM sightings WHERE {condition} GROUP BY gpu_uuid, host, gpu ORDER BY gpu_uuid, first_ns, host, gpu
SETTINGS optimize_skip_unused_shards = 0
"""


class Sighting(Frozen):
    """A GPU at a place, from its first to its last sign there."""

    gpu_uuid: str
    component: str = Field(description="the place, as it is named in verdicts")
    first_ns: int
    last_ns: int
    first_at: str | None = None
    last_at: str | None = None


def sightings_at(store: Store, hosts: Collection[str]) -> list[Sighting]:
    """Return the GPUs that have been in some hosts, by UUID and time."""
    return _read(store, "host IN {wanted:Array(String)}", hosts)


def sightings_of(store: Store, uuids: Collection[str]) -> list[Sighting]:
    """Return where some GPUs have been, by UUID and time."""
    return _read(store, "gpu_uuid IN {wanted:Array(String)}", uuids)


def uuids_at(sightings: Iterable[Sighting], component: str, timestamp_ns: int) -> set[str]:
    """Return which GPU was at a place at a moment: the one that came there last until then."""
    there = [each for each in sightings if each.component == component and each.first_ns <= timestamp_ns]
    newest = max(there, key=lambda each: each.first_ns, default=None)
    return {newest.gpu_uuid} if newest else set()


def _read(store: Store, condition: str, wanted: Collection[str]) -> list[Sighting]:
    if not wanted:
        return []
    return [
        Sighting(
            gpu_uuid=row["gpu_uuid"],
            component=gpu_name(row["host"], row["gpu"]),
            first_ns=row["first_ns"],
            last_ns=row["last_ns"],
            first_at=show_timestamp(row["first_ns"]),
            last_at=show_timestamp(row["last_ns"]),
        )
        for row in store.query(_SIGHTINGS.format(condition=condition), {"wanted": sorted(wanted)}).to_pylist()
    ]


_MOST_INCIDENTS = 5_000  # that the ledger looks back on


@dataclass(frozen=True)
class Past:
    """What the control database knows of parts."""

    incidents: Sequence[Incident]  # the newest first
    outcomes: dict[str, Outcome]  # by incident
    isolated: Sequence[Isolated]  # the oldest first
    sent_back: Sequence[tuple[Isolated, NodeOrder]]  # what persons said that they sent to the maker


def read_past(control: ControlDatabase) -> Past:
    """Return the newest incidents, and all that was confirmed, isolated and sent back."""
    isolated = list_isolated(control)
    orders = ((each, order) for each in isolated for order in list_node_orders(control, each))
    return Past(
        incidents=list_incidents(control, limit=_MOST_INCIDENTS),
        outcomes=list_outcomes(control),
        isolated=isolated,
        sent_back=[(each, order) for each, order in orders if order.kind == "rma" and order.part],
    )


def suspect_uuids(past: Past, sightings: Sequence[Sighting]) -> set[str]:
    """Return the GPUs that were named by an incident or sent back: those to look for elsewhere."""
    named = (
        uuid
        for incident in past.incidents
        for uuid in uuids_at(sightings, incident.verdict.component, incident.verdict.since_ns)
    )
    sent = (order.part.uuid for _, order in past.sent_back if order.part and order.part.uuid)
    return {*named, *sent}


def find_returned(past: Past, sightings: Sequence[Sighting]) -> dict[str, tuple[str, ...]]:
    """Return sentences by the part they concern; `sightings` tell of all places of the suspect GPUs."""
    flags: dict[str, list[str]] = defaultdict(list)
    for component, flag in (*_sent_back(past, sightings), *_moved(past, sightings), *_again(past), *_serials(past)):
        if flag not in flags[component]:
            flags[component].append(flag)
    return {component: tuple(sentences) for component, sentences in flags.items()}


_Flag = tuple[str, str]  # the part, and the sentence


def _sent_back(past: Past, sightings: Sequence[Sighting]) -> Iterator[_Flag]:
    """Return GPUs that are seen after they went to the maker."""
    for isolated, order in past.sent_back:
        uuid = order.part.uuid if order.part else None
        for seen in sightings:
            if uuid and seen.gpu_uuid == uuid and seen.last_ns > order.ts_ns:
                reason = f"{uuid} was sent back from {isolated.node} on {show_timestamp(order.ts_ns)}{_ticket(order)}"
                yield seen.component, f"{reason} and is here again, seen until {seen.last_at}"


def _moved(past: Past, sightings: Sequence[Sighting]) -> Iterator[_Flag]:
    """Return GPUs that an incident named at another place than where they are."""
    for incident in past.incidents:
        named = incident.verdict.component
        if kind_of(named) != "gpu":
            continue
        for uuid in uuids_at(sightings, named, incident.verdict.since_ns):
            for seen in sightings:
                if seen.gpu_uuid == uuid and seen.component != named and seen.first_ns > incident.opened_ns:
                    reason = f"{uuid} was {named} when incident {incident.id} named it"
                    yield seen.component, f"{reason}, and is here since {seen.first_at}"


def _again(past: Past) -> Iterator[_Flag]:
    """Return parts that were named after their repair."""
    repaired = {each.component: each.repaired_ns for each in past.isolated if each.repaired_ns is not None}
    for incident in past.incidents:
        repaired_ns = repaired.get(incident.verdict.component)
        if repaired_ns is not None and incident.opened_ns > repaired_ns:
            reason = f"named again by incident {incident.id}, after its repair of {show_timestamp(repaired_ns)}"
            yield incident.verdict.component, reason


def _serials(past: Past) -> Iterator[_Flag]:
    """Return parts whose serial number went to the maker before."""
    first: dict[str, NodeOrder] = {}
    for isolated, order in sorted(past.sent_back, key=lambda it: it[1].ts_ns):
        serial = order.part.serial if order.part else None
        if not serial:
            continue
        if serial in first:
            reason = f"serial {serial} was sent back before, on {show_timestamp(first[serial].ts_ns)}"
            yield isolated.component, f"{reason}{_ticket(first[serial])}"
        first.setdefault(serial, order)


def _ticket(order: NodeOrder) -> str:
    ticket = order.part.ticket if order.part else None
    return f" (ticket {ticket})" if ticket else ""


def gpu_hosts(incidents: Iterable[Incident], isolated: Iterable[Isolated]) -> set[str]:
    """Return the hosts whose GPUs have a history."""
    names = [*(incident.verdict.component for incident in incidents), *(each.component for each in isolated)]
    return {name.partition(":")[2].partition("/")[0] for name in names if kind_of(name) == "gpu"}
