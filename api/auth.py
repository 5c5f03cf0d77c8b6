"""Who may do what: a bearer token, an OIDC token or a browser session, each with a scope; agents have one host.

Every route has exactly one of Reader, Actor, Admin, Agent and Joiner; tests/api/test_auth.py finds one that has none.
"""

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

import anyio
from anyio import to_thread
from fastapi import Depends, HTTPException, Request
from fastapi.concurrency import run_in_threadpool

from api.dependencies import parts_of
from api.oidc import OidcVerifier, Proven
from api.sharing import Refreshed
from lockstep.batches import DetailRequest
from lockstep.clock import Clock
from lockstep.errors import NotAllowed
from lockstep.sections import split_listen
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import detail_requests_by_host
from lockstep.state.tokens import (
    Scope,
    Token,
    TokenRows,
    digest_session,
    find_session,
    find_token,
    live_sessions,
    match_token,
    valid_tokens,
)

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOGIN = "/login"
T = TypeVar("T")

_THREADS = 4
LIFE_S = 0.5  # what is written down is obeyed after this time
_ASK_AGAIN_S = 0.25


@dataclass(frozen=True)
class _Answer:
    """What the database said."""

    tokens: TokenRows
    detail_requests: Mapping[str, list[DetailRequest]]


class TokenCache:
    """What is known about all callers and what we ask of each agent; for the threads of one event loop.

    Asking the control database for every batch took a third of the gateway's time. It is asked for all tokens at once
    instead, and believed for half a second: a token is refused, and a request delivered, with the first batch that
    comes later than that. Where the database cannot be read, nobody is let in.
    """

    def __init__(self, control: ControlDatabase, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._threads = anyio.CapacityLimiter(_THREADS)  # readers may have taken all of the usual ones
        self._answer = Refreshed(partial(self._in_thread, self._read), clock, again_s=_ASK_AGAIN_S, believed_s=LIFE_S)
        self._sessions = Refreshed(
            partial(self._in_thread, self._read_sessions), clock, again_s=_ASK_AGAIN_S, believed_s=LIFE_S
        )

    async def find_token(self, secret: str) -> Token | None:
        """Return the token that this text is; one that is not cached may be new."""
        return await self.find_known(secret) or await to_thread.run_sync(
            find_token, self._control, secret, limiter=self._threads
        )

    async def find_known(self, secret: str) -> Token | None:
        """Return the token that this text is, where it is cached."""
        return match_token((await self._answer.get()).tokens, secret)

    def forget(self) -> None:
        """Ask at the next request: a token was revoked here."""
        self._answer.forget()

    async def detail_requests_for(self, host: str) -> list[DetailRequest]:
        """Return the detail requests for this host that have not expired, the most pressing first."""
        now_ns = self._clock.now_ns()
        return [
            detail_request
            for detail_request in (await self._answer.get()).detail_requests.get(host, [])
            if detail_request.expires_ns > now_ns
        ]

    async def has_session(self, cookie: str) -> bool:
        """Return whether the cookie is of a session that lasts."""
        return digest_session(cookie) in await self._sessions.get()

    async def _in_thread(self, read: Callable[[], T]) -> T:
        return await to_thread.run_sync(read, limiter=self._threads)

    def _read(self) -> _Answer:
        return _Answer(valid_tokens(self._control), detail_requests_by_host(self._control, self._clock.now_ns()))

    def _read_sessions(self) -> frozenset[str]:
        return live_sessions(self._control, self._clock.now_ns())


def check_origin(request: Request) -> None:
    """Raise NotAllowed for a change that a browser sends for a page of another site, or that hides where it is from.

    A browser adds its cookie to what any page sends. Sec-Fetch-Site and Origin tell whose page it was; the browser
    sets them, and no page can change them.
    """
    site, host = request.headers.get("Sec-Fetch-Site"), request.headers.get("Host", "").lower()
    # The scheme is not compared: behind a proxy that ends TLS we see http where the browser saw https.
    origin = _split(request.headers.get("Origin", "")).netloc.lower()
    is_ours = site == "same-origin" if site is not None else bool(origin) and origin == host
    if request.method not in _SAFE and not is_ours:
        raise NotAllowed("a session changes things only from our own pages", slug="other-origin", status=403)


def check_open_reads(request: Request, listen: str) -> None:
    """Raise NotAllowed where reads are open to this machine only, and the browser thinks that we are another.

    A page elsewhere can make its own name point to 127.0.0.1 and would then read what we answer (DNS rebinding).
    """
    asked = _split(f"//{request.headers.get('Host', '')}").hostname or ""
    if is_loopback(split_listen(listen)[0]) and not is_loopback(asked):
        problem = f"reads are open at http://{listen} only, not under the name {asked[:80]!r}"
        raise NotAllowed(problem, slug="other-host", status=401)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can be meant.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.9", "::1", "0.0.0.0", "head")]
    [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_page_visit(request: Request) -> bool:
    """Return whether a person's browser asks for a page, who is better served by the login page than by an error."""
    wants_page = "text/html" in request.headers.get("Accept", "")
    return wants_page and request.method == "GET" and "Authorization" not in request.headers


def safe_next(asked: str) -> str:
    """Return where to go after the login: a place of ours, never another site.

    >>> [safe_next(place) for place in ("/incidents?job=a", "//evil.example", "/\\\\evil.example", "https://x", "")]
    ['/incidents?job=a', '/', '/', '/', '/']
    """
    is_ours = asked.startswith("/") and not asked.startswith("//") and "\\" not in asked and asked.isprintable()
    return asked if is_ours else "/"


def _split(url: str) -> SplitResult:
    """Return the parts of an address; all are empty for what is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


SESSION_COOKIE = "lockstep_session"
TOKEN_PREFIX = "lks_"  # noqa: S105  # how tokens of our own begin
_NEVER_NS = 2**63 - 1

# What each scope allows. A collector's token allows nothing else: whoever takes a training host gets no more.
_ALLOWS: dict[Scope, frozenset[Scope]] = {
    "ingest": frozenset({"ingest"}),
    "fabric": frozenset({"fabric", "ingest"}),
    "join": frozenset({"join"}),
    "read": frozenset({"read"}),
    "act": frozenset({"act", "read"}),
    "admin": frozenset({"admin", "act", "read"}),
}
_DOING: dict[Scope, str] = {
    "ingest": "sending telemetry",
    "fabric": "reporting on switches",
    "join": "letting hosts join",
    "read": "reading",
    "act": "acting",
    "admin": "administering",
}


def require_reader(request: Request) -> None:
    """Let a request through that may read: by its token, or because reads are open."""
    settings = parts_of(request).settings.api
    if settings.open_reads:
        check_open_reads(request, settings.listen)
    else:
        _require(request, "read")


async def admit_reader(request: Request) -> None:
    """Do the same by the cache for a token that is in it; reads that are open are not opened by a token."""
    cache: TokenCache = request.app.state.token_cache
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    is_cacheable = scheme.lower() == "bearer" and not parts_of(request).settings.api.open_reads
    token = await cache.find_known(secret.strip()) if is_cacheable else None
    if token is None:
        await run_in_threadpool(require_reader, request)
    else:
        check_scope(token, "read")


def require_scraper(request: Request) -> None:
    """Let through who may read, and where that is set, a scraper on this machine; a proxy says whom it stands for."""
    is_direct = not {"forwarded", "x-forwarded-for"} & set(request.headers)
    is_here = request.client is not None and is_loopback(request.client.host)
    if not (parts_of(request).settings.api.open_metrics and is_direct and is_here):
        require_reader(request)


def require_actor(request: Request) -> str:
    """Return the name of whoever may act on decisions; open reads open no acts."""
    return _require(request, "act").name


def require_admin(request: Request) -> str:
    """Return the name of whoever may change tokens, policies and where alerts go."""
    return _require(request, "admin").name


def require_agent(request: Request) -> Token:
    """Return the token of a collector, which names the one host it may report for."""
    return _checked_agent(find_token(parts_of(request).control, _secret_of(request)))


def require_joiner(request: Request) -> Token:
    """Return the token by which hosts get tokens of their own."""
    return check_scope(_known(find_token(parts_of(request).control, _secret_of(request))), "join")


async def find_agent(request: Request) -> Token:
    """Return the same from the cache, which is for the one route that every host calls every second."""
    cache: TokenCache = request.app.state.token_cache
    return _checked_agent(await cache.find_token(_secret_of(request)))


def find_caller(request: Request) -> Token | None:
    """Return who asks, or None where nothing says so; NotAllowed for a token or a session that is worth nothing."""
    if request.headers.get("Authorization"):
        return prove(request, _secret_of(request)).token
    if cookie := request.cookies.get(SESSION_COOKIE):
        parts = parts_of(request)
        found = find_session(parts.control, cookie, parts.clock.now_ns())
        if found is None:
            raise NotAllowed("this session is over: log in again", slug="no-session", status=401)
        check_origin(request)
        return found
    return None


def prove(request: Request, secret: str) -> Proven:
    """Return whom a token of ours or of the OIDC issuer names, and until when; NotAllowed where it names nobody."""
    oidc: OidcVerifier | None = request.app.state.oidc
    if oidc is not None and not secret.startswith(TOKEN_PREFIX):
        return oidc.verify(secret)
    return Proven(_known(find_token(parts_of(request).control, secret)), _NEVER_NS)


def allows(scope: Scope, wanted: Scope) -> bool:
    """Return whether a token of this scope may do what the other scope stands for."""
    return wanted in _ALLOWS[scope]


Reader = Depends(admit_reader)
Scraper = Depends(require_scraper)
Actor = Annotated[str, Depends(require_actor)]
Admin = Annotated[str, Depends(require_admin)]
Agent = Annotated[Token, Depends(require_agent)]
Joiner = Annotated[Token, Depends(require_joiner)]


def _require(request: Request, wanted: Scope) -> Token:
    try:
        caller = find_caller(request)
        if caller is None:
            raise _no_token()
    except NotAllowed as refusal:
        if refusal.status == 401 and is_page_visit(request):
            asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            login = f"{LOGIN}?next={quote(asked, safe='')}"  # which leads back to what was asked for
            raise HTTPException(303, "log in first", {"Location": login}) from refusal
        raise
    return check_scope(caller, wanted)


def check_scope(token: Token, wanted: Scope) -> Token:
    """Return the token, or raise NotAllowed where its scope does not allow what is wanted."""
    if not allows(token.scope, wanted):
        raise NotAllowed(
            f"a token of scope {token.scope} does not allow {_DOING[wanted]}", slug="wrong-scope", status=403
        )
    return token


def _checked_agent(token: Token | None) -> Token:
    token = check_scope(_known(token), "ingest")
    if not token.host:
        raise NotAllowed(f"token {token.id} is bound to no host", slug="wrong-scope", status=403)
    return token


def _known(token: Token | None) -> Token:
    if token is None:
        raise NotAllowed("this token is unknown or revoked", slug="unknown-token", status=401)
    return token


def _secret_of(request: Request) -> str:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise _no_token()
    return secret.strip()


def _no_token() -> NotAllowed:
    return NotAllowed("this needs a token: send Authorization: Bearer <token>", slug="no-token", status=401)
