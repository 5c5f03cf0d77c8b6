"""How much one caller may ask, and how large a request may be: refused before anything is read or looked up."""

import asyncio
import hashlib
import math
from collections import OrderedDict
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import LOGIN, SESSION_COOKIE, TOKEN_PREFIX, TokenCache
from api.middleware import STATIC
from api.oidc import OidcVerifier
from api.problems import problem
from lockstep.clock import NS_PER_S, Clock
from lockstep.config import Settings
from lockstep.errors import ControlAway, NotAllowed

ONLY_KNOWN = "lockstep.only_known"  # in the scope of a login from such an address


def secret_of(request: Request) -> str:
    """Return the secret that a request carries, of whatever kind; empty where it has none."""
    header = request.headers.get("authorization", "")
    # The secret alone, as api.auth reads it: with blanks or cookies around it a caller would look like many.
    return (header.partition(" ")[2].strip() or header) if header else request.cookies.get(SESSION_COOKIE, "")


async def is_known(request: Request) -> bool:
    """Return whether a request may go on from an address that sent much that was worth nothing.

    One without a secret may: it is refused, or answered, without a question.
    """
    secret = secret_of(request)
    if not secret:
        return True
    cache: TokenCache = request.app.state.token_cache
    is_token = "authorization" in request.headers
    try:
        return await (is_known_token(request, secret) if is_token else cache.has_session(secret))
    except ControlAway:
        return False  # nobody is let in, then


async def is_known_token(request: Request, secret: str) -> bool:
    """Return whether a text is a token of ours, or one that the OIDC issuer signed."""
    cache: TokenCache = request.app.state.token_cache
    oidc: OidcVerifier | None = request.app.state.oidc
    if oidc is None or secret.startswith(TOKEN_PREFIX):
        return await cache.find_known(secret) is not None
    try:
        await run_in_threadpool(oidc.verify, secret)
    except NotAllowed as refusal:
        return refusal.status == 403  # it is signed, and says too little
    return True


# A cluster's hosts and their readers; whoever was silent longest is forgotten, with a full bucket.
MOST_CALLERS = 20_000
BURST_S = 2.0  # a caller may spend this much time's worth at once: a page asks for twenty things


@dataclass(slots=True)
class _Bucket:
    left: float
    at_ns: int


class Buckets:
    """One bucket a caller, filled at the same rate; for one event loop, which needs no lock."""

    def __init__(self, per_s: float, burst_s: float = BURST_S, most: int = MOST_CALLERS) -> None:
        self._per_s, self._size, self._most = per_s, max(1.0, per_s * burst_s), most
        self._by_caller: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, caller: str, now_ns: int) -> float:
        """Take one; return 0, or after how many seconds there will be one to take. A rate of 0 has no limit.

        >>> bucket = Buckets(per_s=1, burst_s=1)
        >>> bucket.take("h0", 0), bucket.take("h0", 0), bucket.take("h0", 10**9)
        (0.0, 1.0, 0.0)
        """
        if not self._per_s:
            return 0.0
        bucket = self._filled(caller, now_ns)
        if bucket.left < 1:
            return (1 - bucket.left) / self._per_s
        bucket.left -= 1
        return 0.0

    def is_empty(self, caller: str, now_ns: int) -> bool:
        """Return whether the caller has nothing left, without taking any."""
        return bool(self._per_s) and caller in self._by_caller and self._filled(caller, now_ns).left < 1

    def __contains__(self, caller: str) -> bool:
        return caller in self._by_caller

    def __len__(self) -> int:
        return len(self._by_caller)

    def _filled(self, caller: str, now_ns: int) -> _Bucket:
        bucket = self._by_caller.get(caller)
        if bucket is None:
            bucket = self._by_caller[caller] = _Bucket(self._size, now_ns)
            if len(self._by_caller) > self._most:
                self._by_caller.popitem(last=False)
        self._by_caller.move_to_end(caller)
        passed_s = max(0, now_ns - bucket.at_ns) / NS_PER_S
        bucket.left, bucket.at_ns = min(self._size, bucket.left + passed_s * self._per_s), now_ns
        return bucket


# What agents send has a bound of its own: a host that sends too much must not lock out its readers, nor they it.
_FROM_AGENTS = ("/api/v1/ingest", "/api/v1/intake/", "/api/v1/paths/hosts/")
_FROM_PROBES = frozenset({"/healthz", "/readyz", "/version"})  # a probe that is refused restarts a healthy service
_OPEN = (LOGIN, STATIC)
_COUNT_THEMSELVES = ("/api/v1/ingest", "/api/v1/intake/")  # while they read, by the gateway's own setting
_CAPTURES = "/api/v1/captures"
_BODY_S = 20.0  # for a body that is small
_LEAST_BYTES_PER_S = 16 << 10  # of a large one; a modem was as fast
_MOST_LOGIN_BYTES = 16 << 10  # before anybody is known: a token, the longest of which is an issuer's
_LET_IN = frozenset({304, 403})
REFUSED_PER_S = 5.0  # tokens that are worth nothing, by address: nobody guesses 256 bits, but each try is a query
_REFUSED_BURST_S = 20.0


