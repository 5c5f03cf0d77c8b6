"""Values that many requests need, read once for all of them.

`Refreshed` is for the event loop and reads the next value ahead of time; `TtlCache` is for threads, and while one of
them reads, the others get the last value; `SingleFlight` keeps nothing: who asks the same at the same time shares an
answer.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from lockstep.clock import NS_PER_S, Clock

T = TypeVar("T")
_FOR_EVER_S = -1.0  # as locks have it


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
