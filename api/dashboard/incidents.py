"""Incident pages: the list, and one incident in the order in which the night shift asks about it."""

from typing import Annotated, Literal

from fastapi import Query, Request
from fastapi.responses import HTMLResponse

from api.dashboard.addresses import call, incident_page, job_call, page_of
from api.dashboard.incident_view import IncidentView, evidence_rows, gather
from api.dashboard.page_route import page_router
from api.dashboard.rendering import render
from api.paging import read_cursor, write_cursor
from api.parts import parts_of
from lockstep.clock import NS_PER_S
from lockstep.control.incidents import list_incidents

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
    place = read_cursor(cursor or None, int, str)
    before = (int(place[0]), str(place[1])) if place else None
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
    title = f"{view.incident.verdict.component}, incident {incident_id}"
    return render(
        request,
        "incident.html",
        "incidents",
        title,
        tuple(calls),
        view=view,
        here=f"{str(request.base_url).rstrip('/')}{incident_page(incident_id)}",
        evidence=evidence_rows(view.verdict),
        capture=job_call(view.incident.job, "capture", since_s=_since_s(view, parts_of(request).clock.now_ns())),
    )


def _since_s(view: IncidentView, now_ns: int) -> int:
    """Return how far back a capture must reach to hold the fault's beginning, within what the API gives."""
    return min((now_ns - view.verdict.since_ns) // NS_PER_S + _BEFORE_S, _DAY_S)
