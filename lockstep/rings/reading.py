"""What ring files hold at one time, each by itself and several together, so that work is done once for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.rings.clock import HostClocks, TickClock
from lockstep.rings.draining import Records, Sorted, sort_records
from lockstep.rings.identity import Identity
from lockstep.rings.kernels import time_kernels
from lockstep.rings.live import Live
from lockstep.rings.operations import keys_of
from lockstep.rings.ringfile import RingFile
from lockstep.rings.transfers import time_steps, time_transfers

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field


@dataclass(frozen=True)
class Reading:
    """What a ring file held at one time. `live` was read before `records`: what it shows as over has its record."""

    identity: Identity
    clock: TickClock
    communicators: Array
    live: Live
    records: Records
    level: int


def take_reading(ring: RingFile) -> Reading:
    """Read everything in the order that `Reading` promises; RingNotReady leaves the records where they are."""
    live, clock, level = ring.live(), ring.clock(), int(ring.status()["level"])
    records = ring.read_records()
    return Reading(ring.identity, clock, ring.communicators(), live, records, level)


class JointReading:
    """Readings of several processes, one after the other; each process goes by the number of its origin."""

    def __init__(self, readings: Sequence[Reading], origins: Sequence[int]) -> None:
        self.readings, self.origins = readings, np.array(origins, np.uint16)
        self.clocks = HostClocks([reading.clock for reading in readings])
        self._tags = np.array([reading.identity.tag for reading in readings], np.uint64)
        self._sorted: Sorted = sort_records([reading.records for reading in readings])
        known = sum(map(sum, self._sorted.counts.values()))
        records = [reading.records for reading in readings]
        self.lost = sum(each.missed + len(each.slots) for each in records) - known

    @property
    def enqueued(self) -> Array:
        return self._sorted.enqueued

    def whose(self, kind: str) -> Array:
        """Return for each record of a kind which of the readings it is of."""
        return np.repeat(np.arange(len(self.readings)), self._sorted.counts[kind])

    def tags(self, kind: str) -> Array:
        """Return for each record of a kind the tag of its process."""
        return np.repeat(self._tags, self._sorted.counts[kind])

    def enqueue_ns(self) -> Array:
        return self.clocks.to_unix_ns(self.enqueued["ticks"], self._sorted.counts["enqueued"])

    def transfers(self) -> Array:
        """Return closed transfers, as MOVED."""
        return self._timed("transfers", time_transfers)

    def steps(self) -> Array:
        """Return closed steps, as STEPPED."""
        return self._timed("steps", time_steps)

    def kernels(self) -> Array:
        """Return closed kernel channels, as HEARD."""
        return self._timed("kernels", time_kernels)

    def open_keys(self) -> Array:
        """Return the keys of operations that have a part under way."""
        return self._live_keys(
            [each.live.operations["handle"][each.live.operations["open"] > 0] for each in self.readings]
        )

    def unbegun_keys(self) -> Array:
        """Return the keys of operations whose kernel may still begin, where kernels are heard of."""
        return self._live_keys(
            [
                each.live.operations["handle"] if each.identity.kernel_channels else np.empty(0, np.uint64)
                for each in self.readings
            ]
        )

    def _timed(self, kind: str, time: Any) -> Array:  # Any: three functions of one shape
        counts = self._sorted.counts[kind]
        timed: Array = time(getattr(self._sorted, kind), self.clocks, counts, np.repeat(self.origins, counts))
        return timed

    def _live_keys(self, handles: list[Array]) -> Array:
        return keys_of(np.concatenate(handles), np.repeat(self.origins, [len(each) for each in handles]))
