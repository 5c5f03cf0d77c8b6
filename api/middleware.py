"""Around every request: security headers, the request id of its log lines, and clients that disconnect."""

import re
import secrets
from collections.abc import Iterable

import structlog
from prometheus_client import CollectorRegistry, Counter
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Scripts and styles come from files of ours, never from the page itself: what an attacker writes into the name of
# a job is not run. htmx, uPlot and ECharts set styles through the DOM, which this allows.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STRICT_TRANSPORT = "max-age=31536000"  # a year, as browsers' own lists ask for
REQUEST_ID = "X-Request-Id"
_ID, _CACHE = REQUEST_ID.lower().encode(), b"cache-control"
STATIC = "/static/"
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # whoever sends another could write into our log

RawHeader = tuple[bytes, bytes]


class SecurityHeaders:
    """Middleware, the outermost: answers the unforeseen too, so that not even a failure goes out without them."""

    def __init__(self, app: ASGIApp, *, is_tls: bool = False) -> None:
        self._app = app
        fixed = SECURITY_HEADERS | ({"Strict-Transport-Security": STRICT_TRANSPORT} if is_tls else {})
        # As they go over the wire: this is done for every batch of every host.
        self._fixed = [(name.lower().encode(), value.encode()) for name, value in fixed.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == _ID), b"")
        request_id = choose_request_id(sent.decode("latin-1"))
        has_begun = False

        async def send_marked(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = self._marked(message.get("headers", ()), scope["path"], request_id)
            await send(message)

        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                await self._app(scope, receive, send_marked)
            except Exception as error:
                if has_begun:
                    raise
                answer = await scope["app"].exception_handlers[Exception](Request(scope), error)
                await answer(scope, receive, send_marked)

    def _marked(self, headers: Iterable[RawHeader], path: str, request_id: str) -> list[RawHeader]:
        """Return the headers with ours; what a route says by itself goes before."""
        marked = [*headers, (_ID, request_id.encode())]
        there = {name for name, _ in marked}
        marked += [header for header in self._fixed if header[0] not in there]
        if not path.startswith(STATIC) and _CACHE not in there:
            marked.append((_CACHE, b"no-store"))  # what one person may see is not kept for the next
        return marked


def choose_request_id(sent: str) -> str:
    """Return the id that a proxy in front gave the request, else a new one."""
    return sent if _PLAIN_ID.fullmatch(sent) else secrets.token_hex(8)


_log = structlog.get_logger("api")

_NAMED = ("ingest", "intake", "captures")  # where bodies are long; a label for each path would have no bound


class Disconnects:
    """Middleware: ends a request quietly whose client has left, as there is nobody to answer, and counts it."""

    def __init__(self, app: ASGIApp, *, registry: CollectorRegistry) -> None:
        self._app = app
        meaning = "Clients that left before their request had come"
        self._left = Counter("lockstep_api_disconnects", meaning, ["to"], registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            first = scope["path"].removeprefix("/api/v1/").partition("/")[0]
            self._left.labels(first if first in _NAMED else "other").inc()
            _log.debug("client left", path=scope["path"])
