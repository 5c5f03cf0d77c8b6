"""Whether all that this process needs is there, for everybody who asks: it costs two databases."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import LockstepError, StoreAway

_HOLDS_NS = NS_PER_S
_BEARABLE_NS = 5 * NS_PER_S  # how old the word that all is well may be while the next is worked out
_PATIENCE_S = 1.0


@dataclass(frozen=True)
class _Answer:
    asked_ns: int  # monotonic
    trouble: LockstepError | None


class RememberedCheck:
    """An answer that holds for a second, or a little longer while a busy machine works out the next."""

    def __init__(self, check: Callable[[], None], clock: Clock) -> None:
        self._check, self._clock = check, clock
        self._asking = threading.Lock()
        self._last: _Answer | None = None

    def check(self) -> None:
        """Raise what is wrong, or nothing."""
        answer = self._find()
        if answer is None:
            raise StoreAway("whoever asked before still waits for an answer")
        if answer.trouble:
            raise answer.trouble

    def _find(self) -> _Answer | None:
        if not self._asking.acquire(timeout=_PATIENCE_S):
            return self._known(_BEARABLE_NS)
        try:
            self._last = self._known(_HOLDS_NS) or self._ask()
            return self._last
        finally:
            self._asking.release()

    def _known(self, oldest_ns: int) -> _Answer | None:
        last = self._last
        return last if last and self._clock.monotonic_ns() - last.asked_ns < oldest_ns else None

    def _ask(self) -> _Answer:
        asked_ns = self._clock.monotonic_ns()
        try:
            self._check()
        except LockstepError as error:
            return _Answer(asked_ns, error)
        return _Answer(asked_ns, None)