class RateLimit:
    """Middleware: a token bucket per token, session or address; 429 with Retry-After where it is empty."""

    def __init__(self, app: ASGIApp, *, settings: Settings, clock: Clock) -> None:
        self._app, self._clock, self._open_reads = app, clock, settings.api.open_reads
        self._people = Buckets(settings.api.requests_per_s)
        self._agents = Buckets(settings.api.batches_per_s)
        self._refused = Buckets(REFUSED_PER_S, _REFUSED_BURST_S)
        self._known = Buckets(1.0)  # those who were let in lately: a neighbour behind the same address hurts them not

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _FROM_PROBES:
            await self._app(scope, receive, send)
            return
        address = scope["client"][0] if scope.get("client") else ""
        caller = address if self._is_open(scope["path"]) else caller_of(scope, address)
        wait_s = await self._wait_s(scope, caller, address)
        if wait_s:
            detail = f"too many requests: ask again in {wait_s:.1f} s"
            later = {"Retry-After": str(math.ceil(wait_s))}
            await problem(429, "too-many-requests", detail, Request(scope), later)(scope, receive, send)
            return

        async def send_watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._note(caller, address, message["status"])
            await send(message)

        await self._app(scope, receive, send_watched)

    def _is_open(self, path: str) -> bool:
        """Return whether nobody looks at tokens there: with made-up ones a caller would look like many."""
        return path.startswith(_OPEN) or (self._open_reads and not path.startswith(_FROM_AGENTS))

    async def _wait_s(self, scope: Scope, caller: str, address: str) -> float:
        """Return after how many seconds the caller may ask again; 0 for now."""
        now_ns = self._clock.monotonic_ns()
        if caller not in self._known and self._refused.is_empty(address, now_ns):
            scope[ONLY_KNOWN] = True  # a login brings its token in the body
            if not await is_known(Request(scope)):
                return 1 / REFUSED_PER_S
        buckets = self._agents if scope["path"].startswith(_FROM_AGENTS) else self._people
        return buckets.take(caller, now_ns)

    def _note(self, caller: str, address: str, status: int) -> None:
        now_ns, has_secret = self._clock.monotonic_ns(), caller != address
        if status == 401 or (status == 303 and has_secret):  # a page sends who has no session on to the login
            self._refused.take(address, now_ns)
        elif has_secret and (status < 300 or status in _LET_IN):  # others may come before the token is looked at
            self._known.take(caller, now_ns)


class BodyLimit:
    """Middleware: 413 for a body that is too large, by what it says or by what really comes; 408 for a slow one."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith(_COUNT_THEMSELVES):
            await _Counted(self._app, None).run(scope, receive, send)
            return
        most = most_bytes(scope["path"], self._settings)
        length = Headers(scope=scope).get("Content-Length", "0")
        if length.isdecimal() and int(length[:18]) > most:
            await _too_large(scope, most)(scope, receive, send)
            return
        await _Counted(self._app, most).run(scope, receive, send)


class _Counted:
    """One request whose body is counted as it comes, and has to come in time."""

    def __init__(self, app: ASGIApp, most: int | None) -> None:
        self._app, self._most, self._seen = app, most, 0
        self._begun_s = asyncio.get_running_loop().time()
        self._is_reading = True  # the body has not come to its end
        self._is_late = self._has_begun = False

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted() -> Message:
            message = await self._next(receive)
            self._seen += len(message.get("body", b""))
            self._is_reading = self._is_reading and bool(message.get("more_body"))
            # The end of the connection is what every reader of a body knows how to take; the answer is ours anyway.
            return {"type": "http.disconnect"} if self._is_over else message

        async def answer(message: Message) -> None:
            if not self._is_over or self._has_begun:
                self._has_begun = True
                await send(message)

        try:
            await self._app(scope, counted, answer)
        except Exception:
            if not self._is_over or self._has_begun:
                raise
        if self._is_over and not self._has_begun:
            refusal = _too_slow(scope) if self._is_late else _too_large(scope, self._most or 0)
            await refusal(scope, receive, send)

    async def _next(self, receive: Receive) -> Message:
        """Return the next piece; a body that is slower than any line we know of is given up."""
        if not self._is_reading:
            return await receive()
        until_s = self._begun_s + _BODY_S + self._seen / _LEAST_BYTES_PER_S
        try:
            return await asyncio.wait_for(receive(), until_s - asyncio.get_running_loop().time())
        except TimeoutError:
            self._is_late = True
            return {"type": "http.disconnect"}

    @property
    def _is_over(self) -> bool:
        return self._is_late or (self._most is not None and self._seen > self._most)


def caller_of(scope: Scope, address: str) -> str:
    """Return by what a caller is known before anybody looked at their token: its digest, else their address."""
    secret = secret_of(Request(scope))
    return hashlib.blake2b(secret.encode("latin-1", "replace"), digest_size=16).hexdigest() if secret else address


def most_bytes(path: str, settings: Settings) -> int:
    """Return how large the body of a request may be."""
    if path == _CAPTURES:
        return settings.api.max_capture_mb << 20
    return min(_MOST_LOGIN_BYTES if path == LOGIN else 1 << 62, settings.api.max_body_kb << 10)


def _too_large(scope: Scope, most: int) -> ASGIApp:
    detail = f"a body here may have {most >> 10} KiB"
    return problem(413, "too-large", detail, Request(scope), {"Connection": "close"})


def _too_slow(scope: Scope) -> ASGIApp:
    detail = (
        f"a body has to come within {_BODY_S:.0f} s, and {_LEAST_BYTES_PER_S >> 10} KiB in each second after that"
    )
    return problem(408, "too-slow", detail, Request(scope), {"Connection": "close"})
