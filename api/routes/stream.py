"""GET /api/v1/incidents/stream: incidents, decisions and executions as they change, as server-sent events."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.auth import Reader, require_reader
from api.feed import HEARTBEAT_S, ChangeFeed
from lockstep.control.changes import Change
from lockstep.errors import BadInput, NotAllowed

router = APIRouter(prefix="/api/v1", dependencies=[Reader])

RETRY_MS = 2_000  # after which a browser whose connection broke comes back
_NUMBER = re.compile(r"[0-9]{1,18}")


class _Stream(StreamingResponse):
    """An answer without an end, which gives its seat back however it ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], seat: ExitStack) -> None:
        super().__init__(events, headers={"X-Accel-Buffering": "no"})  # nginx would collect events
        self._seat = seat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._seat:
            await super().__call__(scope, receive, send)


@router.get(
    "/incidents/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream(
    request: Request, job: str | None = None, last_event_id: Annotated[str | None, Header()] = None
) -> StreamingResponse:
    """Stream incident.opened, incident.updated, incident.closed, decision.made and execution.changed.

    The data of an event is the whole thing as it is now. After a break send the id of the last event as
    Last-Event-ID, as browsers do by themselves: everything that changed meanwhile follows, each thing once.
    """
    feed: ChangeFeed = request.app.state.feed
    after = _read_id(last_event_id) if last_event_id else None
    known = await feed.begin(after)
    seat = ExitStack()
    seat.enter_context(feed.seat())
    return _Stream(_events(request, feed, known, job), seat)


async def _events(request: Request, feed: ChangeFeed, known: int, job: str | None) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    loop = asyncio.get_running_loop()
    checked_s = loop.time()
    async for page in feed.follow(known):
        if not page or loop.time() - checked_s >= HEARTBEAT_S:  # where something happens all the time, too
            if not await _may_go_on(request):
                return
            checked_s = loop.time()
        if not page:
            yield ": still here\n\n"
        for change in page:
            if text := write_event(change, known, job):
                yield text
        known = page[-1].number if page else known


async def _may_go_on(request: Request) -> bool:
    """Return whether the token still holds: it may have been revoked since the stream began."""
    try:
        await run_in_threadpool(require_reader, request)
    except NotAllowed:
        return False
    return True


def write_event(change: Change, known: int, job: str | None = None) -> str:
    """Return the event for a reader who knows everything up to that number; nothing where it is of another job."""
    thing = json.loads(change.document)
    if job is not None and thing["job"] != job:
        return ""
    name = _name(change, thing.get("state"), is_new=change.first > known)
    return f"id: {change.number}\nevent: {name}\ndata: {change.document}\n\n"


def _name(change: Change, state: object, *, is_new: bool) -> str:
    if change.kind == "decision":
        return "decision.made"
    if change.kind == "execution":
        return "execution.changed"
    return "incident.closed" if state == "closed" else "incident.opened" if is_new else "incident.updated"


def _read_id(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise BadInput(f"Last-Event-ID is {text[:40]!r}, and this server's are numbers")
    return int(text)
