"""The parts ledger: which pieces of hardware have a history, and what each has done before."""

from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse

from api.dashboard.addresses import call
from api.dashboard.page_route import page_router
from api.dashboard.rendering import render
from api.parts import parts_of
from api.reading.ledger import find_part, list_parts
from lockstep.errors import NotPresent

router = page_router()


@router.get("/parts")
def parts(request: Request, component: str | None = None) -> HTMLResponse:
    """Return all parts with a history, the most suspect first, or the history of one."""
    return _one(request, component) if component else _all(request)


def _all(request: Request) -> HTMLResponse:
    held = parts_of(request)
    found = list_parts(held.store, held.control, held.second_ns())
    worst = sorted(found, key=lambda part: (-len(part.flags), -part.confirmed, -part.incidents, -part.severe_events))
    return render(request, "parts.html", "parts", "Parts", (call("/parts"),), parts=worst)


def _one(request: Request, component: str) -> HTMLResponse:
    held = parts_of(request)
    try:
        found = find_part(held.store, held.control, component, held.second_ns())
    except NotPresent:
        found = None  # a part without a history is an answer, not an error
    asked = (call(f"/parts/{quote(component)}"),)
    return render(request, "part.html", "parts", component, asked, component=component, part=found)
