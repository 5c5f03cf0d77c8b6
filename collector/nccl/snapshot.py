"""What ring files hold at one time, each by itself and several together, and how far they were read until then.

What was read is noted as bytes: a collector that was killed goes on there, and sends nothing twice. The records
themselves are still in the files. Noted are where to go on, whose the file is (its process may be gone by then, and
the kernel with its knowledge), and which operations had their row although they did not look over, or the other way
round.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from collector.nccl.arrays import Array
from collector.nccl.clock import HostClocks, KernelTimes, TickClock, time_kernels
from collector.nccl.communicators import CommunicatorHistory, Origin
from collector.nccl.draining import Cursor, Records, sort_records
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


def take_reading(ring: RingFile, most: int = 1 << 32) -> Reading:
    """Read everything in the order that `Reading` promises; RingNotReady leaves the records where they are."""
    live, clock, level = ring.live(), ring.clock(), int(ring.status()["level"])
    records = ring.read_records(most)
    return Reading(ring.identity, clock, ring.communicators(), live, records, level)


_TIMING = {"transfers": time_transfers, "steps": time_steps, "kernels": time_kernels}


class JointReading:
    """Readings of several processes, one after the other; each process goes by the number of its origin."""

    def __init__(self, snapshots: Sequence["Snapshot"]) -> None:
        self.readings = [snapshot.reading for snapshot in snapshots]
        self.origins = np.array([snapshot.member.origin for snapshot in snapshots], np.uint16)
        self._clocks = HostClocks([reading.clock for reading in self.readings])
        self._tags = np.array([reading.identity.tag for reading in self.readings], np.uint64)
        records = [reading.records for reading in self.readings]
        self._sorted = sort_records(records)
        self.lost = sum(each.missed + len(each.slots) for each in records) - self._sorted.total

    def enqueued(self) -> tuple[Array, Array, Array]:
        """Return what was enqueued, in which of the readings, and when."""
        enqueued, counts = self._sorted.enqueued, self._sorted.counts["enqueued"]
        return enqueued, np.repeat(np.arange(len(counts)), counts), self._clocks.to_unix_ns(enqueued["ticks"], counts)

    def parts(self, kind: str) -> tuple[Array, Array]:
        """Return what has closed, as MOVED, STEPPED or SEEN_KERNEL, and of each the tag of its process."""
        counts, closed = self._sorted.counts[kind], getattr(self._sorted, kind)
        parts = _TIMING[kind](closed, self._clocks, counts, np.repeat(self.origins, counts))
        return parts, np.repeat(self._tags, counts)

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
    untimed: int = 0  # operations without begin and end, because the plugin measured what detail costs

    def plus(self, **more: int) -> "Losses":
        return Losses(**{name: count + more.get(name, 0) for name, count in asdict(self).items()})


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


_VERSION = 1

FileKey = tuple[int, int, int]  # device, inode, and when the file says that it was made


def _no_handles() -> Array:
    return np.empty(0, np.uint64)


@dataclass(frozen=True)
class AggregatorState:
    """What another reader needs to go on where one ended, beside the records that the file still holds."""

    now_ns: int  # of the last reading
    share: int
    pending: Array = field(default_factory=_no_handles)  # of operations that look over and have no row
    written: Array = field(default_factory=_no_handles)  # of operations that look under way and have one


@dataclass(frozen=True)
class FileMemory:
    """What is known of one file."""

    uid: int
    origin: Origin
    position: list[Cursor]
    aggregator: AggregatorState


@dataclass(frozen=True)
class Checkpoint:
    """What is known of all files after a reading."""

    since_ns: int = 0  # seconds before this one have been sent
    share: int | None = None
    files: Mapping[FileKey, FileMemory] = field(default_factory=dict)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the checkpoint as JSON; some hundred bytes per process."""
    files = [{"key": key, **_of_file(memory)} for key, memory in checkpoint.files.items()]
    content = {"version": _VERSION, "since_ns": checkpoint.since_ns, "share": checkpoint.share, "files": files}
    return json.dumps(content, separators=(",", ":")).encode()


def decode_checkpoint(content: bytes) -> Checkpoint:
    """Return what was saved; of another version, or broken, it is nothing."""
    try:
        document = json.loads(content)
        if document["version"] != _VERSION:
            return Checkpoint()
        files = {}
        for each in document["files"]:
            device, inode, created_ns = each["key"]
            files[device, inode, created_ns] = _to_file(each)
        return Checkpoint(int(document["since_ns"]), document["share"], files)
    except (ValueError, LookupError, TypeError, OverflowError):
        return Checkpoint()


def _of_file(memory: FileMemory) -> dict[str, Any]:
    cursors = {number: (one.following, one.waited) for number, one in enumerate(memory.position) if one.following}
    aggregator = memory.aggregator
    return {
        "uid": memory.uid,
        "origin": vars(memory.origin),
        "rings": len(memory.position),
        "cursors": cursors,
        "now_ns": aggregator.now_ns,
        "share": aggregator.share,
        "pending": aggregator.pending.tolist(),
        "written": aggregator.written.tolist(),
    }


def _to_file(document: Mapping[str, Any]) -> FileMemory:  # Any: foreign JSON; what does not fit raises
    cursors = {int(number): Cursor(*map(int, one)) for number, one in document["cursors"].items()}
    position = [cursors.get(number, Cursor()) for number in range(int(document["rings"]))]
    handles = {name: np.array(document[name], np.uint64) for name in ("pending", "written")}
    aggregator = AggregatorState(int(document["now_ns"]), int(document["share"]), **handles)
    return FileMemory(int(document["uid"]), Origin(**document["origin"]), position, aggregator)
