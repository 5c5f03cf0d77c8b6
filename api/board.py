"""What is known about agents, for as many requests as come: who may send, and what we wish of each.

Asking the control database for every batch took a third of the gateway's time. It is asked for all agents at once
instead, and the answer is believed for half a second: a token is refused, and a wish delivered, with the first batch
that comes later than that. Nothing is believed for longer: where the database cannot be read, nobody is let in.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
from anyio import to_thread

from lockstep.clock import NS_PER_S, Clock
from lockstep.control.database import ControlDatabase
from lockstep.control.tokens import Token, TokenRows, find_token, ingest_tokens, match_token
from lockstep.control.wishes import wishes_by_host
from lockstep.wish import Wish

_THREADS = 4
LIFE_S = 0.5  # what is written down is obeyed after this time


@dataclass(frozen=True)
class _Answer:
    """What the database said, and when it was asked."""

    asked_ns: int
    tokens: TokenRows
    wishes: Mapping[str, list[Wish]]


class AgentBoard:
    """The latest answer; for the threads of one event loop."""

    def __init__(self, control: ControlDatabase, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._answer: _Answer | None = None
        self._threads = anyio.CapacityLimiter(_THREADS)  # readers may have taken all of the usual ones
        self._asking = asyncio.Lock()  # one asks, the others wait for the same answer

    async def find_token(self, secret: str) -> Token | None:
        """Return the token that this text is; one that is not on the board may be new or of another scope."""
        known = match_token((await self._current()).tokens, secret)
        return known or await to_thread.run_sync(find_token, self._control, secret, limiter=self._threads)

    async def wishes_for(self, host: str) -> list[Wish]:
        """Return the wishes for this host that have not expired, the most pressing first."""
        now_ns = self._clock.now_ns()
        return [wish for wish in (await self._current()).wishes.get(host, []) if wish.expires_ns > now_ns]

    async def _current(self) -> _Answer:
        answer = self._answer
        if answer is None or self._is_old(answer):
            async with self._asking:
                answer = self._answer
                if answer is None or self._is_old(answer):
                    answer = self._answer = await to_thread.run_sync(self._ask, limiter=self._threads)
        return answer

    def _is_old(self, answer: _Answer) -> bool:
        return self._clock.monotonic_ns() - answer.asked_ns >= LIFE_S * NS_PER_S

    def _ask(self) -> _Answer:
        asked_ns = self._clock.monotonic_ns()
        return _Answer(asked_ns, ingest_tokens(self._control), wishes_by_host(self._control, self._clock.now_ns()))
