"""Incident pages: the list, and one incident in the order in which the night shift asks about it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from markupsafe import Markup
from pydantic import ValidationError

from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Window
from api.auth import Actor
from api.dashboard.pages import (
    PageRoute,
    Viewer,
    call,
    find_viewer,
    incident_page,
    job_call,
    page_of,
    page_router,
    render,
)
from api.dashboard.pictures import Slow, draw_heat, draw_sparkline, find_slowest
from api.dashboard.words import Proof, proof_of
from api.dependencies import Parts, parts_of, read_cursor, write_cursor
from api.routes import decisions
from api.routes.session import Form
from api.views.hosts import list_hosts
from api.views.jobs import list_steps
from api.views.ledger import ends_of, nodes_of
from api.views.matrix import Matrix, read_matrix
from api.views.ranks import Rank, list_ranks
from api.views.timeline import Change, Entry, find_changes, read_timeline
from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.errors import BadInput, LockstepError
from lockstep.execution import UNFINISHED, Execution, OrderKind, Outcome
from lockstep.state.decisions import find_execution, get_decision, list_decisions
from lockstep.state.incidents import get_incident, list_incidents, outcomes_of
from lockstep.topology import Topology
from lockstep.verdict import Frozen, Incident, Verdict
from lockstep.words import kind_of

_Found = TypeVar("_Found")
_STEPS = 400
_SLOWEST = 8  # cells named beside the small matrix
_MATRIX_NS = 10 * NS_PER_S
_CHANGES = 12
_NOTHING = Markup("")
_BEFORE = 200  # incidents among which the part is looked for


_NAMED = 8  # ranks that are named one by one where they are no row


@dataclass(frozen=True, slots=True)
class Location:
    """Where a technician would walk to, and whom it would hit."""

    host: str
    rack: str | None
    ranks: tuple[int, ...]  # of the incident's job
    cables: tuple[str, ...]  # what the part's own NICs are plugged into
    jobs: tuple[str, ...]  # that run on the host now

    def __str__(self) -> str:
        """Return it as a person says it."""
        described = [f"host {self.host}", f"rack {self.rack}" if self.rack else "", say_ranks(self.ranks)]
        return ", ".join(filter(None, described)) + "".join(f"; {cable}" for cable in self.cables)


def find_location(parts: Parts, incident: Incident) -> Location | None:
    """Return where the part is; None for one that is not of one host."""
    component, now_ns = incident.verdict.component, parts.second_ns()
    known = {each.host: each for each in list_hosts(parts.store, parts.control, parts.topology, now_ns)}
    found = [known[node] for node in sorted(nodes_of(component)) if node in known]
    if len(found) != 1:
        return None
    ranks = list_ranks(parts.store, incident.job, incident.attempt, now_ns)
    return Location(
        host=found[0].host,
        rack=found[0].rack,
        ranks=tuple(choose_ranks(component, found[0].host, ranks)),
        cables=tuple(find_cables(component, parts.topology)),
        jobs=found[0].jobs,
    )


def choose_ranks(component: str, host: str, ranks: Iterable[Rank]) -> list[int]:
    """Return the ranks on a host, or on the GPU that is meant."""
    gpu = component.rpartition("/")[2] if kind_of(component) == "gpu" else ""
    return sorted(rank.rank for rank in ranks if rank.host == host and (not gpu or gpu == str(rank.gpu)))


def find_cables(component: str, topology: Topology | None) -> list[str]:
    """Return what a NIC is plugged into; nothing for other parts, whose name says it or which have no plug."""
    if topology is None or kind_of(component) != "nic":
        return []
    (end,) = ends_of(component)
    other = [b if a == end else a for a, b in ((link.a, link.b) for link in topology.links) if end in (a, b)]
    return [f"plugged into {each}" for each in other]


def say_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    >>> say_ranks([4]), say_ranks([24, 25, 26]), say_ranks([0, 8])
    ('rank 4', 'ranks 24 to 26', 'ranks 0, 8')
    """
    if len(ranks) < 2:
        return f"rank {ranks[0]}" if ranks else ""
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_NAMED]))}{more}"


