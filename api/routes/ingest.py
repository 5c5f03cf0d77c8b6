"""POST /api/v1/ingest: a collector's batch in, its watermark and our detail requests out."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field
from starlette.types import ASGIApp, Receive, Scope, Send

from api.auth import Agent, TokenCache, find_agent
from api.dependencies import Parts, parts_of
from api.ingest.checking import CheckLimits
from api.ingest.log import Entry
from importers.traces import alertmanager, gpud
from importers.traces.readings import Statement, event_rows
from lockstep.batches import (
    ACCEPTED_VERSIONS,
    AGENT_HEADER,
    BOOT_HEADER,
    CONTENT_TYPE,
    ENCODING,
    NUMBER_HEADER,
    VERSION_HEADER,
    Receipt,
    encode_batch,
)
from lockstep.bounds import BOUNDS, is_readable
from lockstep.clock import NS_PER_S
from lockstep.errors import BadBatch, BadInput, LockstepError, NotAllowed
from lockstep.state.tokens import Token
from lockstep.verdict import Frozen

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
    "requestBody": {"required": True, "content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
}


@router.post(PATH, openapi_extra=_DESCRIBED)
async def ingest(request: Request) -> Receipt:
    """Take a batch; sending it again, after any failure, has no further effect."""
    parts = parts_of(request)
    cache: TokenCache = request.app.state.token_cache
    token = await find_agent(request)
    host = str(token.host)
    agent, boot, number = _identity(request, host)
    gateway = parts.settings.gateway
    body = await read_body(request, gateway.max_batch_mb)
    entry = Entry(agent, boot, number, parts.clock.now_ns(), body)
    limits = CheckLimits((gateway.max_batch_mb << 20) * _UNPACKED_PER_MB, gateway.max_rows)
    watermark = await asyncio.wrap_future(parts.gateway.take(entry, limits, is_fabric=token.scope == "fabric"))
    return Receipt(watermark=watermark, requests=tuple(await cache.detail_requests_for(host)))


class IngestFastPath:
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


async def read_body(request: Request, limit_mb: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit_mb << 20:
            raise BadBatch(f"a batch may have {limit_mb} MiB", slug="too-large", status=413)
        pieces.append(piece)
    return b"".join(pieces)


_HOST = re.compile(r"[^\s/]{1,253}")
_JSON = {"type": "object"}


class Accepted(Frozen):
    """What became of a request; everything counted as an event is on the server's disk, and will be stored once."""

    events: int = Field(ge=0, description="events that are safe, those accepted before among them")
    too_young: int = Field(0, ge=0, description="events to send again later, because their second may not be over")
    left_out: int = Field(
        0, ge=0, description="events without a time, with one in the future, or a name with control characters"
    )


def _body(schema: Mapping[str, object], example: object) -> dict[str, object]:
    """Return how a body is described to readers of the API; it is read by hand, because its size is bounded."""
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


@router.post(
    "/api/v1/intake/alertmanager",
    tags=["intake"],
    openapi_extra=_body(
        _JSON,
        {
            "version": "4",
            "status": "firing",
            "alerts": [
                {
                    "status": "firing",
                    "labels": {"alertname": "NodeDown", "instance": "h3:9100", "severity": "critical"},
                    "annotations": {"summary": "h3 does not answer"},
                    "startsAt": "2024-05-01T08:00:00.5Z",
                    "endsAt": "0001-01-01T00:00:00Z",
                    "fingerprint": "1a30ba71cca2921f",
                }
            ],
        },
    ),
)
async def take_alerts(request: Request, token: Agent) -> Accepted:
    """Take a notification of Prometheus Alertmanager (webhook, version 4); each alert becomes an event.

    Make a token with `lockstep token create --scope ingest --host intake:alertmanager NAME`: it may tell of every
    host, here and nowhere else. A collector's token may tell of its own host only. Then, in alertmanager.yml:

        receivers:
          - name: lockstep
            webhook_configs:
              - url: http://HEAD:8642/api/v1/intake/alertmanager
                send_resolved: true
                http_config: {authorization: {credentials_file: /etc/alertmanager/lockstep-token}}

    The host of an alert is that of its label hostname, node, nodename, host or instance, and has to be spelled as in
    the topology. Firing and resolving are an event each. Retries, repeats, and several Alertmanagers with the same
    alerts change nothing: an alert is known by its fingerprint, and only news later than the last is stored. 503 asks
    to come again, which Alertmanager does by itself.
    """
    parts = parts_of(request)
    body = await read_body(request, parts.settings.gateway.max_batch_mb)
    notification = await run_in_threadpool(alertmanager.check_notification, "the notification", body)
    statements = list(alertmanager.statements_of(notification))
    return await _accept(parts, token, alertmanager.SOURCE, statements, len(notification.alerts) - len(statements))


