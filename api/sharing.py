"""What many requests share: values that are read once for all of them, and slots in which they wait for the store.

`Refreshed` is for the event loop and reads the next value ahead of time; `TtlCache` is for threads, and while one of
them reads, the others get the last value; `SingleFlight` keeps nothing: who asks the same at the same time shares an
answer.

All routes that block share the forty threads of Starlette's pool. A request that reads telemetry takes one of fewer
slots before it takes a thread, so that a store that hangs takes none from approvals and incidents. Whoever gets no
slot in time goes on without the store: a page shows what the control database knows, an act is done, and everything
else becomes a 503 that says when to come again.
"""

import asyncio
import re
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import anyio
import pyarrow as pa
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep.clock import NS_PER_S, Clock
from lockstep.config import Settings
from lockstep.errors import StoreAway
from lockstep.store.store import Parameters, Store
from lockstep.tables import Table

T = TypeVar("T")
_FOR_EVER_S = -1.0  # as locks have it

WAIT_S = 2.0  # longer than a usual read, and short for a person
_FEW = 2  # of those who come every few seconds and wait for the same answer

_TELEMETRY = re.compile(
    r"/api/v1/(jobs|hosts|gpus|nics|agents|parts|topology|checkpoints|captures)(/.*)?"
    r"|/api/v1/incidents/[^/]+/(changes|part|matrix|capture)"
    r"|/(job|matrix|lags|agents|parts|topology|what-if)"
)
# These say more with the store and enough without it, so nobody waits for it.
_BETTER_WITH = re.compile(r"/(live)?|/incidents/[^/]+|/api/v1/isolated/[^/]+/[^/]+")
_APART = ("/readyz", "/metrics")

# Of whoever asks; threads of our own, which no request began, may always ask.
_may_ask: ContextVar[bool] = ContextVar("may_ask_the_store", default=True)


class TtlCache(Generic[T]):
    """The last few values by key, each fresh for some seconds; safe to share between threads.

    One thread reads at a time. Whoever comes meanwhile gets the last value where it is not older than `stale_s`, else
    waits for `patience_s` and is told TimeoutError after it.
    """

    def __init__(
        self, clock: Clock, *, fresh_s: float, stale_s: float = 0.0, patience_s: float = _FOR_EVER_S, size: int = 1
    ) -> None:
        self._clock, self._patience_s, self._size = clock, patience_s, size
        self._fresh_ns, self._stale_ns = round(fresh_s * NS_PER_S), round(stale_s * NS_PER_S)
        self._entries: OrderedDict[Hashable, tuple[int, T]] = OrderedDict()  # when it was asked for, and the answer
        self._reading = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return the value of the key, by `read` where it is not fresh; what that raises is not kept."""
        found = self.find_fresh(key)
        if found is not None:
            return found
        if not self._reading.acquire(blocking=False):
            stale = self._find(key, self._stale_ns)
            if stale is not None:
                return stale
            if not self._reading.acquire(timeout=self._patience_s):
                raise TimeoutError
        try:
            found = self.find_fresh(key)
            return self._read(key, read) if found is None else found
        finally:
            self._reading.release()

    def find_fresh(self, key: Hashable) -> T | None:
        """Return the value of the key where it is fresh; asks nobody."""
        return self._find(key, self._fresh_ns)

    def _find(self, key: Hashable, oldest_ns: int) -> T | None:
        entry = self._entries.get(key)
        return entry[1] if entry is not None and self._clock.monotonic_ns() - entry[0] < oldest_ns else None

    def _read(self, key: Hashable, read: Callable[[], T]) -> T:
        asked_ns = self._clock.monotonic_ns()
        value = read()
        self._entries[key] = (asked_ns, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return value


class SingleFlight(Generic[T]):
    """Questions that are being answered; safe to share between threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._asked: dict[Hashable, Future[T]] = {}

    def ask(self, question: Hashable, query: Callable[[], T]) -> T:
        """Return the answer of `query`, or what comes of the same question of somebody else; also its failure."""
        with self._guard:
            theirs = self._asked.get(question)
            answer = self._asked.setdefault(question, Future())
        if theirs is None:
            self._answer(question, answer, query)
        return answer.result()

    def _answer(self, question: Hashable, answer: "Future[T]", query: Callable[[], T]) -> None:
        try:
            value = query()
        except BaseException as error:
            self._forget(question)
            answer.set_exception(error)
            raise
        self._forget(question)  # before it is told: who comes later does not get it
        answer.set_result(value)

    def _forget(self, question: Hashable) -> None:
        with self._guard:
            del self._asked[question]


@dataclass(frozen=True)
class _Answer(Generic[T]):
    value: T
    asked_ns: int  # monotonic: it is as old as the question
    round: int


