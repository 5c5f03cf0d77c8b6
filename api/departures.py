"""Clients that leave in the middle of what they send: counted, and no failure of ours."""

import structlog
from prometheus_client import CollectorRegistry, Counter
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

_log = structlog.get_logger("api")

_NAMED = ("ingest", "intake", "captures")  # where bodies are long; a label for each path would have no bound


class ClientsLeft:
    """How many left, by what they were about to send."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._left = Counter(
            "lockstep_api_clients_left",
            "Clients that left before their request had come",
            ["to"],
            registry=self.registry,
        )

    def count(self, path: str) -> None:
        """Count one."""
        self._left.labels(_kind_of(path)).inc()


class Departures:
    """Middleware: ends a request quietly whose client has left; there is nobody to answer."""

    def __init__(self, app: ASGIApp, *, left: ClientsLeft) -> None:
        self._app, self._left = app, left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            self._left.count(scope["path"])
            _log.debug("client left", path=scope["path"])


def _kind_of(path: str) -> str:
    first = path.removeprefix("/api/v1/").partition("/")[0]
    return first if first in _NAMED else "other"
