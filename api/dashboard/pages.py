"""What every page has: address and API calls, the template around it, errors as pages, static files, the viewer."""

import hashlib
import shlex
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from importlib import resources
from os import PathLike, stat_result
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from api.auth import Reader, allows, find_caller
from api.dashboard import words
from api.dependencies import parts_of
from api.problems import classify
from lockstep import __version__
from lockstep import words as plain_words
from lockstep.errors import LockstepError, NotAllowed
from lockstep.words import CLASSES, automation, by_hand, headline, impact_words, recommendation
from planner.escalation import LEVELS

_API = "/api/v1"


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """An entry of the menu."""

    name: str  # of the page, as templates know it
    href: str
    label: str
    key: str  # after g


MENU = (
    MenuEntry("overview", "/", "Overview", "o"),
    MenuEntry("incidents", "/incidents", "Incidents", "i"),
    MenuEntry("matrix", "/matrix", "Matrix", "m"),
    MenuEntry("lags", "/lags", "Arrivals", "l"),
    MenuEntry("topology", "/topology", "Topology", "t"),
    MenuEntry("whatif", "/what-if", "What if", "w"),
    MenuEntry("parts", "/parts", "Parts", "p"),
    MenuEntry("scorecard", "/scorecard", "Scorecard", "s"),
    MenuEntry("agents", "/agents", "Agents", "a"),
    MenuEntry("settings", "/settings", "Settings", "e"),
)


def page_of(path: str, **query: object) -> str:
    """Return the address of a page with its choices; what is None is left out.

    >>> page_of("/matrix", job="a/b c", comm=None)
    '/matrix?job=a%2Fb+c'
    """
    chosen = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(chosen)}" if chosen else path


def incident_page(incident: str) -> str:
    """Return the address of an incident's page."""
    return f"/incidents/{quote(incident, safe='')}"


def call(path: str, **query: object) -> str:
    """Return the address of an API call."""
    return page_of(_API + path, **query)


def job_call(job: str, what: str, **query: object) -> str:
    """Return the address of an API call about a job, whose id may hold slashes.

    >>> job_call("team/run 7", "matrix")
    '/api/v1/jobs/team/run%207/matrix'
    """
    return call(f"/jobs/{quote(job)}/{what}", **query)


def curl_of(base_url: str, path: str, is_open: bool) -> str:
    """Return the command that asks the API for what a page shows.

    >>> curl_of("http://127.0.0.1:8642/", "/api/v1/parts?x=1", is_open=True)
    "curl -sS 'http://127.0.0.1:8642/api/v1/parts?x=1'"
    """
    key = "" if is_open else '-H "Authorization: Bearer $LOCKSTEP_TOKEN" '
    return f"curl -sS {key}{shlex.quote(base_url.rstrip('/') + path)}"


def _make_environment() -> Environment:
    made = Environment(
        loader=PackageLoader("api"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("figure", "share", "lasting", "timestamp", "clock_time", "money", "size"):
        made.filters[name] = getattr(plain_words, name)
    for name in ("state_words", "side_words", "domain_words", "origin_words", "scope_words"):
        made.filters[name] = getattr(words, name)
    made.filters |= {"headline": headline, "impact_words": impact_words}
    made.filters |= {each.__name__: each for each in (automation, by_hand, recommendation)}
    made.globals |= {
        "menu": MENU,
        "page_of": page_of,
        "incident_page": incident_page,
        "between": plain_words.between,
        "classes": CLASSES,
        "actions": words.ACTIONS,
        "grades": words.GRADES,
        "modes": words.MODES,
        "rungs": LEVELS,
        "version": __version__,
        "static": static,
    }
    return made


@cache
def static(name: str) -> str:
    """Return the address of a static file; it changes with the file, so that browsers may keep it for ever."""
    content = resources.files("api").joinpath("static", name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"


_pages = _make_environment()


def render(
    request: Request, template: str, page: str, title: str, calls: tuple[str, ...] = (), **values: Any
) -> HTMLResponse:
    """Return a page; `calls` are API addresses that tell the same. Any: each template has values of its own."""
    parts = parts_of(request)
    base, is_open = str(request.base_url), parts.settings.api.open_reads
    text = _pages.get_template(template).render(
        page=page,
        title=title,
        notice=parts.notice,
        trouble=parts.gateway.trouble,
        behind=parts.analysis(),
        now_ns=parts.clock.now_ns(),
        curls=[curl_of(base, each, is_open) for each in calls],
        **values,
    )
    return HTMLResponse(text)


_TITLES = {400: "That cannot be done", 403: "You may not do this", 404: "Not found", 503: "Not available now"}


class PageRoute(APIRoute):
    """A route that answers browsers with a page, also when something is wrong; programs get the problem document."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            try:
                return await handle(request)
            except (LockstepError, RequestValidationError) as error:
                if "text/html" not in request.headers.get("Accept", ""):
                    raise
                return _error_page(request, error)

        return handle_as_page


def page_router() -> APIRouter:
    """Return a router of pages that readers may see."""
    return APIRouter(route_class=PageRoute, dependencies=[Reader], include_in_schema=False)


def _error_page(request: Request, error: LockstepError | RequestValidationError) -> Response:
    if isinstance(error, RequestValidationError):
        status, sentence = 422, "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
    else:
        status, sentence = classify(error)[0], str(error)
    if status == 401:
        raise error  # the login page is not ours
    page = render(request, "error.html", "error", _TITLES.get(status, "This did not work"), sentence=sentence)
    page.status_code = status
    return page


_FOR_EVER = "public, max-age=31536000, immutable"  # the address has the file's digest in it
_ASK_AGAIN = "public, no-cache"


class CachedFiles(StaticFiles):
    """Static files that say how long they may be kept."""

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = _FOR_EVER if b"v=" in scope["query_string"] else _ASK_AGAIN
        return response


@dataclass(frozen=True)
class Viewer:
    """Who looks; what somebody may not do is not offered, and refused all the same where it is tried."""

    name: str | None = None  # None: nobody has logged in
    can_act: bool = False
    can_administer: bool = False


def find_viewer(request: Request) -> Viewer:
    """Return who looks; a session that is over is nobody, since reads may be open."""
    try:
        found = find_caller(request)
    except NotAllowed:
        return Viewer()
    return Viewer(found.name, allows(found.scope, "act"), allows(found.scope, "admin")) if found else Viewer()
