"""Where a request comes from: a page of ours, one of another site, a browser that wants a page, this very machine."""

import ipaddress
from urllib.parse import quote, urlsplit

from fastapi import Request

from lockstep.errors import NotAllowed
from lockstep.sections import split_listen

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOGIN = "/login"


def check_origin(request: Request) -> None:
    """Raise NotAllowed for a change that a browser sends for a page of another site, or that hides where it is from.

    A browser adds its cookie to what any page sends. Sec-Fetch-Site and Origin tell whose page it was; the browser
    sets them, and no page can change them.
    """
    if request.method not in _SAFE and not is_same_origin(request):
        raise NotAllowed("a session changes things only from our own pages", slug="other-origin", status=403)


def is_same_origin(request: Request) -> bool:
    """Return whether the browser says that one of our own pages asks; False where it says nothing."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    # The scheme is not compared: behind a proxy that ends TLS we see http where the browser saw https.
    place = _netloc(request.headers.get("Origin", ""))
    return bool(place) and place == request.headers.get("Host", "").lower()


def check_open_reads(request: Request, listen: str) -> None:
    """Raise NotAllowed where reads are open to this machine only, and the browser thinks that we are another.

    A page elsewhere can make its own name point to 127.0.0.1 and would then read what we answer (DNS rebinding).
    """
    if is_loopback(split_listen(listen)[0]) and not is_loopback(_hostname(request)):
        problem = f"reads are open at http://{listen} only, not under the name {_hostname(request)[:80]!r}"
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


def login_place(request: Request) -> str:
    """Return the address of the login page, which leads back to what was asked for."""
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return f"{LOGIN}?next={quote(asked, safe='')}"


def safe_next(asked: str) -> str:
    """Return where to go after the login: a place of ours, never another site.

    >>> [safe_next(place) for place in ("/incidents?job=a", "//evil.example", "/\\\\evil.example", "https://x", "")]
    ['/incidents?job=a', '/', '/', '/', '/']
    """
    is_ours = asked.startswith("/") and not asked.startswith("//") and "\\" not in asked and asked.isprintable()
    return asked if is_ours else "/"


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _hostname(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
    except ValueError:
        return ""
