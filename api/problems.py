"""The one shape of every error (RFC 9457), which exception becomes which status, and the OpenAPI description."""

import re
from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
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


Document = dict[str, Any]  # Any: OpenAPI is JSON of any shape

PROBLEM_TYPE = "application/problem+json"
_METHODS = frozenset({"get", "put", "post", "delete", "patch"})
# What any request may meet; a route that answers otherwise says so itself.
_PROBLEMS = {
    "400": "What was asked makes no sense",
    "401": "No token, or one that is worth nothing",
    "403": "The token does not allow this",
    "404": "It is not there",
    "413": "The body is too large",
    "422": "A parameter or the body has the wrong shape",
    "429": "Too many requests",
    "500": "Our mistake; the server's log says more",
    "502": "The store refused",
    "503": "The store or the control database is away; come again",
}
_DESCRIPTION = (
    "Telemetry, fault localization and recovery planning for clusters that train large models. Times are integer "
    "nanoseconds since the UNIX epoch; fields that end in `_at` say the same in RFC 3339. Lists come in pages: "
    "`next` and the Link header lead on. Errors are problem documents (RFC 9457)."
)


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    type: str = Field(description="urn:lockstep:problem: and a word that stays the same")
    title: str
    status: int
    detail: str = Field(description="one sentence for people")
    instance: str = Field(description="path of the request")


def describe(app: FastAPI) -> Document:
    """Return the description of all routes that are in the schema."""
    document = get_openapi(
        title=app.title, version=app.version, openapi_version="3.1.0", description=_DESCRIPTION, routes=app.routes
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in _METHODS:
                _complete(operation, method, path)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    return document


def name_operation(method: str, path: str) -> str:
    """Return an id that changes only with method and path, whatever functions are called.

    >>> name_operation("get", "/api/v1/jobs/{job}/matrix")
    'get_jobs_by_job_matrix'
    """
    words = re.sub(r"\{(\w+)\}", r"by_\1", path.removeprefix("/api/v1")).strip("/")
    return f"{method}_{re.sub(r'[^a-zA-Z0-9]+', '_', words) or 'root'}"


def _complete(operation: Document, method: str, path: str) -> None:
    operation["operationId"] = name_operation(method, path)
    responses = operation.setdefault("responses", {})
    if "422" in responses and "application/json" in responses["422"].get("content", {}):
        del responses["422"]  # FastAPI's own shape, which is never sent here
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status, meaning in _PROBLEMS.items():
        responses.setdefault(status, {"description": meaning, "content": content})
