"""What ring files hold at one time, each by itself and several together, so that work is done once for all."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from collector.nccl.arrays import Array
from collector.nccl.clock import HostClocks, KernelTimes, TickClock, time_kernels
from collector.nccl.communicators import CommunicatorHistory
from collector.nccl.draining import Records, Sorted, sort_records
from collector.nccl.header import Identity
from collector.nccl.operations import keys_of
from collector.nccl.ringfile import Live, RingFile
from collector.nccl.transfers import time_steps, time_transfers


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


@dataclass(frozen=True)
class Losses:
    """What has no row, or not all that it could have, and why; counted since the beginning."""

    overwritten: int = 0  # records that were overwritten before they were read
    unknown_comm: int = 0  # operations of a communicator that is not in the table
    orphans: int = 0  # parts of an operation that nobody told of
    late: int = 0  # parts that came after the row of their operation
    stale_kernels: int = 0  # kernel times that cannot be true
    sizeless: int = 0  # transfers of which nobody can say what they moved
    unreached: int = 0  # steps that ended without reaching the network
    forgotten: int = 0  # operations dropped because too many were open

    def plus(self, **more: int) -> "Losses":
        return Losses(**{name: count + more.get(name, 0) for name, count in asdict(self).items()})


@dataclass(frozen=True)
class AggregatorState:
    """What another reader needs to go on where one ended, beside the records that the file still holds."""

    now_ns: int  # of the last reading
    share: int
    pending: Array  # handles of operations that look over and have no row
    written: Array  # handles of operations that look under way and have one


class Member:
    """What is known of one process beside its operations."""

    def __init__(self, origin: int) -> None:
        self.origin = origin  # its number
        self.history = CommunicatorHistory()
        self.kernel_times = KernelTimes()


@dataclass(frozen=True)
class Snapshot:
    """A reading of one process; the last one when it has ended, and then what is open was cut off if it died."""

    member: Member
    reading: Reading
    is_last: bool = False
    died: bool = False
