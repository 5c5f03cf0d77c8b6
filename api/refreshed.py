"""A value that many requests need and that is asked for ahead of time, so that nobody waits for it again and again.

Fifty readers that find an answer too old at the same moment would all ask, or all wait for the one who does. Here the
next answer is asked for while the last may still be believed, and is waited for only where there is none.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lockstep.clock import NS_PER_S, Clock

T = TypeVar("T")


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
