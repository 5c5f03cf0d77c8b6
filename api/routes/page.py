"""The first page: what is wrong now, in one sentence each."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, select_autoescape

from api.auth import Reader
from api.parts import parts_of
from lockstep import __version__
from lockstep.clock import rfc3339
from lockstep.control.incidents import list_incidents

router = APIRouter(dependencies=[Reader])

_pages = Environment(loader=PackageLoader("api"), autoescape=select_autoescape(["html"]))
_pages.filters["moment"] = rfc3339
_NEWEST = 50


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
def first_page(request: Request) -> str:
    parts = parts_of(request)
    return _pages.get_template("index.html").render(
        incidents=list_incidents(parts.control, limit=_NEWEST),
        notice=parts.notice,
        trouble=parts.gateway.trouble,
        version=__version__,
    )
