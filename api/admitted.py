"""Who was let in to read a moment ago, so that a page with twenty requests does not ask the database twenty times."""

from lockstep.clock import NS_PER_S, Clock

LIFE_S = 0.5  # a token that is revoked is worth nothing after this time, as with those of agents
_MOST = 4_096


class Admitted:
    """Remembers for half a second; safe to share between threads, since a lost entry only means to ask again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ns: dict[str, int] = {}

    def has(self, told: str) -> bool:
        """Return whether this Authorization header let somebody in just now."""
        return self._until_ns.get(told, 0) > self._clock.monotonic_ns()

    def add(self, told: str) -> None:
        """Remember that it does."""
        if len(self._until_ns) >= _MOST:
            self._until_ns = {}
        self._until_ns[told] = self._clock.monotonic_ns() + round(LIFE_S * NS_PER_S)

    def forget(self) -> None:
        """Let nobody in without asking: a token was revoked here."""
        self._until_ns = {}
