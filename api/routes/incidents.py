"""Incidents, newest first: verdicts and outcomes, what happened, what changed before, what the part did before."""

from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Window
from api.auth import Reader, admit_reader
from api.dependencies import (
    USUAL,
    Cursor,
    Held,
    Identity,
    KnownParameters,
    Limit,
    Page,
    Paged,
    Timestamp,
    Wanted,
    add_link,
    read_cursor,
)
from api.views.incidents import (
    IncidentDetail,
    IncidentFilter,
    IncidentPages,
    IncidentView,
    RenderedPage,
    find_incident,
)
from api.views.ledger import PartHistory, find_part
from api.views.matrix import Matrix, read_matrix
from api.views.timeline import BEFORE_S, Change, Entry, change_key, find_changes, read_timeline, timeline_key
from lockstep.clock import NS_PER_S
from lockstep.errors import LockstepError
from lockstep.state.incidents import get_incident
from lockstep.verdict import FaultClass, Grade, Severity

PATH = "/api/v1/incidents"


class IncidentFastPath:
    """Middleware; whatever is not a list that can be shown goes on to the route, which says why."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_list = scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "GET"
        answer = await _answer(Request(scope, receive)) if is_list else None
        await (answer or self._app)(scope, receive, send)


async def _answer(request: Request) -> Response | None:
    pages: IncidentPages = request.app.state.incident_pages
    asked = pages.meaning_of(request.scope["query_string"])
    if asked is None:
        return None
    try:
        await admit_reader(request)
        return show_page(request, await pages.find(*asked))
    except (LockstepError, HTTPException):
        return None


def show_page(request: Request, page: RenderedPage) -> Response:
    """Return a page as it is answered, with the link to the next one, and how far behind the analysis is."""
    answer = Response(page.body, media_type="application/json")
    if page.analysis:
        answer.headers["Lockstep-Analysis"] = page.analysis
    add_link(request, answer, Page(items=(), next=page.next))
    return answer


router = APIRouter(prefix="/api/v1", dependencies=[Reader, KnownParameters], tags=["incidents"])

_MATRIX_NS = 30 * NS_PER_S  # of an incident: as the fault was last seen


@router.get("/incidents", summary="List incidents", response_model=Page[IncidentView])
async def incidents(
    request: Request,
    job: Wanted = None,
    state: Literal["open", "closed"] | None = None,
    fault_class: Annotated[FaultClass | None, Query(alias="class")] = None,
    component: Wanted = None,
    host: Wanted = None,
    grade: Grade | None = None,
    severity: Severity | None = None,
    from_ns: Timestamp = None,
    to_ns: Timestamp = None,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> Response:
    """Return incidents with their newest verdicts; `next` and the Link header lead to older ones.

    `host` is for parts of a host and links that end at it, `from_ns` and `to_ns` for when they were opened.
    A Lockstep-Analysis header says how far behind the analysis is, where it is: then not all is judged yet.
    """
    after = read_cursor(cursor, int, str)
    wanted = IncidentFilter(
        job=job,
        state=state,
        fault_class=fault_class,
        component=component,
        host=host,
        grade=grade,
        severity=severity,
        from_ns=from_ns,
        to_ns=to_ns,
    )
    pages: IncidentPages = request.app.state.incident_pages
    pages.learn(request.scope["query_string"], (wanted, limit, after))
    return show_page(request, await pages.find(wanted, limit, after))


@router.get("/incidents/{incident_id}", summary="Read an incident")
def incident(parts: Held, incident_id: Identity) -> IncidentDetail:
    """Return one incident, what it turned out to be, and the decisions on it."""
    return find_incident(parts.control, incident_id)


@router.get("/incidents/{incident_id}/timeline", summary="Read the timeline of an incident")
def timeline(parts: Held, page: Paged, incident_id: Identity) -> Page[Entry]:
    """Return who was notified, who acted and what was automatic, oldest first."""
    after = page.after(int, int, str)
    found = read_timeline(parts.control, incident_id)
    return page.cut_sorted(found, after, timeline_key)


@router.get("/incidents/{incident_id}/changes", summary="Read what changed before an incident")
def changes(
    parts: Held,
    page: Paged,
    incident_id: Identity,
    before_s: Annotated[int, Query(ge=1, le=86_400, description="how far before the fault to look")] = BEFORE_S,
) -> Page[Change]:
    """Return what was different from shortly before the fault began, the newest first."""
    after = page.after(int, str)
    found = find_changes(parts.store, parts.control, get_incident(parts.control, incident_id), before_s)
    return page.cut_sorted(found, after, change_key)


@router.get("/incidents/{incident_id}/part", summary="Read what the part of an incident did before")
def part(parts: Held, incident_id: Identity) -> PartHistory:
    """Return the history of the part that the incident names, the incident itself included."""
    named = get_incident(parts.control, incident_id).verdict.component
    return find_part(parts.store, parts.control, named, parts.clock.now_ns())


@router.get("/incidents/{incident_id}/matrix", summary="Read the delay matrix of an incident")
def matrix(parts: Held, incident_id: Identity) -> Matrix:
    """Return the delay matrix of the job in the last half minute in which the fault was seen."""
    found = get_incident(parts.control, incident_id)
    end_ns = found.verdict.last_seen_ns
    window = Window(max(end_ns - _MATRIX_NS, 0), end_ns)
    roster = read_roster(parts.store, found.job, found.attempt)
    return read_matrix(parts.store, found.job, found.attempt, roster, window)
