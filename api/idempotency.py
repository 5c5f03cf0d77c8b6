"""Idempotency-Key: an act that is sent again is not done again, and gets the answer of the first time.

Answers are kept for a day, sealed with the caller's own token and the key: a stolen control database shows none of
them, not even a new token that was in one.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import SESSION_COOKIE, allows, find_caller
from api.parts import parts_of
from api.problems import problem
from lockstep.errors import NotAllowed, SealBroken
from lockstep.sealing import seal, unseal
from lockstep.state.idempotency import Earlier, claim, drop, finish
from lockstep.state.tokens import Token

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
_ACTS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Batches know by their number what was heard before; a capture is too large to be held in memory and compared.
_NOT_HERE = ("/api/v1/ingest", "/api/v1/intake/", "/login", "/logout")
_CAPTURES = "/api/v1/captures"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_NOT_DONE = frozenset({401, 403, 408, 409, 425, 429})  # of these a repeat may end differently
_LARGEST = 1 << 20  # an answer beyond it is no act's


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
            answer = problem(400, "bad-key", f"{HEADER} is 1 to 255 printable characters without spaces", request)
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
    return Headers(scope=scope).get(HEADER)


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
        return problem(422, "key-reused", f"this {HEADER} was used for another request", request)
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
