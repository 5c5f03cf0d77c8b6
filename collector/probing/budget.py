"""How many packets may still be sent now: a token bucket."""

from lockstep.clock import NS_PER_S


class PacketBudget:
    """Lets `per_s` packets through in a second on average, and at most `burst` at once.

    A clock that is set back gives nothing and takes nothing away; one that jumps ahead gives one burst.
    """

    def __init__(self, per_s: float, burst: float | None = None) -> None:
        self._per_s, self._burst = per_s, max(per_s, 1.0) if burst is None else burst
        self._packets = self._burst
        self._last_ns: int | None = None

    def refill(self, now_ns: int) -> None:
        """Add what has become allowed since the last time."""
        passed_ns = 0 if self._last_ns is None else max(0, now_ns - self._last_ns)
        self._packets = min(self._burst, self._packets + self._per_s * passed_ns / NS_PER_S)
        self._last_ns = now_ns

    def take(self, packets: int = 1) -> bool:
        """Take that many and return True; or return False and take none.

        More than a whole burst is let through when the bucket is full, and is paid back afterwards, because
        it would wait for ever otherwise.
        """
        if self._packets < min(packets, self._burst):
            return False
        self._packets -= packets
        return True
