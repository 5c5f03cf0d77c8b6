"""Incidents and the decisions on them, newest first."""

import base64
import binascii
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from api.auth import Reader
from api.parts import parts_of
from lockstep.control.decisions import list_decisions
from lockstep.control.incidents import get_incident, list_incidents
from lockstep.errors import BadInput
from lockstep.incident import Incident

router = APIRouter(prefix="/api/v1", dependencies=[Reader])

Json = dict[str, Any]


@router.get("/incidents")
def incidents(
    request: Request,
    response: Response,
    job: str | None = None,
    state: Literal["open", "closed"] | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: str | None = None,
) -> Json:
    """Return incidents with their newest verdicts; `next` and the Link header lead to older ones."""
    before = _read_cursor(cursor) if cursor else None
    found = list_incidents(parts_of(request).control, job=job, state=state, limit=limit, before=before)
    following = _write_cursor(found[-1]) if len(found) == limit else None
    if following:
        response.headers["Link"] = f'<{request.url.include_query_params(cursor=following)}>; rel="next"'
    return {"items": [_as_json(incident) for incident in found], "next": following}


@router.get("/incidents/{incident_id}")
def incident(request: Request, incident_id: str) -> Json:
    """Return one incident and the decisions on it."""
    control = parts_of(request).control
    found = get_incident(control, incident_id)
    decisions = [decision.as_json() for decision in list_decisions(control, incident=incident_id)]
    return _as_json(found) | {"decisions": decisions}


def _as_json(incident: Incident) -> Json:
    return incident.model_dump(by_alias=True)


def _write_cursor(incident: Incident) -> str:
    return base64.urlsafe_b64encode(f"{incident.opened_ns}:{incident.id}".encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[int, str]:
    try:
        opened_ns, _, identity = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition(":")
        return int(opened_ns), identity
    except (binascii.Error, ValueError):
        raise BadInput(f"{cursor!r} is not a cursor that this server gave") from None