class Refreshed(Generic[T]):
    """The latest answer; for the requests of one event loop. `forget` may be called from any thread."""

    def __init__(self, ask: Callable[[], Awaitable[T]], clock: Clock, *, again_s: float, believed_s: float) -> None:
        self._ask, self._clock = ask, clock
        self._again_ns, self._believed_ns = round(again_s * NS_PER_S), round(believed_s * NS_PER_S)
        self._answer: _Answer[T] | None = None
        self._round = 0  # how often what was known has been forgotten
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return an answer that may be believed; who asks in vain is told why, and the next one asks again."""
        answer = self._answer
        is_known = answer is not None and answer.round == self._round
        age_ns = self._clock.monotonic_ns() - answer.asked_ns if answer is not None and is_known else None
        asking = self._asking  # once: another thread may forget at any moment
        if asking is None and (age_ns is None or age_ns >= self._again_ns):
            asking = self._start()
        if answer is not None and age_ns is not None and age_ns < self._believed_ns:
            return answer.value
        return await asyncio.shield(asking or self._start())  # whoever goes away takes it from nobody

    def forget(self) -> None:
        """Believe nothing that was asked for before now: something was written here."""
        self._round += 1
        self._asking = None

    def _start(self) -> asyncio.Task[T]:
        task = self._asking = asyncio.create_task(self._ask_once())
        task.add_done_callback(self._ended)
        return task

    async def _ask_once(self) -> T:
        number, asked_ns = self._round, self._clock.monotonic_ns()
        value = await self._ask()
        self._answer = _Answer(value, asked_ns, number)
        return value

    def _ended(self, task: asyncio.Task[T]) -> None:
        if self._asking is task:
            self._asking = None
        if not task.cancelled():
            task.exception()  # it was told to those who waited; where nobody did, the last answer holds for its time


class GuardedStore(Store):
    """The store as requests have it: StoreAway at once for a request that has no slot."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.address, _no_client)
        self._store = store
        self._flights: SingleFlight[pa.Table] = SingleFlight()

    def insert(self, table: Table, rows: pa.Table, token: str) -> None:
        """Store rows, as the store itself does."""
        _check()
        self._store.insert(table, rows, token)

    def query(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the rows of a SELECT, as the store does; who asks the same as another gets that answer."""
        _check()
        question = (sql, repr(sorted((parameters or {}).items())))
        return self._flights.ask(question, lambda: self._store.query(sql, parameters))

    def query_system(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the rows of a SELECT that names its databases itself, as the store itself does."""
        _check()
        return self._store.query_system(sql, parameters)

    def command(
        self, sql: str, settings: Mapping[str, Any] | None = None, parameters: Parameters | None = None
    ) -> None:
        """Run a statement, as the store itself does."""
        _check()
        self._store.command(sql, settings, parameters)

    def close(self) -> None:
        """Do nothing: whoever opened the store closes it."""


@dataclass(frozen=True)
class _Slots:
    """The slots that one kind of request has, and how long it waits for one."""

    free: anyio.Semaphore
    wait_s: float

    async def enter(self) -> bool:
        """Take a slot, and return whether there was one."""
        if not self.wait_s:
            try:
                self.free.acquire_nowait()
            except anyio.WouldBlock:
                return False
            return True
        with anyio.move_on_after(self.wait_s):
            await self.free.acquire()
            return True
        return False


class StoreSlots:
    """Middleware: gives a request that reads telemetry its slot until it answers."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        readers = anyio.Semaphore(settings.api.store_reads)
        self._telemetry, self._better_with = _Slots(readers, WAIT_S), _Slots(readers, 0)
        self._apart = {path: _Slots(anyio.Semaphore(_FEW), WAIT_S) for path in _APART}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        slots = self._find(scope["path"])
        has_slot = slots is not None and await slots.enter()
        mark = _may_ask.set(has_slot)
        try:
            if slots is not None and has_slot:
                await self._run(slots, scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            _may_ask.reset(mark)

    async def _run(self, slots: _Slots, scope: Scope, receive: Receive, send: Send) -> None:
        held = [slots.free]

        async def send_and_leave(message: Message) -> None:
            while held:  # the answer is there: whoever takes long to read it holds up nobody
                held.pop().release()
            await send(message)

        try:
            await self._app(scope, receive, send_and_leave)
        finally:
            while held:
                held.pop().release()

    def _find(self, path: str) -> _Slots | None:
        if _TELEMETRY.fullmatch(path):
            return self._telemetry
        return self._better_with if _BETTER_WITH.fullmatch(path) else self._apart.get(path)


def _check() -> None:
    if not _may_ask.get():
        raise StoreAway("the store is slow, and as many requests as may wait for it do so already: come again")


def _no_client() -> NoReturn:
    raise AssertionError("the store that is guarded has the clients")
