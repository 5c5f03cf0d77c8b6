"""Where each page is, and which API call tells the same to a program; ids travel escaped."""

import shlex
from dataclasses import dataclass
from urllib.parse import quote, urlencode

_API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the menu."""

    name: str  # of the page, as templates know it
    href: str
    label: str
    key: str  # after g


MENU = (
    Place("overview", "/", "Overview", "o"),
    Place("incidents", "/incidents", "Incidents", "i"),
    Place("matrix", "/matrix", "Matrix", "m"),
    Place("lags", "/lags", "Arrivals", "l"),
    Place("topology", "/topology", "Topology", "t"),
    Place("whatif", "/what-if", "What if", "w"),
    Place("parts", "/parts", "Parts", "p"),
    Place("scorecard", "/scorecard", "Scorecard", "s"),
    Place("agents", "/agents", "Agents", "a"),
    Place("settings", "/settings", "Settings", "e"),
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
