"""The login of a browser: a token in, a cookie out that stands for it until it ends, is revoked, or logs out."""

from typing import Annotated
from urllib.parse import parse_qs

import structlog
from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape

from api.auth import LOGIN, SESSION_COOKIE, check_origin, check_scope, prove, safe_next
from api.dependencies import parts_of
from api.limits import ONLY_KNOWN, is_known_token
from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput, NotAllowed
from lockstep.sections import ApiSettings
from lockstep.state.documents import record
from lockstep.state.tokens import begin_session, end_session

_log = structlog.get_logger("login")

router = APIRouter(include_in_schema=False)

_pages = Environment(loader=PackageLoader("api"), autoescape=select_autoescape(["html"]))
_NS_PER_HOUR = 3600 * NS_PER_S


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of an HTML form; of those given twice, the first."""
    text = (await request.body()).decode("utf-8", "replace")
    try:
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=10).items()}
    except ValueError:
        raise BadInput("a form of ours has at most 10 fields") from None


Form = Annotated[dict[str, str], Depends(read_form)]


@router.get(LOGIN, response_class=HTMLResponse)
def login_page(request: Request, next: str = "/") -> HTMLResponse:  # noqa: A002  # the name in the address
    """Return the page on which a person pastes a token."""
    return _page(request, safe_next(next))


@router.post(LOGIN, response_class=HTMLResponse)
async def log_in(request: Request, form: Form) -> Response:
    """Take a token once and set the cookie, or say on the page why not."""
    if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
        check_origin(request)  # else a foreign page could log its visitor in under a name of its choice
    target = safe_next(form.get("next", "/"))
    token = form.get("token", "").strip()
    try:
        await _check_known(request, token)
        secret, life_s = await run_in_threadpool(_begin, request, token)
    except NotAllowed as refusal:
        await run_in_threadpool(_note_refused, request, refusal)
        return _page(request, target, str(refusal), refusal.status)
    answer = RedirectResponse(target, status_code=303)
    settings = parts_of(request).settings.api
    answer.set_cookie(
        SESSION_COOKIE, secret, max_age=life_s, httponly=True, samesite="strict", secure=is_secure(settings)
    )
    return answer


@router.post("/logout")
def log_out(request: Request) -> Response:
    """End the session, also for whoever may have copied its cookie."""
    check_origin(request)
    parts = parts_of(request)
    if cookie := request.cookies.get(SESSION_COOKIE):
        end_session(parts.control, cookie, parts.clock.now_ns())
    answer = RedirectResponse(LOGIN, status_code=303)
    answer.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict", secure=is_secure(parts.settings.api))
    return answer


def is_secure(settings: ApiSettings) -> bool:
    """Return whether browsers reach us by TLS, so that a cookie must never travel without."""
    return settings.tls_cert is not None or settings.tls_in_front


async def _check_known(request: Request, token: str) -> None:
    """Refuse a token that is not known, where its address has sent too many of those to ask the database again."""
    if ONLY_KNOWN in request.scope and not await is_known_token(request, token):
        raise NotAllowed("too many requests: try again in a second", slug="too-many-requests", status=429)


def _note_refused(request: Request, refusal: NotAllowed) -> None:
    """Log and audit a login that was refused, of an address ten at once and then one a minute: somebody may guess."""
    parts, address = parts_of(request), request.client.host if request.client else "unknown"
    if request.app.state.refused_logins.take(address, parts.clock.monotonic_ns()):
        return
    _log.warning("login refused", address=address, reason=refusal.slug)
    record(
        parts.control, who=address, what="log_in_refused", subject="", why=refusal.slug, now_ns=parts.clock.now_ns()
    )


def _begin(request: Request, token: str) -> tuple[str, int]:
    """Return the secret of a new session and how many seconds it lasts; NotAllowed for a token that cannot read."""
    parts = parts_of(request)
    proven = prove(request, token)
    check_scope(proven.token, "read")
    now_ns = parts.clock.now_ns()
    expires_ns = min(proven.expires_ns, now_ns + (int(parts.settings.api.session_hours * _NS_PER_HOUR)))
    return begin_session(parts.control, proven.token, now_ns, expires_ns), (expires_ns - now_ns) // NS_PER_S


def _page(request: Request, target: str, problem: str = "", status: int = 200) -> HTMLResponse:
    parts = parts_of(request)
    shown = _pages.get_template("login.html").render(
        next=target, problem=problem, notice=parts.notice, oidc_issuer=parts.settings.api.oidc_issuer
    )
    return HTMLResponse(shown, status)
