"""Pages from templates: the one environment, and what every page has around it."""

import hashlib
from importlib import resources
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from api.dashboard import addresses, words
from api.parts import parts_of
from lockstep import __version__, figures
from lockstep.words import CLASSES, headline, impact_words
from planner.recovery.ladder import RUNGS


def _make_environment() -> Environment:
    made = Environment(
        loader=PackageLoader("api"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("figure", "share", "lasting", "moment", "clock_time", "money", "size"):
        made.filters[name] = getattr(figures, name)
    for name in ("state_words", "side_words", "domain_words", "origin_words", "scope_words"):
        made.filters[name] = getattr(words, name)
    made.filters |= {"headline": headline, "impact_words": impact_words}
    made.globals |= {
        "menu": addresses.MENU,
        "page_of": addresses.page_of,
        "incident_page": addresses.incident_page,
        "between": figures.between,
        "classes": CLASSES,
        "actions": words.ACTIONS,
        "grades": words.GRADES,
        "modes": words.MODES,
        "rungs": RUNGS,
        "version": __version__,
        "static": static,
    }
    return made


def static(name: str) -> str:
    """Return the address of a static file; it changes with the file, so that browsers may keep it for ever."""
    return f"/static/{name}?v={_digests.setdefault(name, _digest(name))}"


def _digest(name: str) -> str:
    return hashlib.sha256(resources.files("api").joinpath("static", name).read_bytes()).hexdigest()[:12]


_digests: dict[str, str] = {}
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
        now_ns=parts.clock.now_ns(),
        curls=[addresses.curl_of(base, each, is_open) for each in calls],
        **values,
    )
    return HTMLResponse(text)
