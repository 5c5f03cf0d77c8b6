"""POST /api/v1/intake/…: what other systems at the site tell, as events in the same log as collectors' batches.

A statement becomes an entry of the gateway's log under the name of its intake: the subject stands where a collector's
boot does, and its number only grows. So the gateway itself knows what it has heard before, across retries, restarts
and crashes, for as long as it remembers an agent that is silent: 30 days.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from api.auth import Agent
from api.gateway.log import Entry
from api.parts import Parts, parts_of
from lockstep.batches import encode_batch
from lockstep.clock import NS_PER_S
from lockstep.control.tokens import Token
from lockstep.errors import BadBatch, BadInput, NotAllowed
from lockstep.intake import alertmanager, gpud
from lockstep.intake.statements import Statement, event_rows
from lockstep.verdict import Frozen

router = APIRouter(prefix="/api/v1/intake", tags=["intake"])

_MOST_STATEMENTS = 5_000  # of one request: each is an entry of the log
_FUTURE_NS = 3600 * NS_PER_S  # more than clocks of a site disagree; a later one would hide all news until then
_HOST = re.compile(r"[^\s/]{1,253}")
_JSON = {"type": "object"}


class Heard(Frozen):
    """What became of a request; everything counted as an event is on the server's disk, and will be stored once."""

    events: int = Field(ge=0, description="events that are safe, those heard before among them")
    too_young: int = Field(0, ge=0, description="events to send again later, because their second may not be over")
    left_out: int = Field(0, ge=0, description="events that tell no time, or one in the future")


def _body(schema: Mapping[str, object], example: object) -> dict[str, object]:
    """Return how a body is described to readers of the API; it is read by hand, because its size is bounded."""
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


@router.post(
    "/alertmanager",
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
async def take_alerts(request: Request, token: Agent) -> Heard:
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
    body = await _read_body(request, parts)
    notification = await run_in_threadpool(alertmanager.check_notification, "the notification", body)
    statements = list(alertmanager.statements_of(notification))
    return await _hear(parts, token, alertmanager.SOURCE, statements, len(notification.alerts) - len(statements))


@router.post(
    "/gpud",
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
async def take_gpud(request: Request, token: Agent, host: str | None = None) -> Heard:
    """Take an answer of a host's gpud (/v1/events or /v1/states); each event or bad state becomes an event.

    gpud tells when it is asked, so ask it on every host each minute, with the token of the host's collector:

        curl -sk https://localhost:15132/v1/events |
          curl -sf -H "Authorization: Bearer $TOKEN" --data-binary @- http://HEAD:8642/api/v1/intake/gpud

    Whoever asks for many hosts makes a token for the host `intake:gpud` and names each with `?host=`. Answers may
    overlap as they like: of a component, every second is stored once. What happened in the last 30 s is counted as
    too young and taken from the next answer.
    """
    parts = parts_of(request)
    named = _named_host(token, host)
    body = await _read_body(request, parts)
    components = await run_in_threadpool(gpud.check_answer, "the answer", body)
    statements = list(gpud.statements_of(components, named))
    settled_ns = parts.clock.now_ns() - gpud.SETTLED_S * NS_PER_S
    settled = [statement for statement in statements if statement.ts_ns < settled_ns]
    heard = await _hear(parts, token, gpud.SOURCE, settled, gpud.count_timeless(components))
    return heard.model_copy(update={"too_young": _count(statements) - _count(settled)})


async def _hear(parts: Parts, token: Token, source: str, statements: list[Statement], timeless: int) -> Heard:
    """Put statements into the gateway's log; the answer is there once all of them are on disk."""
    for statement in statements:
        _check_allowed(token, source, statement.host)
    if len(statements) > _MOST_STATEMENTS:
        raise BadBatch(f"a request may tell {_MOST_STATEMENTS} things", slug="too-large", status=413)
    now_ns = parts.clock.now_ns()
    credible = [statement for statement in statements if statement.ts_ns <= now_ns + _FUTURE_NS]
    entries = await run_in_threadpool(lambda: [_entry(source, statement, now_ns) for statement in credible])
    # All are waited for, whatever becomes of one: the log's thread answers each, and an answer must find somebody.
    outcomes = await asyncio.gather(
        *(asyncio.wrap_future(parts.gateway.submit(entry)) for entry in entries), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return Heard(events=_count(credible), left_out=timeless + _count(statements) - _count(credible))


def _entry(source: str, statement: Statement, now_ns: int) -> Entry:
    body = encode_batch({"events": event_rows([statement])})
    return Entry(_intake_name(source), statement.subject, statement.number, now_ns, body)


def _intake_name(source: str) -> str:
    return f"intake:{source}"


def _check_allowed(token: Token, source: str, host: str) -> None:
    """Refuse news about a host that the token is not for."""
    if token.host not in (_intake_name(source), host):
        problem = (
            f"this token is for {token.host}, the news is about {host}; one for {_intake_name(source)} may tell it"
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


async def _read_body(request: Request, parts: Parts) -> bytes:
    limit_mb = parts.settings.gateway.max_batch_mb
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit_mb << 20:
            raise BadBatch(f"a request may have {limit_mb} MiB", slug="too-large", status=413)
        pieces.append(piece)
    return b"".join(pieces)


def _count(statements: Iterable[Statement]) -> int:
    return sum(len(statement.rows) for statement in statements)
