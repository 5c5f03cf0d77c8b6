"""Settings as they hold, without secrets, and who is told about incidents."""

import json
import re
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from api.auth import Admin
from api.dashboard.pages import PageRoute, call, find_viewer, page_router, render
from api.parts import parts_of
from api.routes import webhooks
from lockstep.config import Settings, list_settings

router = page_router()
tests = APIRouter(route_class=PageRoute, include_in_schema=False)

UNSET = "not set"
HIDDEN = "set, and not shown"
# What is, or may hold, a secret; receivers are listed by themselves, without theirs.
_PRIVATE = ("token", "password", "secret", "key", "controller_options", "command", "targets")

_IN_QUERY = re.compile(r"(?<=[?&])([^=&#]*=)[^&#]*")


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting as it holds."""

    section: str
    key: str
    variable: str
    value: str
    is_default: bool
    meaning: str


@router.get("/settings")
def settings(request: Request) -> HTMLResponse:
    """Return every setting with its value, and the receivers of alerts."""
    return _render(request, note="")


@tests.post("/settings/receivers/{name}/test")
def test_receiver(request: Request, name: webhooks.Name, admin: Admin) -> HTMLResponse:
    """Send a test to a receiver, and show the page with what it said."""
    tested = webhooks.test(parts_of(request), name, admin)
    how = "took the test" if tested.delivered else "did not take the test"
    return _render(request, note=f"{name} {how}: {tested.said}")


def _render(request: Request, note: str) -> HTMLResponse:
    return render(
        request,
        "settings.html",
        "settings",
        "Settings",
        (call("/policies"), call("/webhooks")),
        settings=show_settings(parts_of(request).settings),
        receivers=webhooks.targets(parts_of(request)).items,
        viewer=find_viewer(request),
        note=note,
    )


def show_settings(held: Settings) -> list[Shown]:
    """Return all settings in the order of their sections; what may be a secret is named and not shown."""
    values, shown = held.model_dump(mode="json"), list[Shown]()
    for setting in list_settings():
        *section, key = setting.path
        value = values[section[0]][key] if section else values[key]
        live = getattr(getattr(held, section[0]), key) if section else getattr(held, key)
        name, is_default = section[0] if section else "general", live == setting.default
        shown.append(Shown(name, key, setting.variable, _text(key, value), is_default, setting.meaning))
    return shown


def _text(key: str, value: object) -> str:
    if value in (None, "", [], {}):
        return UNSET
    is_file = key.endswith("_file") or key == "tls_key"  # where a secret lies is no secret
    if not is_file and any(word in key for word in _PRIVATE):
        return HIDDEN
    shown = _cleaned(value)
    return shown if isinstance(shown, str) else json.dumps(shown)


def _cleaned(value: object) -> object:
    """Return the value with every URL in it without what may be a password."""
    if isinstance(value, dict):
        return {name: _cleaned(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    return _without_password(value) if isinstance(value, str) else value


def _without_password(text: str) -> str:
    """Return a URL without user and password, also where they are parameters of it.

    >>> _without_password("postgresql://ada:secret@db/lockstep")
    'postgresql://…@db/lockstep'
    >>> _without_password("postgresql://db/lockstep?user=ada&password=secret")
    'postgresql://db/lockstep?user=…&password=…'
    """
    scheme, mark, rest = text.partition("://")
    user, at, address = rest.rpartition("@")
    shown = f"{scheme}://…@{address}" if mark and at and user else text
    return _IN_QUERY.sub(r"\1…", shown) if mark else text
