"""GET /api/v1/incidents/stream: incidents, decisions and executions as they change, as server-sent events."""

import asyncio
import json
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.auth import Reader, require_reader
from api.dependencies import KnownParameters
from api.limits import caller_of
from lockstep.errors import BadInput, LockstepError, NotAllowed
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import Change, changes_since, newest_change

_log = structlog.get_logger("feed")

PERIOD_S = 1.0
HEARTBEAT_S = 15.0  # proxies cut a connection that is silent for 30 or 60 s
PAGE = 200
KEPT = 1_000

Watcher = Callable[[Sequence[Change], int], None]  # changes, and the number that was known before them


class ChangeFeed:
    """Follows the changes for as long as `run` does; for one event loop."""

    def __init__(
        self,
        control: ControlDatabase,
        most_listeners: int,
        watch: Watcher,
        period_s: float = PERIOD_S,
        before_notify: Callable[[], None] = lambda: None,
    ) -> None:
        self._control, self._most, self._watch, self._period_s = control, most_listeners, watch, period_s
        self._before_notify = before_notify
        self._recent: deque[Change] = deque(maxlen=KEPT)
        self._floor: int | None = None  # everything after this number is in `recent`; None: not asked yet
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._trouble: str | None = None
        self._seats: Counter[str] = Counter()  # by caller

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    @property
    def is_following(self) -> bool:
        """Whether it has asked the database once, and misses nothing from then on."""
        return self._floor is not None

    def close(self) -> None:
        """End all streams: a server that leaves would wait for them."""
        self._closing.set()
        self._notify()

    async def run(self) -> None:
        """Ask again and again until closed; a database that is away is asked again later."""
        while not self.is_closed:
            try:
                await self._poll()
                self._note(None)
            except LockstepError as error:
                self._note(str(error))
            except Exception as error:  # noqa: BLE001  # a feed that ended would look like a cluster without faults
                self._note(f"{type(error).__name__}: {error}")
            await _comes(self._closing, self._period_s)

    @contextmanager
    def seat(self, caller: str = "") -> Iterator[None]:
        """Hold a place among the listeners, or raise NotAllowed where all are taken, or this caller has a quarter."""
        most_each = max(self._most // 4, 1)
        if self.listeners >= self._most:
            problem = f"{self._most} listen already, which is as many as api.max_listeners allows"
            raise NotAllowed(problem, slug="too-many-listeners", status=503)
        if self._seats[caller] >= most_each:
            problem = f"this token listens {most_each} times already, a quarter of what api.max_listeners allows"
            raise NotAllowed(problem, slug="too-many-listeners", status=429)
        self._seats[caller] += 1
        try:
            yield
        finally:
            self._seats[caller] -= 1
            self._seats += Counter()  # forgets who has none

    @property
    def listeners(self) -> int:
        return self._seats.total()

    async def begin(self, after: int | None) -> int:
        """Return the number to follow from: the one given, or now, also where it is of a database since restored."""
        newest = await run_in_threadpool(newest_change, self._control)
        return newest if after is None else min(after, newest)

    async def follow(self, known: int, heartbeat_s: float = HEARTBEAT_S) -> AsyncIterator[list[Change]]:
        """Give what changed after this number and what changes from now on; an empty list is a heartbeat."""
        while not self.is_closed:
            changed = self._changed
            page = await self._after(known)
            if page:
                known = page[-1].number
                yield page
            elif not await _comes(changed, heartbeat_s):
                yield []

    async def _after(self, known: int) -> list[Change]:
        if self._floor is not None and known >= self._floor:
            return [change for change in self._recent if change.number > known][:PAGE]
        page = await run_in_threadpool(changes_since, self._control, known, PAGE)
        if page:
            self._before_notify()
        return page

    async def _poll(self) -> None:
        if self._floor is None:
            self._floor = await run_in_threadpool(newest_change, self._control)
        while True:
            known = self._recent[-1].number if self._recent else self._floor
            page = await run_in_threadpool(changes_since, self._control, known, PAGE)
            if not page:
                return
            for change in page:
                if len(self._recent) == KEPT:
                    self._floor = self._recent[0].number
                self._recent.append(change)
            self._notify()
            await run_in_threadpool(self._watch, page, known)

    def _notify(self) -> None:
        """Wake the listeners, after whoever remembers something has been told to ask again: they come at once."""
        self._before_notify()
        self._changed.set()
        self._changed = asyncio.Event()

    def _note(self, trouble: str | None) -> None:
        """Say it when it changes, not each time round."""
        if trouble != self._trouble and trouble:
            _log.warning("changes cannot be followed", reason=trouble)
        self._trouble = trouble


async def _comes(event: asyncio.Event, within_s: float) -> bool:
    """Return whether the event happens in time."""
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except TimeoutError:
        return False
    return True


router = APIRouter(prefix="/api/v1", dependencies=[Reader, KnownParameters])

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
    if last_event_id and not _NUMBER.fullmatch(last_event_id):
        raise BadInput(f"Last-Event-ID is {last_event_id[:40]!r}, and this server's are numbers")
    known = await feed.begin(int(last_event_id) if last_event_id else None)
    seat = ExitStack()
    seat.enter_context(feed.seat(caller_of(request.scope, request.client.host if request.client else "")))
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