@dataclass(frozen=True)
class Traffic:
    """What the job's telemetry shows of the fault; empty, with the reason, where the store does not tell."""

    curve: Markup = _NOTHING
    heat: Markup = _NOTHING
    slowest: Sequence[Slow] = ()
    first_step: int | None = None  # that was under way when it began
    changes: Sequence[Change] = ()  # shortly before it began
    location: Location | None = None  # of the part; None: it is not of one host
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
        execution=next(filter(None, (find_execution(control, each.id) for each in decisions)), None),
        outcome=outcomes_of(control, [incident_id]).get(incident_id),
        before=_find_before(parts, incident),
        traffic=_read_traffic(parts, incident),
        proof=proof_of(incident.verdict),
        per_hour=incident.verdict.lost_per_hour,
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
        location=_try(lambda: find_location(parts, incident), missing),
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


router = page_router()

_ON_A_PAGE = 50
_BEFORE_S = 120  # of a capture, before the fault began: what was normal
_DAY_S = 86_400


@router.get("/incidents")
def incidents(
    request: Request,
    state: Annotated[Literal["open", "closed", ""] | None, Query()] = None,
    job: str | None = None,
    cursor: str | None = None,
) -> HTMLResponse:
    """Return incidents, the newest first."""
    after = read_cursor(cursor or None, int, str)
    before = (int(after[0]), str(after[1])) if after else None
    asked = {"state": state or None, "job": job or None}
    found = list_incidents(
        parts_of(request).control, state=state or None, job=job or None, limit=_ON_A_PAGE + 1, before=before
    )
    shown = found[:_ON_A_PAGE]
    last = (shown[-1].opened_ns, shown[-1].id) if len(found) > _ON_A_PAGE else None
    following = page_of("/incidents", **asked, cursor=write_cursor(last)) if last else None
    calls = (call("/incidents", **asked),)
    return render(
        request, "incidents.html", "incidents", "Incidents", calls, incidents=shown, following=following, **asked
    )


@router.get("/incidents/{incident_id}")
def incident(request: Request, incident_id: str) -> HTMLResponse:
    """Return all that is known of one incident; printed, it is the report."""
    view = gather(request, incident_id)
    calls = [call(f"/incidents/{incident_id}"), call(f"/incidents/{incident_id}/timeline")]
    if view.decision:
        calls.append(call(f"/decisions/{view.decision.id}"))
    calls.append(job_call(view.incident.job, "matrix"))
    # A capture reaches back to before the fault's beginning, within what the API gives.
    lasted_s = (parts_of(request).clock.now_ns() - view.verdict.since_ns) // NS_PER_S
    return render(
        request,
        "incident.html",
        "incidents",
        f"{view.incident.verdict.component}, incident {incident_id}",
        tuple(calls),
        view=view,
        here=f"{str(request.base_url).rstrip('/')}{incident_page(incident_id)}",
        evidence=evidence_rows(view.verdict),
        capture=job_call(view.incident.job, "capture", since_s=min(lasted_s + _BEFORE_S, _DAY_S)),
    )


acts = APIRouter(route_class=PageRoute, include_in_schema=False)

_Model = TypeVar("_Model", bound=Frozen)
_KINDS = ("approve", "reject", "undo")


@acts.post("/incidents/{incident_id}/orders")
def order(request: Request, incident_id: str, form: Form, actor: Actor) -> RedirectResponse:
    """Approve, reject or undo a decision of the incident, and show the page again."""
    kind, decision = form.get("kind", ""), form.get("decision", "")
    if kind not in _KINDS:
        raise BadInput(f"{kind!r} is none of {', '.join(_KINDS)}")
    if get_decision(parts_of(request).control, decision).incident != incident_id:
        raise BadInput(f"decision {decision} is not about incident {incident_id}")
    word = _checked(decisions.Word, why=form.get("why", ""))
    decisions.order(parts_of(request), decision, cast(OrderKind, kind), word, actor)
    return _back(incident_id, "decision")


@acts.post("/incidents/{incident_id}/outcome")
def outcome(request: Request, incident_id: str, form: Form, actor: Actor) -> RedirectResponse:
    """Write down what the incident turned out to be, and show the page again."""
    confirmation = _checked(
        decisions.Confirmation,
        was_right=form.get("was_right", ""),
        part=form.get("part", "").strip() or None,
        why=form.get("why", ""),
    )
    decisions.confirm(request, incident_id, confirmation, actor)
    return _back(incident_id, "outcome")


def _checked(model: type[_Model], **fields: object) -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise BadInput("; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())) from error


def _back(incident_id: str, part: str) -> RedirectResponse:
    return RedirectResponse(f"{incident_page(incident_id)}#{part}", status_code=303)
