"""Silences: what nobody is told about for a while; it is still found, shown and written down."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from api.auth import Actor, Reader
from api.paging import Cursor, Limit, Page, add_link, cut_page, read_cursor
from api.parts import parts_of
from lockstep.clock import NS_PER_S
from lockstep.control.silences import Matchers, Silence, create_silence, end_silence, list_silences
from lockstep.verdict import Frozen

router = APIRouter(prefix="/api/v1/silences", tags=["alerts"])

_LONGEST_S = 90 * 24 * 3600.0  # who wants more has a fault to mend, or an incident to grade down


class SilenceBody(Frozen):
    """What to be silent about, for how long, and why."""

    matchers: Matchers
    lasts_s: float = Field(gt=0, le=_LONGEST_S)
    why: str = Field("", max_length=1000)


@router.get("", dependencies=[Reader])
def silences(
    request: Request,
    response: Response,
    ended: Annotated[bool, Query(description="those that are over, too")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[Silence]:
    """Return silences, the last to end first."""
    parts = parts_of(request)
    place = read_cursor(cursor, int, str)
    before = (int(place[0]), str(place[1])) if place else None
    since_ns = 0 if ended else parts.clock.now_ns()
    found = list_silences(parts.control, limit=limit + 1, before=before, since_ns=since_ns)
    page = cut_page(found, limit, lambda silence: (silence.until_ns, silence.id))
    return add_link(request, response, page)


@router.post("", status_code=201)
def create(request: Request, body: SilenceBody, actor: Actor) -> Silence:
    """Be silent from now on about matters that fit; what was told already is still resolved."""
    parts = parts_of(request)
    now_ns = parts.clock.now_ns()
    until_ns = now_ns + round(body.lasts_s * NS_PER_S)
    return create_silence(parts.control, body.matchers, until_ns=until_ns, who=actor, why=body.why, now_ns=now_ns)


@router.delete("/{silence}")
def end(
    request: Request,
    silence: Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")],
    actor: Actor,
    why: Annotated[str, Query(max_length=1000)] = "",
) -> Silence:
    """End a silence now; what is open is told then."""
    parts = parts_of(request)
    return end_silence(parts.control, silence, who=actor, why=why, now_ns=parts.clock.now_ns())
