"""Everything that is known of one incident, gathered for its page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from markupsafe import Markup

from analyzer.roster import read_roster
from analyzer.windows import Window
from api.dashboard.pictures.heat import Slow, draw_heat, find_slowest
from api.dashboard.pictures.sparkline import draw_sparkline
from api.dashboard.viewer import Viewer, find_viewer
from api.dashboard.whereabouts import Whereabouts, find_whereabouts
from api.dashboard.words import Proof, proof_of
from api.parts import Parts, parts_of
from api.reading.changes import Change, find_changes
from api.reading.matrix import Matrix, read_matrix
from api.reading.steps import list_steps
from api.reading.timeline import Entry, read_timeline
from lockstep.clock import NS_PER_S
from lockstep.control.decisions import list_decisions
from lockstep.control.executions import find_execution
from lockstep.control.incidents import get_incident, list_incidents
from lockstep.control.pages import outcomes_of
from lockstep.decision import Decision
from lockstep.errors import LockstepError
from lockstep.execution import UNFINISHED, Execution, Outcome
from lockstep.incident import Incident
from lockstep.verdict import Verdict
from lockstep.words import lost_per_hour

_Found = TypeVar("_Found")
_STEPS = 400
_SLOWEST = 8  # cells named beside the small matrix
_MATRIX_NS = 10 * NS_PER_S
_CHANGES = 12
_NOTHING = Markup("")
_BEFORE = 200  # incidents among which the part is looked for


@dataclass(frozen=True)
class Traffic:
    """What the job's telemetry shows of the fault; empty, with the reason, where the store does not tell."""

    curve: Markup = _NOTHING
    heat: Markup = _NOTHING
    slowest: Sequence[Slow] = ()
    first_step: int | None = None  # that was under way when it began
    changes: Sequence[Change] = ()  # shortly before it began
    place: Whereabouts | None = None  # of the part; None: it is not of one host
    missing: str = ""


@dataclass(frozen=True)
class IncidentView:
    """One incident with its decision and what became of it."""

    incident: Incident
    decision: Decision | None
    timeline: Sequence[Entry]
    execution: Execution | None
    outcome: Outcome | None
    before: Sequence[Incident]  # earlier ones about the same part
    traffic: Traffic
    proof: Proof | None
    per_hour: float | None  # GPU-hours that an hour of waiting costs
    price: float | None
    viewer: Viewer

    @property
    def verdict(self) -> Verdict:
        return self.incident.verdict

    def can_approve(self, now_ns: int) -> bool:
        """Return whether a yes would change anything."""
        found = self.decision
        is_fresh = found is not None and found.action != "none" and found.expires_ns > now_ns
        return is_fresh and self.incident.state == "open" and self.execution is None

    @property
    def can_undo(self) -> bool:
        return self.execution is not None and self.execution.state in (*UNFINISHED, "done")


def gather(request: Request, incident_id: str) -> IncidentView:
    """Return all that is known of an incident; NotPresent for one that is not."""
    parts = parts_of(request)
    control = parts.control
    incident = get_incident(control, incident_id)
    decisions = list_decisions(control, incident=incident_id)
    newest = decisions[0] if decisions else None
    return IncidentView(
        incident=incident,
        decision=newest,
        timeline=read_timeline(control, incident_id),
        execution=_find_run(parts, decisions),
        outcome=outcomes_of(control, [incident_id]).get(incident_id),
        before=_find_before(parts, incident),
        traffic=_read_traffic(parts, incident),
        proof=proof_of(incident.verdict),
        per_hour=lost_per_hour(incident.verdict),
        price=parts.settings.planner.gpu_hour_price,
        viewer=find_viewer(request),
    )


def evidence_rows(verdict: Verdict) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the evidence as tables: a title and its facts; lists of rows become one line each."""
    return [(str(row.get("kind", "evidence")).replace("_", " "), _flatten(row)) for row in verdict.evidence]


def _flatten(row: dict[str, Any]) -> list[tuple[str, str]]:  # Any: each kind of evidence has its own figures
    facts = []
    for name, value in row.items():
        if name == "kind" or value in ([], None, ""):
            continue
        label = name.replace("_", " ")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            facts += [
                (label, ", ".join(f"{key.replace('_', ' ')} {each}" for key, each in one.items())) for one in value
            ]
        else:
            facts.append((label, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return facts


def _find_run(parts: Parts, decisions: Sequence[Decision]) -> Execution | None:
    runs = (find_execution(parts.control, decision.id) for decision in decisions)
    return next((run for run in runs if run is not None), None)


def _find_before(parts: Parts, incident: Incident) -> list[Incident]:
    """Return earlier incidents about the same part, of whichever job."""
    known = list_incidents(parts.control, limit=_BEFORE)
    return [
        other
        for other in known
        if other.id != incident.id
        and other.verdict.component == incident.verdict.component
        and other.opened_ns <= incident.opened_ns
    ]


def _read_traffic(parts: Parts, incident: Incident) -> Traffic:
    """Return what telemetry shows; what one question cannot answer leaves the others."""
    verdict, missing = incident.verdict, list[str]()
    steps = _try(lambda: list_steps(parts.store, incident.job, _STEPS), missing) or []
    steps = [step for step in steps if step.attempt == incident.attempt]
    matrix = _try(lambda: _read_matrix(parts, incident), missing)
    points = [(step.end_ns, step.step_s) for step in reversed(steps)]
    end_ns = incident.closed_ns or max(verdict.last_seen_ns, points[-1][0] if points else 0)
    return Traffic(
        curve=draw_sparkline(points, [(verdict.since_ns, end_ns)], "step times; the time of the fault is shaded"),
        heat=draw_heat(matrix) if matrix else _NOTHING,
        slowest=find_slowest(matrix, _SLOWEST) if matrix else (),
        changes=(_try(lambda: find_changes(parts.store, parts.control, incident), missing) or [])[:_CHANGES],
        first_step=next((step.step for step in reversed(steps) if step.end_ns >= verdict.since_ns), None),
        place=_try(lambda: find_whereabouts(parts, incident), missing),
        missing="; ".join(dict.fromkeys(missing)),
    )


def _read_matrix(parts: Parts, incident: Incident) -> Matrix:
    """Return the matrix of the last seconds in which the fault was seen."""
    roster = read_roster(parts.store, incident.job, incident.attempt)
    end_ns = max(incident.verdict.last_seen_ns, 1)
    return read_matrix(
        parts.store, incident.job, incident.attempt, roster, Window(max(end_ns - _MATRIX_NS, 0), end_ns)
    )


def _try(read: Callable[[], _Found], missing: list[str]) -> _Found | None:
    try:
        return read()
    except LockstepError as error:
        missing.append(str(error))
        return None
