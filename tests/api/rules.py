"""Every route of the app with the rule that guards it, found in the app itself, so that tests meet new routes too."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import Mount

from api.app import create_app
from api.auth import admit_reader, require_actor, require_admin, require_agent, require_joiner, require_scraper
from api.dependencies import Parts
from api.routes.cluster import require_host_or_reader
from lockstep.state.tokens import Scope

# Who gets in by each guard.
GUARDS: dict[Any, frozenset[Scope]] = {  # Any: functions of several signatures
    admit_reader: frozenset({"read", "act", "admin"}),
    require_scraper: frozenset({"read", "act", "admin"}),
    require_actor: frozenset({"act", "admin"}),
    require_admin: frozenset({"admin"}),
    require_agent: frozenset({"ingest"}),
    require_joiner: frozenset({"join"}),
    require_host_or_reader: frozenset({"read", "act", "admin", "ingest"}),
}
# Routes that ask by themselves, and what they must be found to ask for.
BY_HAND: dict[tuple[str, str], frozenset[Scope]] = {("POST", "/api/v1/ingest"): frozenset({"ingest"})}
OPEN = {
    ("GET", "/healthz"): "a probe has no token",
    ("GET", "/readyz"): "a probe has no token",
    ("GET", "/version"): "agents ask it before they are let in",
    ("GET", "/login"): "whoever is to log in has not",
    ("POST", "/login"): "the token is in the form",
    ("POST", "/logout"): "ends what a cookie opened, which may be over already",
}


@dataclass(frozen=True)
class Rule:
    """One method of one path, and who gets in; nobody asks where `scopes` is None."""

    method: str
    path: str
    scopes: frozenset[Scope] | None
    guards: int  # of its dependencies

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path

    @property
    def is_for_agents(self) -> bool:
        return self.scopes is not None and "ingest" in self.scopes

    @property
    def url(self) -> str:
        return re.sub(r"\{[^}]+\}", "x", self.path)


def rules_of(parts: Parts) -> list[Rule]:
    routes = (route for route in _walk(create_app(parts).routes) if isinstance(route, APIRoute))
    return sorted(
        (_rule(route, method) for route in routes for method in route.methods or ()), key=lambda rule: rule.key[::-1]
    )


def mounts_of(parts: Parts) -> list[str]:
    """Return where whole applications are mounted, whose insides have no rules."""
    return [route.path for route in _walk(create_app(parts).routes) if isinstance(route, Mount)]


def _walk(routes: list[Any]) -> Iterator[Any]:  # Any: FastAPI's class for an included router is its own affair
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from _walk(inner.routes) if inner is not None else (route,)


def _rule(route: APIRoute, method: str) -> Rule:
    key = (method, route.path)
    found = [GUARDS[call] for call in _calls(route.dependant) if call in GUARDS]
    scopes = found[0] if found else BY_HAND.get(key)
    return Rule(method, route.path, scopes, len(found))


def _calls(dependant: Any) -> Iterator[Any]:  # Any: FastAPI's tree of dependencies
    for inner in dependant.dependencies:
        yield inner.call
        yield from _calls(inner)
