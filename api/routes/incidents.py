"""Incidents, newest first: verdicts and outcomes, what happened, what changed before, what the part did before."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from analyzer.roster import read_roster
from analyzer.windows import Window
from api.asking import Identity, Wanted
from api.auth import Reader
from api.incident_door import show_page
from api.paging import USUAL, Cursor, Limit, Page, add_link, cut_sorted, read_cursor
from api.parts import parts_of
from api.reading.changes import BEFORE_S, Change, find_changes
from api.reading.changes import place_of as change_place
from api.reading.incidents import IncidentDetail, IncidentFilter, IncidentPages, IncidentView, find_incident
from api.reading.ledger import find_part
from api.reading.matrix import Matrix, read_matrix
from api.reading.parts import PartHistory
from api.reading.timeline import Entry, read_timeline
from api.reading.timeline import place_of as timeline_place
from lockstep.clock import NS_PER_S
from lockstep.control.incidents import get_incident
from lockstep.verdict import FaultClass

router = APIRouter(prefix="/api/v1", dependencies=[Reader], tags=["incidents"])

_MATRIX_NS = 30 * NS_PER_S  # of an incident: as the fault was last seen


@router.get("/incidents", summary="List incidents", response_model=Page[IncidentView])
async def incidents(
    request: Request,
    job: Wanted = None,
    state: Literal["open", "closed"] | None = None,
    fault_class: Annotated[FaultClass | None, Query(alias="class")] = None,
    component: Wanted = None,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> Response:
    """Return incidents with their newest verdicts; `next` and the Link header lead to older ones."""
    after = read_cursor(cursor, int, str)
    wanted = IncidentFilter(job=job, state=state, fault_class=fault_class, component=component)
    pages: IncidentPages = request.app.state.incident_pages
    pages.learn(request.scope["query_string"], (wanted, limit, after))
    return show_page(request, await pages.find(wanted, limit, after))


@router.get("/incidents/{incident_id}", summary="Read an incident")
def incident(request: Request, incident_id: Identity) -> IncidentDetail:
    """Return one incident, what it turned out to be, and the decisions on it."""
    return find_incident(parts_of(request).control, incident_id)


@router.get("/incidents/{incident_id}/timeline", summary="Read the timeline of an incident")
def timeline(
    request: Request, response: Response, incident_id: Identity, limit: Limit = USUAL, cursor: Cursor = None
) -> Page[Entry]:
    """Return who was told, who acted and what was done by itself, oldest first."""
    after = read_cursor(cursor, int, int, str)
    found = read_timeline(parts_of(request).control, incident_id)
    return add_link(request, response, cut_sorted(found, limit, after, timeline_place))


@router.get("/incidents/{incident_id}/changes", summary="Read what changed before an incident")
def changes(
    request: Request,
    response: Response,
    incident_id: Identity,
    before_s: Annotated[int, Query(ge=1, le=86_400, description="how far before the fault to look")] = BEFORE_S,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> Page[Change]:
    """Return what was different from shortly before the fault began, the newest first."""
    parts = parts_of(request)
    after = read_cursor(cursor, int, str)
    found = find_changes(parts.store, parts.control, get_incident(parts.control, incident_id), before_s)
    return add_link(request, response, cut_sorted(found, limit, after, change_place))


@router.get("/incidents/{incident_id}/part", summary="Read what the part of an incident did before")
def part(request: Request, incident_id: Identity) -> PartHistory:
    """Return the history of the part that the incident names, the incident itself included."""
    parts = parts_of(request)
    named = get_incident(parts.control, incident_id).verdict.component
    return find_part(parts.store, parts.control, named, parts.clock.now_ns())


@router.get("/incidents/{incident_id}/matrix", summary="Read the delay matrix of an incident")
def matrix(request: Request, incident_id: Identity) -> Matrix:
    """Return the delay matrix of the job in the last half minute in which the fault was seen."""
    parts = parts_of(request)
    found = get_incident(parts.control, incident_id)
    end_ns = found.verdict.last_seen_ns
    window = Window(max(end_ns - _MATRIX_NS, 0), end_ns)
    roster = read_roster(parts.store, found.job, found.attempt)
    return read_matrix(parts.store, found.job, found.attempt, roster, window)
