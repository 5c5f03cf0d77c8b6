"""The description of the API (OpenAPI 3.1): every operation with a stable id, a summary and its problem documents."""

import re
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

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


def install_openapi(app: FastAPI) -> None:
    """Make `app.openapi` return our description; it is made once, when it is first asked for."""
    made: list[Document] = []

    def openapi() -> Document:
        if not made:
            made.append(describe(app))
        return made[0]

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way of changing it


def describe(app: FastAPI) -> Document:
    """Return the description of all routes that are in the schema."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version="3.1.0",
        description=_DESCRIPTION,
        routes=app.routes,
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
    for status, meaning in _PROBLEMS.items():
        responses.setdefault(status, _problem(meaning))


def _problem(meaning: str) -> Document:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": meaning, "content": {PROBLEM_TYPE: {"schema": schema}}}
