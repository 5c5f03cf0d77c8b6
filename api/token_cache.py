"""What is known about callers, for as many requests as come: who may send or read, and what we ask of each agent.

Asking the control database for every batch took a third of the gateway's time. It is asked for all tokens at once
instead, and the answer is believed for half a second: a token is refused, and a request delivered, with the first
batch that comes later than that. Nothing is believed for longer: where the database cannot be read, nobody is let in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio
from anyio import to_thread

from api.cache import Refreshed
from lockstep.batches import DetailRequest
from lockstep.clock import Clock
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import detail_requests_by_host
from lockstep.state.sessions import digest_session, live_sessions
from lockstep.state.tokens import Token, TokenRows, find_token, match_token, valid_tokens

T = TypeVar("T")

_THREADS = 4
LIFE_S = 0.5  # what is written down is obeyed after this time
_ASK_AGAIN_S = 0.25


@dataclass(frozen=True)
class _Answer:
    """What the database said."""

    tokens: TokenRows
    detail_requests: Mapping[str, list[DetailRequest]]


class TokenCache:
    """The latest answer; for the threads of one event loop."""

    def __init__(self, control: ControlDatabase, clock: Clock) -> None:
        self._control, self._clock = control, clock
        self._threads = anyio.CapacityLimiter(_THREADS)  # readers may have taken all of the usual ones
        self._answer = Refreshed(partial(self._in_thread, self._read), clock, again_s=_ASK_AGAIN_S, believed_s=LIFE_S)
        self._sessions = Refreshed(
            partial(self._in_thread, self._read_sessions), clock, again_s=_ASK_AGAIN_S, believed_s=LIFE_S
        )

    async def find_token(self, secret: str) -> Token | None:
        """Return the token that this text is; one that is not cached may be new."""
        return await self.find_known(secret) or await to_thread.run_sync(
            find_token, self._control, secret, limiter=self._threads
        )

    async def find_known(self, secret: str) -> Token | None:
        """Return the token that this text is, where it is cached."""
        return match_token((await self._answer.get()).tokens, secret)

    def forget(self) -> None:
        """Ask at the next request: a token was revoked here."""
        self._answer.forget()

    async def detail_requests_for(self, host: str) -> list[DetailRequest]:
        """Return the detail requests for this host that have not expired, the most pressing first."""
        now_ns = self._clock.now_ns()
        return [
            detail_request
            for detail_request in (await self._answer.get()).detail_requests.get(host, [])
            if detail_request.expires_ns > now_ns
        ]

    async def has_session(self, cookie: str) -> bool:
        """Return whether the cookie is of a session that lasts."""
        return digest_session(cookie) in await self._sessions.get()

    async def _in_thread(self, read: Callable[[], T]) -> T:
        return await to_thread.run_sync(read, limiter=self._threads)

    def _read(self) -> _Answer:
        return _Answer(valid_tokens(self._control), detail_requests_by_host(self._control, self._clock.now_ns()))

    def _read_sessions(self) -> frozenset[str]:
        return live_sessions(self._control, self._clock.now_ns())
