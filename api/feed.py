"""News for everybody who listens: the control database is asked once a second for all of them together.

Newest changes are kept in memory. Whoever was away for longer, or reads slowly, gets the rest from the database at
their own pace; nobody misses one, and a slow reader costs no memory.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog
from fastapi.concurrency import run_in_threadpool

from lockstep.control.changes import Change, changes_since, newest_change
from lockstep.control.database import ControlDatabase
from lockstep.errors import LockstepError, NotAllowed

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
        before_telling: Callable[[], None] = lambda: None,
    ) -> None:
        self._control, self._most, self._watch, self._period_s = control, most_listeners, watch, period_s
        self._before_telling = before_telling
        self._recent: deque[Change] = deque(maxlen=KEPT)
        self._floor: int | None = None  # everything after this number is in `recent`; None: not asked yet
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._trouble: str | None = None
        self.listeners = 0

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
        self._tell()

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
    def seat(self) -> Iterator[None]:
        """Hold a place among the listeners, or raise NotAllowed where all are taken."""
        if self.listeners >= self._most:
            problem = f"{self._most} listen already, which is as many as api.max_listeners allows"
            raise NotAllowed(problem, slug="too-many-listeners", status=503)
        self.listeners += 1
        try:
            yield
        finally:
            self.listeners -= 1

    async def begin(self, after: int | None) -> int:
        """Return the number to follow from: the one given, or now, also where it is of a database since restored."""
        newest = await run_in_threadpool(newest_change, self._control)
        return newest if after is None else min(after, newest)

    async def follow(self, known: int, heartbeat_s: float = HEARTBEAT_S) -> AsyncIterator[list[Change]]:
        """Give what changed after this number and what changes from now on; an empty list is a heartbeat."""
        while not self.is_closed:
            news = self._news
            page = await self._after(known)
            if page:
                known = page[-1].number
                yield page
            elif not await _comes(news, heartbeat_s):
                yield []

    async def _after(self, known: int) -> list[Change]:
        if self._floor is not None and known >= self._floor:
            return [change for change in self._recent if change.number > known][:PAGE]
        page = await run_in_threadpool(changes_since, self._control, known, PAGE)
        if page:
            self._before_telling()
        return page

    async def _poll(self) -> None:
        if self._floor is None:
            self._floor = await run_in_threadpool(newest_change, self._control)
        while True:
            known = self._recent[-1].number if self._recent else self._floor
            page = await run_in_threadpool(changes_since, self._control, known, PAGE)
            if not page:
                return
            self._keep(page)
            self._tell()
            await run_in_threadpool(self._watch, page, known)

    def _keep(self, page: Sequence[Change]) -> None:
        for change in page:
            if len(self._recent) == KEPT:
                self._floor = self._recent[0].number
            self._recent.append(change)

    def _tell(self) -> None:
        """Wake the listeners, after whoever remembers something has been told to ask again: they come at once."""
        self._before_telling()
        self._news.set()
        self._news = asyncio.Event()

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
