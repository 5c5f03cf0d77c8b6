"""One ring file: who writes it, what is new in it, what is open, and what the collector asks for."""

import os
import struct
from pathlib import Path
from types import TracebackType

import numpy as np

from lockstep import wire
from lockstep.rings.clock import ClockReader, TickClock
from lockstep.rings.draining import Cursor, Records, Slots, drain, look_back
from lockstep.rings.identity import Identity, identify, read_header
from lockstep.rings.layout import check_layout
from lockstep.rings.live import CommunicatorReader, Live, read_live
from lockstep.rings.opening import ForeignFile
from lockstep.rings.sampling import WHOLE_SHARE
from lockstep.wire import Table

__all__ = ["WHOLE_SHARE", "Identity", "Live", "Records", "RingFile", "TickClock", "open_ring"]


def open_ring(path: Path, shown: Path | None = None) -> "RingFile":
    """Open a ring file that may have been made by anybody; what cannot be a ring is a BadRing.

    `shown` is how messages name it, where `path` leads through a descriptor of ours.
    """
    file = ForeignFile(path, shown=shown)
    try:
        return RingFile(file)
    except BaseException:
        file.close()
        raise


class RingFile:
    """An open ring file. No method raises anything but BadRing for what stands in the file.

    `read_records` gives each record once; everything else is as the file is now.
    """

    def __init__(self, file: ForeignFile) -> None:
        header = read_header(file)
        self._file, self._layout = file, check_layout(file, header)
        self.name, self.inode = file.name, file.inode
        self._cursors = [Cursor()] * self._layout.rings.count
        self.identity = identify(file, header)
        self.uid = file.uid
        self._clock = ClockReader(file, self._layout, self.identity.clock_kind)
        self._communicators = CommunicatorReader(file, self._layout)
        self.fullness = 0.0  # which part of its fullest ring the last reading brought
        self._rings: Table | None = None  # as they were when records were read last

    def owner(self) -> int | None:
        """Return the process that writes, by its number here; 0: it lives but cannot be seen, None: it is gone."""
        return self._file.lock_owner()

    def read_records(self) -> Records:
        """Return what is new since the last time."""
        self._rings = self._layout.rings.read(self._file)
        records, cursors = drain(self._file, self._layout, self._rings, self._cursors)
        pairs = zip(cursors, self._cursors, strict=True)
        self.fullness = max(new.following - old.following for new, old in pairs) / self._layout.ring_records
        self._cursors = cursors
        return records

    @property
    def position(self) -> list[Cursor]:
        """How far each of its rings has been read."""
        return list(self._cursors)

    def go_on(self, position: list[Cursor]) -> Records:
        """Continue where another reader of this file was; return what it read and the file still holds."""
        if len(position) != len(self._cursors):
            raise self._file.bad(f"has {len(self._cursors)} rings, and another reader knew {len(position)}")
        self._cursors = list(position)
        return look_back(self._file, self._layout, position)

    def sort(self, slots: Slots) -> Records:
        """Return records by kind, of slots that `read_records` gave before."""
        return Records(slots, 0, self._layout.comms.count)

    def callback_ticks(self) -> int:
        """Return the time that the plugin had spent in callbacks when records were read, all threads together.

        One in 64 was timed.
        """
        rings = self._layout.rings.read(self._file) if self._rings is None else self._rings
        timed = rings[rings["sampled_callbacks"] > 0]
        spent = timed["sampled_ticks"].astype(np.float64) / timed["sampled_callbacks"] * timed["callbacks"]
        return int(min(spent.sum(), 2.0**62))

    def clock(self) -> TickClock:
        """Return the clock of this process; RingNotReady while it has too few pairs to know its rate."""
        return self._clock.read()

    def communicators(self) -> Table:
        """Return the communicators, with the `place` by which records name them."""
        return self._communicators.read()

    def live(self) -> Live:
        """Return what has begun and not ended."""
        return read_live(self._file, self._layout)

    def status(self) -> np.void:
        """Return what is in force and what it costs, as one wire.STATUS."""
        status: np.void = self._layout.status.read(self._file)[0]
        if status["level"] > wire.TRACE or status["lowered"] > wire.LOWERED_BY_JOB:
            raise self._file.bad(f"has level {status['level']}, lowered for reason {status['lowered']}")
        return status

    def request(self, level: int, share: int, budget_ppm: int) -> None:
        """Ask the process for a level, a share (of 65,536) and a budget; 0 leaves the budget as it is."""
        if not (wire.OFF <= level <= wire.TRACE and 0 <= share <= WHOLE_SHARE and 0 <= budget_ppm <= 1_000_000):
            raise ValueError(f"no level, share or budget: {level}, {share}, {budget_ppm}")
        offset = self._layout.requests.offset
        before = int(self._layout.requests.read(self._file)[0]["stamp"])
        writable = ForeignFile(self._file.path, os.O_RDWR)
        try:
            if writable.inode != self._file.inode:
                raise self._file.bad("was replaced by another file")
            writable.write_at(offset + 4, struct.pack("<III", level, share, budget_ppm))
            writable.write_at(offset, struct.pack("<I", before % 0xFFFFFFFF + 1))  # never 0
        finally:
            writable.close()

    def close(self) -> None:
        """Close the file; the cursors are gone with it."""
        self._file.close()

    def __enter__(self) -> "RingFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
