"""One source, read on its own schedule by its own thread: what it does concerns nobody else."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from collector.gathering import Gathering
from collector.source import Reading, Source
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import NotPresent
from lockstep.wish import Wish

_log = structlog.get_logger("collector")

_LOOK_AGAIN_S = 60.0  # for what was not there: drivers are loaded late, and cards are hot-plugged


@dataclass(frozen=True)
class Health:
    """How a source has done so far."""

    reads: int = 0
    failures: int = 0
    rows: int = 0
    dropped: int = 0
    folded: int = 0
    last_s: float = 0.0  # how long the last read took
    cpu_s: float = 0.0  # CPU time of all reads, in the source's own thread
    is_present: bool = True
    is_well: bool = True
    reading_since_ns: int | None = None  # monotonic; a read that hangs is seen by it


class Follower:
    """Reads one source until it is stopped; `health` may be looked at from any thread."""

    def __init__(
        self, source: Source, gathering: Gathering, wishes: Callable[[], tuple[Wish, ...]], clock: Clock
    ) -> None:
        self.source = source
        self.health = Health()
        self._gathering, self._wishes, self._clock = gathering, wishes, clock
        self._fault: str | None = None

    def resume(self, checkpoint: bytes) -> None:
        """Have the source go on where an earlier agent stopped; one of another release may not understand it."""
        try:
            self.source.resume(checkpoint)
        except Exception as error:  # noqa: BLE001  # whatever it makes of it, beginning anew is always possible
            _log.warning("source begins anew", source=self.source.name, error=f"{type(error).__name__}: {error}")

    def follow(self, stop: threading.Event) -> None:
        """Read again and again, then let the source go."""
        while not stop.is_set():
            begin_ns, begin_cpu_s = self._clock.monotonic_ns(), time.thread_time()
            self.health = replace(self.health, reading_since_ns=begin_ns)
            pause_s = self._read_once()
            spent_s = (self._clock.monotonic_ns() - begin_ns) / NS_PER_S
            cpu_s = self.health.cpu_s + time.thread_time() - begin_cpu_s
            self.health = replace(self.health, last_s=spent_s, cpu_s=cpu_s, reading_since_ns=None)
            self._clock.wait(stop, max(pause_s - spent_s, 0.0))
        self._close()

    def _read_once(self) -> float:
        """Read, and return how long to wait before the next time."""
        try:
            reading = self._read()
            self._gathering.put(self.source.name, reading, self.source.period_s)
        except NotPresent as absence:
            self._rest(str(absence))
            return _LOOK_AGAIN_S
        except Exception as error:  # noqa: BLE001  # whatever a source does, the others go on
            self._fail(f"{type(error).__name__}: {error}")
        else:
            self._succeed(reading)
        return self.source.period_s

    def _read(self) -> Reading:
        now_ns = self._clock.now_ns()
        wishes = tuple(wish for wish in self._wishes() if wish.expires_ns > now_ns)
        return self.source.read(now_ns, wishes)

    def _succeed(self, reading: Reading) -> None:
        self._fault = None
        health = self.health
        self.health = replace(
            health,
            reads=health.reads + 1,
            rows=health.rows + sum(rows.num_rows for rows in reading.tables.values()),
            dropped=health.dropped + reading.dropped,
            folded=health.folded + reading.folded,
            is_present=True,
            is_well=True,
        )

    def _fail(self, fault: str) -> None:
        """Say it when it changes, not each time round."""
        if fault != self._fault:
            _log.warning("source failed", source=self.source.name, error=fault)
        self._fault = fault
        health = self.health
        self.health = replace(health, reads=health.reads + 1, failures=health.failures + 1, is_well=False)

    def _rest(self, reason: str) -> None:
        if self.health.is_present:
            _log.info("source has nothing to read here", source=self.source.name, reason=reason)
        self._gathering.forget(self.source.name)
        self.health = replace(self.health, is_present=False, is_well=True)

    def _close(self) -> None:
        try:
            self.source.close()
        except Exception as error:  # noqa: BLE001  # it is the end anyway
            _log.warning("source did not close", source=self.source.name, error=str(error))
