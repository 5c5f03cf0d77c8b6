"""How long steps take, and what a change of generation has cost and brought."""

from lockstep.clock import NS_PER_S, Clock
from lockstep.in_job import Effect

_MEASURED = 3  # steps after a change that tell the new speed
_KEPT = 10  # steps by which the speed of now is known


class Pace:
    """The settled steps of a replica."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._settled_ns: int | None = None
        self._generation = 0
        self._took_s: list[float] = []  # in this generation, without the first
        self._before_s = 0.0
        self._standstill_s, self._first = 0.0, 0

    @property
    def step_s(self) -> float:
        """What a step takes; 0 where it is not known."""
        return sum(self._took_s) / len(self._took_s) if self._took_s else self._before_s

    def settle(self, generation: int, step: int) -> Effect | None:
        """Count a step; return the effect of the generation when there is something new to tell of it."""
        now_ns = self._clock.monotonic_ns()
        took_s = (now_ns - (self._settled_ns or now_ns)) / NS_PER_S
        self._settled_ns = now_ns
        if generation == self._generation:
            self._took_s = [*self._took_s, took_s][-_KEPT:]
            is_new = len(self._took_s) == _MEASURED
        else:
            is_new = self._generation > 0
            self._before_s, self._generation, self._first = self.step_s, generation, step
            self._standstill_s, self._took_s = max(0.0, took_s - self._before_s), []
        return self._tell() if is_new and self._before_s else None

    def _tell(self) -> Effect:
        speed = self._before_s / self.step_s if len(self._took_s) >= _MEASURED else None
        return Effect(
            generation=self._generation, step=self._first, standstill_s=self._standstill_s, speed_after=speed
        )
