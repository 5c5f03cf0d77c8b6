"""POST /api/v1/ingest: a collector's batch in, its watermark and our wishes out."""

import asyncio
import re
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.auth import find_agent
from api.board import Board
from api.gateway.checking import CheckLimits
from api.gateway.log import Entry
from api.parts import Parts, parts_of
from lockstep.batches import (
    ACCEPTED_VERSIONS,
    AGENT_HEADER,
    BOOT_HEADER,
    CONTENT_TYPE,
    ENCODING,
    NUMBER_HEADER,
    VERSION_HEADER,
)
from lockstep.errors import BadBatch, LockstepError
from lockstep.wish import Receipt

router = APIRouter()

PATH = "/api/v1/ingest"
_UNPACKED_PER_MB = 16  # telemetry packs to a tenth or less; more than this is not telemetry
_LONGEST_NAME = 200
_LARGEST_NUMBER = 2**63 - 1
_DIGITS = re.compile(r"[0-9]{1,19}")  # Python refuses to read numbers of thousands of digits


_HEADERS: tuple[tuple[str, str, dict[str, object]], ...] = (
    (AGENT_HEADER, "host that the token is bound to", {"type": "string"}),
    (BOOT_HEADER, "run of the agent", {"type": "string", "minLength": 1, "maxLength": _LONGEST_NAME}),
    (NUMBER_HEADER, "of the batch in this run", {"type": "integer", "minimum": 1, "maximum": _LARGEST_NUMBER}),
    (VERSION_HEADER, "of the records", {"type": "integer", "enum": list(ACCEPTED_VERSIONS)}),
    ("Content-Encoding", "of the body", {"type": "string", "enum": [ENCODING]}),
)
# Read by hand, as the body is; this is how both are described to readers of the API.
_DESCRIBED: dict[str, Any] = {
    "parameters": [
        {"name": name, "in": "header", "required": True, "description": meaning, "schema": schema}
        for name, meaning, schema in _HEADERS
    ],
    "requestBody": {
        "required": True,
        "content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    },
}


@router.post(PATH, openapi_extra=_DESCRIBED)
async def ingest(request: Request) -> Receipt:
    """Take a batch; sending it again, after any failure, has no further effect."""
    parts = parts_of(request)
    board: Board = request.app.state.board
    host = str((await find_agent(request)).host)
    agent, boot, number = _identity(request, host)
    body = await _read_body(request, parts.settings.gateway.max_batch_mb << 20)
    entry = Entry(agent, boot, number, parts.clock.now_ns(), body)
    watermark = await asyncio.wrap_future(parts.gateway.take(entry, _limits(parts)))
    return Receipt(watermark=watermark, wishes=tuple(await board.wishes_for(host)))


class IngestDoor:
    """Middleware that leads a batch straight to `ingest`, past FastAPI's routing, dependencies and checks of answers.

    These took longer than everything else that a request needs, for every host and second. To OpenAPI the route is
    like all others, and so are its answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            receipt = await ingest(request)
            answer = Response(receipt.model_dump_json(), media_type="application/json")
        except LockstepError as error:
            answer = await request.app.exception_handlers[LockstepError](request, error)
        await answer(scope, receive, send)


def _identity(request: Request, host: str) -> tuple[str, str, int]:
    """Return agent, boot and number of the batch, after everything its headers say has been checked."""
    headers = request.headers
    version = _read_number(headers.get(VERSION_HEADER, ""))
    if version not in ACCEPTED_VERSIONS:
        problem = f"records of version {version or 'unknown'} are not taken, only {list(ACCEPTED_VERSIONS)}"
        raise BadBatch(problem, slug="unsupported-version", status=426)
    if headers.get("Content-Type") != CONTENT_TYPE or headers.get("Content-Encoding") != ENCODING:
        raise BadBatch(f"a batch is {CONTENT_TYPE} in {ENCODING}", slug="unsupported-media", status=415)
    agent, boot = (headers.get(name, "") for name in (AGENT_HEADER, BOOT_HEADER))
    number = _read_number(headers.get(NUMBER_HEADER, ""))
    if agent != host:
        raise BadBatch(
            f"this token is for {host}, the batch is from {agent or 'nobody'}", slug="wrong-host", status=403
        )
    if not 0 < len(boot) <= _LONGEST_NAME or not 0 < number <= _LARGEST_NUMBER:
        raise BadBatch(f"{BOOT_HEADER} and {NUMBER_HEADER} (from 1 on) must identify the batch")
    return agent, boot, number


def _read_number(text: str) -> int:
    """Return the number that a header holds, 0 when it holds none."""
    return int(text) if _DIGITS.fullmatch(text) else 0


async def _read_body(request: Request, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise BadBatch(f"a batch may have {limit >> 20} MiB", slug="too-large", status=413)
        pieces.append(piece)
    return b"".join(pieces)


def _limits(parts: Parts) -> CheckLimits:
    gateway = parts.settings.gateway
    return CheckLimits((gateway.max_batch_mb << 20) * _UNPACKED_PER_MB, gateway.max_rows)
