"""Around every request: security headers, the id of its log lines, clients that leave, and acts that are sent again.

Idempotency-Key: an act that is sent again is not done again, and gets the answer of the first time. Answers are kept
for a day, sealed with the caller's own token and the key: a stolen control database shows none of them, not even a
new token that was in one.
"""

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import structlog
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry, Counter
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import SESSION_COOKIE, allows, find_caller
from api.dependencies import parts_of
from api.problems import problem
from lockstep.errors import NotAllowed, SealBroken
from lockstep.sealing import seal, unseal
from lockstep.state.idempotency import Earlier, claim, drop, finish
from lockstep.state.tokens import Token

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

_log = structlog.get_logger("api")
_NAMED = ("ingest", "intake", "captures")  # where bodies are long; a label for each path would have no bound

IDEMPOTENCY_KEY = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
_ACTS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Batches know by their number what was heard before; a capture is too large to be held in memory and compared.
_NOT_HERE = ("/api/v1/ingest", "/api/v1/intake/", "/login", "/logout")
_CAPTURES = "/api/v1/captures"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_NOT_DONE = frozenset({401, 403, 408, 409, 425, 429})  # of these a repeat may end differently
_LARGEST = 1 << 20  # an answer beyond it is no act's


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


@dataclass(frozen=True, slots=True)
class _Act:
    """One request with a key: under which name its answer is kept, what it asks for, and what seals the answer."""

    name: str
    request: str
    seal: bytes


class Idempotency:
    """Middleware: does what comes with a key once."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key_of(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        if not _KEY.fullmatch(key):
            answer = problem(
                400, "bad-key", f"{IDEMPOTENCY_KEY} is 1 to 255 printable characters without spaces", request
            )
            await answer(scope, receive, send)
            return
        caller = await run_in_threadpool(_find_actor, request)
        if caller is None:  # whoever it is gets the route's own refusal, and nobody reads their body before
            await self._app(scope, receive, send)
            return
        body = await request.body()
        await self._once(_name_act(request, caller, key, body), request, _Again(body, receive), send)

    async def _once(self, act: _Act, request: Request, receive: Receive, send: Send) -> None:
        parts = parts_of(request)
        earlier = await run_in_threadpool(claim, parts.control, act.name, act.request, parts.clock.now_ns())
        if earlier is not None:
            await _answer_again(earlier, act, request)(request.scope, receive, send)
            return
        kept = _Kept()
        try:
            await self._app(request.scope, receive, kept)
        except BaseException:
            await run_in_threadpool(drop, parts.control, act.name)
            raise
        if kept.is_done:
            await run_in_threadpool(finish, parts.control, act.name, kept.status, kept.sealed(act))
        else:
            await run_in_threadpool(drop, parts.control, act.name)
        for message in kept.messages:
            await send(message)


class _Again:
    """Gives a body that was read already, then whatever the connection says."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _Kept:
    """Takes an answer as if it were sent; it goes out once it is kept, so that nobody has one which we forgot."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def is_done(self) -> bool:
        """Whether the act was done, or would be refused the same way again."""
        return self.status < 500 and self.status not in _NOT_DONE and len(self.body) <= _LARGEST

    def sealed(self, act: _Act) -> str:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.messages[0]["headers"]]
        content = {"headers": headers, "body": base64.b64encode(self.body).decode()}
        return seal(act.seal, json.dumps(content).encode())


def _key_of(scope: Scope) -> str | None:
    """Return the key that counts for this request; None where it has none, or none counts."""
    if scope["type"] != "http" or scope["method"] not in _ACTS:
        return None
    if scope["path"].startswith(_NOT_HERE) or scope["path"] == _CAPTURES:
        return None
    return Headers(scope=scope).get(IDEMPOTENCY_KEY)


def _find_actor(request: Request) -> Token | None:
    """Return who asks; None where nobody knows them, or they may only read and must not push out what others keep."""
    try:
        caller = find_caller(request)
    except NotAllowed:
        return None
    return caller if caller is not None and allows(caller.scope, "act") else None


def _name_act(request: Request, caller: Token, key: str, body: bytes) -> _Act:
    """Return under what the act is kept: a key counts for one caller."""
    secret = request.headers.get("Authorization") or request.cookies[SESSION_COOKIE]
    asked = f"{request.method} {request.url.path}?{request.url.query}"
    return _Act(
        name=_digest(caller.id, caller.scope, key).hex(),
        request=_digest(asked, body.hex()).hex(),
        seal=_digest("seal", secret, key),
    )


def _answer_again(earlier: Earlier, act: _Act, request: Request) -> Response:
    if earlier.request != act.request:
        return problem(422, "key-reused", f"this {IDEMPOTENCY_KEY} was used for another request", request)
    if earlier.status is None or earlier.sealed is None:
        detail = "the first request with this key is still at work"
        return problem(409, "in-progress", detail, request, {"Retry-After": "1"})
    try:
        content = json.loads(unseal(act.seal, earlier.sealed))
    except SealBroken:
        detail = "this was done; its answer opens only for the token that it was given to"
        return problem(409, "sealed", detail, request)
    answer = Response(base64.b64decode(content["body"]), earlier.status)
    answer.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in content["headers"]]
    MutableHeaders(raw=answer.raw_headers)[REPLAYED] = "true"
    return answer


def _digest(*parts: str) -> bytes:
    """Return 32 bytes for these parts; their lengths count, so that no two lists run into each other."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
