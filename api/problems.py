"""The one shape of every error (RFC 9457), and which of our exceptions becomes which status."""

from collections.abc import Mapping

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lockstep.errors import (
    BadBatch,
    BadInput,
    ChangedMeanwhile,
    ControlAway,
    GatewayFull,
    LockstepError,
    NotAllowed,
    NotPresent,
    StoreAway,
    StoreError,
)

_log = structlog.get_logger("api")

_RETRY_AFTER_S = 1
# The first class that fits wins, so the narrow ones come first.
_KINDS: tuple[tuple[type[LockstepError], int, str], ...] = (
    (BadInput, 400, "bad-input"),
    (NotPresent, 404, "not-found"),
    (ChangedMeanwhile, 412, "changed-meanwhile"),
    (GatewayFull, 503, "busy"),
    (StoreAway, 503, "store-away"),
    (ControlAway, 503, "control-away"),
    (StoreError, 502, "store-refused"),
    (LockstepError, 500, "failed"),
)


def problem(
    status: int, slug: str, detail: str, request: Request, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return a problem document; `slug` is stable and meant for programs, `detail` for people."""
    document = {
        "type": f"urn:lockstep:problem:{slug}",
        "title": slug.replace("-", " "),
        "status": status,
        "detail": detail,
        "instance": request.url.path,
    }
    return JSONResponse(document, status, dict(headers or {}), media_type="application/problem+json")


def install_problems(app: FastAPI) -> None:
    """Make every error of the app a problem document, the unforeseen ones without their insides."""

    @app.exception_handler(LockstepError)
    async def ours(request: Request, error: LockstepError) -> JSONResponse:
        status, slug = classify(error)
        headers = {"Retry-After": str(_RETRY_AFTER_S)} if status == 503 else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return problem(status, slug, str(error), request, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        complaints = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return problem(422, "bad-request", complaints, request)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> JSONResponse:
        slug = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "refused")
        return problem(error.status_code, slug, str(error.detail), request, error.headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        _log.error("request failed", path=request.url.path, exc_info=error)
        return problem(500, "failed", "this should not have happened; the server's log says more", request)


def classify(error: LockstepError) -> tuple[int, str]:
    """Return the status and the slug of one of our errors."""
    if isinstance(error, BadBatch | NotAllowed):
        return error.status, error.slug
    return next((status, slug) for kind, status, slug in _KINDS if isinstance(error, kind))
