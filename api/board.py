"""What is known about callers, for as many requests as come: who may send or read, and what we wish of each agent.

Asking the control database for every batch took a third of the gateway's time. It is asked for all tokens at once
instead, and the answer is believed for half a second: a token is refused, and a wish delivered, with the first batch
that comes later than that. Nothing is believed for longer: where the database cannot be read, nobody is let in.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import anyio
from anyio import to_thread

from api.refreshed import Refreshed
from lockstep.clock import Clock
from lockstep.control.database import ControlDatabase
from lockstep.control.tokens import Token, TokenRows, find_token, match_token, valid_tokens
from lockstep.control.wishes import wishes_by_host
from lockstep.wish import Wish

_THREADS = 4
LIFE_S = 0.5  # what is written down is obeyed after this time
_ASK_AGAIN_S = 0.25


@dataclass(frozen=True)
class _Answer:
    """What the database said."""

    tokens: TokenRows
    wishes: Mapping[str, list[Wish]]


class Board:
    """The latest answer; for the threads of one event loop."""

    def __init__(self, control: ControlDatabase, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._threads = anyio.CapacityLimiter(_THREADS)  # readers may have taken all of the usual ones
        self._answer = Refreshed(self._ask, clock, again_s=_ASK_AGAIN_S, believed_s=LIFE_S)

    async def find_token(self, secret: str) -> Token | None:
        """Return the token that this text is; one that is not on the board may be new."""
        return await self.find_known(secret) or await to_thread.run_sync(
            find_token, self._control, secret, limiter=self._threads
        )

    async def find_known(self, secret: str) -> Token | None:
        """Return the token that this text is, where it is on the board."""
        return match_token((await self._answer.get()).tokens, secret)

    def forget(self) -> None:
        """Ask at the next request: a token was revoked here."""
        self._answer.forget()

    async def wishes_for(self, host: str) -> list[Wish]:
        """Return the wishes for this host that have not expired, the most pressing first."""
        now_ns = self._clock.now_ns()
        return [wish for wish in (await self._answer.get()).wishes.get(host, []) if wish.expires_ns > now_ns]

    async def _ask(self) -> _Answer:
        return await to_thread.run_sync(self._read, limiter=self._threads)

    def _read(self) -> _Answer:
        return _Answer(valid_tokens(self._control), wishes_by_host(self._control, self._clock.now_ns()))
