"""The ledger of parts: how they are named, what each did before, and whether one that was sent back is here again."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from api.dependencies import show_timestamp
from api.views.returned import (
    Past,
    Sighting,
    find_returned,
    gpu_hosts,
    read_past,
    sightings_at,
    sightings_of,
    suspect_uuids,
)
from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput, NotPresent
from lockstep.execution import Isolated, Outcome
from lockstep.state.database import ControlDatabase
from lockstep.store.store import Store
from lockstep.verdict import FaultClass, Frozen, Grade, Incident
from lockstep.words import kind_of

KINDS = frozenset({"host", "gpu", "nic", "link", "switch", "port", "nvlink", "pcie"})
_LONGEST = 300

LOOKBACK_S = 90 * 86_400  # a part that was fine for a quarter of a year has no history
_MOST_EVENTS = 100  # of one part
_SEVERE = ("error", "critical")
_Row = dict[str, Any]  # Any: columns of several types
_COUNTS = """
SELECT component, countIf(severity IN ('error', 'critical')) AS severe, max(ts_ns) AS last_ns
FROM events WHERE ts_ns >= {since:Int64} AND component != '' GROUP BY component HAVING severe > 0
"""
_EVENTS = """
SELECT ts_ns, host, source, kind, component, severity, message FROM events
WHERE ts_ns >= {since:Int64} AND (component IN {names:Array(String)} OR host IN {hosts:Array(String)})
ORDER BY ts_ns DESC LIMIT {most:UInt64}
"""


def check_component(component: str) -> str:
    """Return the name itself, or raise BadInput where it is none of a piece of hardware."""
    kind, colon, name = component.partition(":")
    if kind not in KINDS or not colon or not name or len(component) > _LONGEST or "\0" in component:
        kinds = ", ".join(sorted(KINDS))
        raise BadInput(f"{component[:100]!r} is no name of a part: it is kind:name, and the kinds are {kinds}")
    return component


def ends_of(component: str) -> tuple[str, ...]:
    """Return the places that a part's name speaks of.

    >>> ends_of("link:h3/eth1--leaf1/12")
    ('h3/eth1', 'leaf1/12')
    """
    return tuple(component.partition(":")[2].split("--"))


def nodes_of(component: str) -> frozenset[str]:
    """Return the hosts and switches that a part belongs to; none for a job or a rank."""
    is_hardware = kind_of(component) in KINDS
    return frozenset(end.partition("/")[0] for end in ends_of(component)) if is_hardware else frozenset()


def concerns(part: str, component: str) -> bool:
    """Return whether what is said of a component belongs to the history of a part.

    A host has the history of all its parts, and so has a switch; a NIC or a port that of its cable.

    >>> concerns("host:h3", "nic:h3/eth1"), concerns("nic:h3/eth1", "link:h3/eth1--leaf1")
    (True, True)
    >>> concerns("gpu:h3/1", "host:h3")
    False
    """
    if part == component:
        return True
    kind, ends = kind_of(part), ends_of(part)
    if kind in ("host", "switch"):
        return ends[0] in nodes_of(component)
    return kind in ("nic", "port") and kind_of(component) in ("link", "nic", "port") and ends[0] in ends_of(component)


class PartSummary(Frozen):
    """A part that has a history, in figures."""

    component: str
    kind: str
    incidents: int = Field(ge=0, description="that named it")
    confirmed: int = Field(ge=0, description="times that somebody confirmed its fault")
    cleared: int = Field(ge=0, description="incidents that named it and were confirmed to be wrong")
    isolations: int = Field(ge=0)
    severe_events: int = Field(ge=0, description="errors that hosts reported of it")
    last_ns: int = Field(ge=0, description="when it was last reported")
    last_at: str | None = None
    flags: tuple[str, ...] = Field((), description="sentences: sent back and here again, moved, faulty again")


class PartIncident(Frozen):
    """An incident in the history of a part."""

    id: str
    job: str
    component: str
    fault_class: FaultClass = Field(alias="class")
    grade: Grade
    confidence: float
    state: str
    opened_ns: int
    opened_at: str | None = None
    reason: str
    outcome: Outcome | None = None


class PartEvent(Frozen):
    """Something that a host reported of a part."""

    ts_ns: int
    at: str | None = None
    host: str
    source: str
    kind: str
    component: str
    severity: str
    message: str


class PartHistory(PartSummary):
    """All that is known of one part, the newest first."""

    history: tuple[PartIncident, ...] = ()
    events: tuple[PartEvent, ...] = ()
    out_of_service: tuple[Isolated, ...] = ()
    sightings: tuple[Sighting, ...] = Field((), description="of GPUs: which were at this place, and where else")


@dataclass
class _History:
    """What was told of one part."""

    incidents: list[Incident] = field(default_factory=list)
    isolated: list[Isolated] = field(default_factory=list)
    confirmed: int = 0
    cleared: int = 0
    severe: int = 0
    last_ns: int = 0


def list_parts(store: Store, control: ControlDatabase, now_ns: int, kind: str | None = None) -> list[PartSummary]:
    """Return all parts that have a history, by name."""
    past = read_past(control)
    histories = _sort_by_part(past)
    for row in store.query(_COUNTS, {"since": _since(now_ns)}).to_pylist():
        part = histories[row["component"]]
        part.severe, part.last_ns = row["severe"], max(part.last_ns, row["last_ns"])
    flags = find_returned(past, _sightings(store, past))
    names = {name for name in (*histories, *flags) if kind_of(name) in ({kind} if kind else KINDS)}
    return [_summary(name, histories[name], flags.get(name, ())) for name in sorted(names)]


def find_part(store: Store, control: ControlDatabase, component: str, now_ns: int) -> PartHistory:
    """Return the history of one part, a GPU also by gpu:UUID, or raise NotPresent where it has none."""
    past = read_past(control)
    every = _sightings(store, past)
    own = _own_sightings(store, check_component(component))
    names = [component, *dict.fromkeys(each.component for each in own)]
    mine = _narrow(past, component, own)
    hosts = sorted(nodes_of(component)) if kind_of(component) == "host" else []
    asked = {"since": _since(now_ns), "names": names, "hosts": hosts, "most": _MOST_EVENTS}
    rows: Iterable[_Row] = store.query(_EVENTS, asked).to_pylist()
    events = [PartEvent(**row, at=show_timestamp(row["ts_ns"])) for row in rows]
    flags = find_returned(past, [*every, *own])
    sentences = dict.fromkeys(flag for name in names for flag in flags.get(name, ()))
    if not (mine.incidents or mine.isolated or events or own or sentences):
        raise NotPresent(f"no events for {component} in the last {LOOKBACK_S // 86_400} days")
    mine.severe = sum(event.severity in _SEVERE for event in events)
    mine.last_ns = max([mine.last_ns, *(event.ts_ns for event in events)])
    return PartHistory(
        **dict(_summary(component, mine, tuple(sentences))),
        history=tuple(_incident(each, past.outcomes.get(each.id)) for each in mine.incidents),
        events=tuple(events),
        out_of_service=tuple(reversed(mine.isolated)),
        sightings=tuple(own or (each for each in every if each.component == component)),
    )


def _since(now_ns: int) -> int:
    return max(now_ns - LOOKBACK_S * NS_PER_S, 0)


def _sort_by_part(past: Past) -> defaultdict[str, _History]:
    """Return what was told by the part it was told of; what was confirmed counts for the part that was at fault."""
    histories: defaultdict[str, _History] = defaultdict(_History)
    for incident in past.incidents:
        part, outcome = histories[incident.verdict.component], past.outcomes.get(incident.id)
        part.incidents.append(incident)
        part.last_ns = max(part.last_ns, incident.updated_ns)
        if outcome is not None:
            part.cleared += not outcome.was_right
            for name in _blamed(incident, outcome):
                histories[name].confirmed += 1
                histories[name].last_ns = max(histories[name].last_ns, outcome.ts_ns)
    for each in past.isolated:
        histories[each.component].isolated.append(each)
        histories[each.component].last_ns = max(histories[each.component].last_ns, each.changed_ns)
    return histories


def _blamed(incident: Incident, outcome: Outcome) -> list[str]:
    """Return the part that was at fault, where somebody knows it."""
    named = outcome.part or (incident.verdict.component if outcome.was_right else None)
    return [named] if named else []


def _narrow(past: Past, component: str, own: Sequence[Sighting]) -> _History:
    """Return all that belongs to one part; of a GPU that is named by its UUID, what was told where it was then."""
    mine = _History(
        incidents=[each for each in past.incidents if _is_about(each, component, own)],
        isolated=[each for each in past.isolated if concerns(component, each.component)],
    )
    outcomes = [(each, past.outcomes[each.id]) for each in mine.incidents if each.id in past.outcomes]
    mine.cleared = sum(not outcome.was_right for _, outcome in outcomes)
    blamed = [
        name for each in past.incidents if each.id in past.outcomes for name in _blamed(each, past.outcomes[each.id])
    ]
    mine.confirmed = (
        sum(outcome.was_right for _, outcome in outcomes)
        if own
        else sum(concerns(component, name) for name in blamed)
    )
    timestamps = [*(each.updated_ns for each in mine.incidents), *(each.changed_ns for each in mine.isolated)]
    mine.last_ns = max(timestamps, default=0)
    return mine


def _is_about(incident: Incident, component: str, own: Sequence[Sighting]) -> bool:
    since_ns, named = incident.verdict.since_ns, incident.verdict.component
    if not own:
        return concerns(component, named)
    return any(each.component == named and each.first_ns <= since_ns <= each.last_ns for each in own)


def _sightings(store: Store, past: Past) -> list[Sighting]:
    """Return everything that is known of where the suspect GPUs have been, and of who was at their places."""
    there = sightings_at(store, gpu_hosts(past.incidents, past.isolated))
    elsewhere = sightings_of(store, suspect_uuids(past, there))
    return list(dict.fromkeys([*there, *elsewhere]))


def _own_sightings(store: Store, component: str) -> list[Sighting]:
    """Return where a GPU that is named by its UUID has been."""
    kind, _, name = component.partition(":")
    return sightings_of(store, [name]) if kind == "gpu" and "/" not in name else []


def _incident(incident: Incident, outcome: Outcome | None) -> PartIncident:
    verdict = incident.verdict
    return PartIncident(
        id=incident.id,
        job=incident.job,
        component=verdict.component,
        fault_class=verdict.fault_class,
        grade=verdict.grade,
        confidence=verdict.confidence,
        state=incident.state,
        opened_ns=incident.opened_ns,
        opened_at=show_timestamp(incident.opened_ns),
        reason=verdict.reason,
        outcome=outcome,
    )


def _summary(name: str, history: _History, flags: Sequence[str]) -> PartSummary:
    return PartSummary(
        component=name,
        kind=kind_of(name),
        incidents=len(history.incidents),
        confirmed=history.confirmed,
        cleared=history.cleared,
        isolations=len(history.isolated),
        severe_events=history.severe,
        last_ns=history.last_ns,
        last_at=show_timestamp(history.last_ns) if history.last_ns else None,
        flags=tuple(flags),
    )
