"""Who did what to which part, when and why."""

from fastapi import APIRouter, Request, Response

from api.auth import Reader
from api.paging import USUAL, Cursor, Limit, Page, add_link, cut_page, read_cursor
from api.parts import parts_of
from lockstep.control.audit import AuditLine, list_audit

router = APIRouter(prefix="/api/v1", dependencies=[Reader])


@router.get("/audit")
def audit(
    request: Request,
    response: Response,
    who: str | None = None,
    what: str | None = None,
    subject: str | None = None,
    limit: Limit = USUAL,
    cursor: Cursor = None,
) -> Page[AuditLine]:
    """Return the newest lines first; each of who, what and subject narrows them down."""
    place = read_cursor(cursor, int)
    found = list_audit(
        parts_of(request).control,
        limit + 1,
        before=int(place[0]) if place else None,
        who=who,
        what=what,
        subject=subject,
    )
    return add_link(request, response, cut_page(found, limit, lambda line: (line.id,)))