@router.post(
    "/api/v1/intake/gpud",
    tags=["intake"],
    openapi_extra=_body(
        {"type": "array", "items": _JSON},
        [
            {
                "component": "accelerator-nvidia-error-xid",
                "startTime": "2024-05-01T07:00:00Z",
                "endTime": "2024-05-01T08:00:00Z",
                "events": [
                    {"time": "2024-05-01T07:59:00Z", "name": "error_xid", "type": "Critical", "message": "XID 79"}
                ],
            }
        ],
    ),
)
async def take_gpud(request: Request, token: Agent, host: str | None = None) -> Accepted:
    """Take an answer of a host's gpud (/v1/events or /v1/states); each event or bad state becomes an event.

    gpud answers when it is asked, so ask it on every host each minute, with the token of the host's collector:

        curl -sk https://localhost:15132/v1/events |
          curl -sf -H "Authorization: Bearer $TOKEN" --data-binary @- http://HEAD:8642/api/v1/intake/gpud

    Whoever asks for many hosts makes a token for the host `intake:gpud` and names each with `?host=`. Answers may
    overlap as they like: of a component, every second is stored once. What happened in the last 30 s is counted as
    too young and taken from the next answer.
    """
    parts = parts_of(request)
    named = _named_host(token, host)
    body = await read_body(request, parts.settings.gateway.max_batch_mb)
    components = await run_in_threadpool(gpud.check_answer, "the answer", body)
    statements = list(gpud.statements_of(components, named))
    settled_ns = parts.clock.now_ns() - gpud.SETTLED_S * NS_PER_S
    settled = [statement for statement in statements if statement.ts_ns < settled_ns]
    accepted = await _accept(parts, token, gpud.SOURCE, settled, gpud.count_timeless(components))
    return accepted.model_copy(update={"too_young": _count(statements) - _count(settled)})


async def _accept(parts: Parts, token: Token, source: str, statements: list[Statement], timeless: int) -> Accepted:
    """Put statements into the gateway's log; the answer is there once all of them are on disk."""
    for statement in statements:
        _check_allowed(token, source, statement.host)
    if len(statements) > BOUNDS.statements or len({each.subject for each in statements}) > BOUNDS.subjects:
        raise BadBatch(f"a request may have events of {BOUNDS.subjects} things", slug="too-large", status=413)
    now_ns = parts.clock.now_ns()
    credible = [each for each in statements if each.ts_ns <= now_ns + BOUNDS.ahead_ns and _is_readable(each)]
    entries = await run_in_threadpool(lambda: [_entry(source, statement, now_ns) for statement in credible])
    # All are waited for, whatever becomes of one: the log's thread answers each, and an answer must find somebody.
    outcomes = await asyncio.gather(
        *(asyncio.wrap_future(parts.gateway.submit(entry)) for entry in entries), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return Accepted(events=_count(credible), left_out=timeless + _count(statements) - _count(credible))


def _is_readable(statement: Statement) -> bool:
    names = (str(row[name]) for row in statement.rows for name in ("host", "kind", "component"))
    return all(map(is_readable, names))


def _entry(source: str, statement: Statement, now_ns: int) -> Entry:
    body = encode_batch({"events": event_rows([statement])})
    return Entry(_intake_name(source), statement.subject, statement.number, now_ns, body)


def _intake_name(source: str) -> str:
    return f"intake:{source}"


def _check_allowed(token: Token, source: str, host: str) -> None:
    """Refuse news about a host that the token is not for."""
    if token.host not in (_intake_name(source), host):
        problem = (
            f"this token is for {token.host}, the event is about {host}; one for {_intake_name(source)} may send it"
        )
        raise NotAllowed(problem, slug="wrong-host", status=403)


def _named_host(token: Token, host: str | None) -> str:
    """Return the host that an answer of gpud is about: as the request says, else the token's own."""
    named = host or str(token.host)
    if named == _intake_name(gpud.SOURCE):
        raise BadInput(f"gpud does not name its host, and a token for {named} is no host's: add ?host=")
    if not _HOST.fullmatch(named):
        raise BadInput(f"{named[:100]!r} is no name of a host")
    _check_allowed(token, gpud.SOURCE, named)
    return named


def _count(statements: Iterable[Statement]) -> int:
    return sum(len(statement.rows) for statement in statements)
