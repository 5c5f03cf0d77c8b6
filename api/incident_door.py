"""Leads who asks for a known list of incidents past FastAPI's routing, which took longer than all else that it needs.

What a query string means, the route says when it comes for the first time; to OpenAPI the route is like all others.
"""

from fastapi import HTTPException, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.auth import admit_reader
from api.paging import Page, add_link
from api.reading.incidents import IncidentPages, RenderedPage
from lockstep.errors import LockstepError

PATH = "/api/v1/incidents"


class IncidentDoor:
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
    """Return a page as it is answered, with the link to the next one."""
    answer = Response(page.body, media_type="application/json")
    add_link(request, answer, Page(items=(), next=page.next))
    return answer
