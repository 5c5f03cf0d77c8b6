"""How many requests may wait for the store at once: a store that hangs takes no thread from approvals and incidents.

All routes that block share the forty threads of Starlette's pool. A request that reads telemetry takes one of fewer
slots before it takes a thread. Whoever gets none in time goes on without the store: a page shows what the control
database knows, an act is done, and everything else becomes a 503 that says when to come again.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

import anyio
import pyarrow as pa
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.cache import SingleFlight
from lockstep.config import Settings
from lockstep.errors import StoreAway
from lockstep.store.store import Parameters, Store
from lockstep.tables import Table

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
