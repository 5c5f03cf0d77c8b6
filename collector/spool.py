"""Parcels on disk until they have their receipts: bounded, in order, the oldest dropped first and counted.

Every parcel is a file before it is sent, so a kill of the agent loses nothing that was packed. Files are synced only
while the server is away: with a receipt within a second there is nothing to win by it, and a training host's disk has
other work. The newest file stays after its receipt: it says how far the sources were. A disk that takes nothing sends
parcels to memory, which has a bound of its own; before such a parcel is sent its checkpoints go into space reserved
for that, so that its rows, which may be acknowledged, are never read again.
"""

import fcntl
import os
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import structlog

from collector.checkpoint_slot import CheckpointSlot
from collector.parcel import Checkpoints, Parcel
from collector.spool_file import SENT, WAITING, Place, place_of, read_parcel, write_parcel
from lockstep.errors import BadInput

_log = structlog.get_logger("spool")


@dataclass
class _Waiting:
    place: Place
    bytes: int
    rows: int
    parcel: Parcel | None  # in memory, where the disk did not take it


class Spool:
    """An outbox in a directory that no other agent uses."""

    def __init__(self, directory: Path, max_bytes: int, memory_bytes: int) -> None:
        self._directory, self._max_bytes, self._memory_bytes = directory, max_bytes, memory_bytes
        self._lock = _lock(directory)
        self._guard = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._last_sent: Path | None = None
        self._trouble = ""
        self._slot = CheckpointSlot(directory / "checkpoint")
        self._disk_bytes = self._held_bytes = 0  # of all that waits
        self.dropped_rows = 0
        self._start, self.checkpoints = self._look_around()

    @property
    def bytes(self) -> int:
        return self._disk_bytes + self._held_bytes

    def put(self, parcel: Parcel) -> None:
        with self._guard:
            self._add(_Waiting(Place(self._start, parcel.number, parcel.boot), len(parcel.body), parcel.rows, parcel))
            self._write_held()
            self._make_room()

    def first(self) -> Parcel | None:
        with self._guard:
            while self._waiting:
                waiting = self._waiting[0]
                try:
                    return self._held(waiting) or read_parcel(self._file(waiting))
                except (OSError, BadInput) as error:
                    _log.error("a batch in the spool cannot be read and is lost", error=str(error))
                    self._drop(0)
            return None

    def remove(self, parcel: Parcel) -> None:
        with self._guard:
            if not self._is_first(parcel):
                return
            waiting = self._take(0)
            if waiting.parcel is None:
                self._keep_as_last(waiting)

    def refuse(self, parcel: Parcel) -> None:
        with self._guard:
            if self._is_first(parcel):
                self._drop(0)

    def close(self) -> None:
        os.close(self._lock)

    def _look_around(self) -> tuple[int, Checkpoints]:
        """Take over what an earlier agent left; return the number of this start, and how far the sources were."""
        for unfinished in self._directory.glob("*.tmp"):
            unfinished.unlink()
        found = sorted((place, file) for file in self._directory.iterdir() if (place := place_of(file)))
        known = [saved] if (saved := self._slot.read()) else []
        for place, file in found:
            parcel = _try_read(file)
            if parcel:
                known.append((place, parcel.checkpoints))
            if file.suffix == SENT:
                self._forget_last_sent()
                self._last_sent = file
            elif parcel:
                self._add(_Waiting(place, file.stat().st_size, parcel.rows, None))
        newest, checkpoints = max(known, key=lambda entry: entry[0], default=(Place(0, 0, ""), {}))
        return newest.start + 1, checkpoints

    def _held(self, waiting: _Waiting) -> Parcel | None:
        """Return a parcel that is in memory, after writing down that its rows may be acknowledged from now on."""
        if waiting.parcel:
            try:
                self._slot.write(waiting.place, waiting.parcel.checkpoints)
            except OSError as error:
                self._report(f"after a kill some rows may be sent twice: {error}")
        return waiting.parcel

    def _write_held(self) -> None:
        """Write what is in memory, in order, as far as the disk takes it.

        A later parcel is never on disk before an earlier one: its checkpoints would say that the other's rows are
        safe, and after a kill nobody would read them again.
        """
        for index, waiting in enumerate(self._waiting):
            if waiting.parcel is None:
                continue
            try:
                size = write_parcel(self._directory, waiting.place, waiting.parcel, durable=index > 0)
            except OSError as error:
                self._report(f"the spool takes nothing, batches wait in memory: {error}")
                return
            self._held_bytes -= waiting.bytes
            self._disk_bytes += size
            waiting.parcel, waiting.bytes = None, size
        self._report("")

    def _make_room(self) -> None:
        """Drop the oldest where there is too much, on disk or in memory; the newest always stays."""
        while self._disk_bytes > self._max_bytes and (found := self._find_oldest(is_held=False)) is not None:
            self._drop(found)
        while self._held_bytes > self._memory_bytes and (found := self._find_oldest(is_held=True)) is not None:
            self._drop(found)

    def _find_oldest(self, is_held: bool) -> int | None:
        older = list(self._waiting)[:-1]
        return next((i for i, waiting in enumerate(older) if (waiting.parcel is not None) == is_held), None)

    def _add(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self._count(waiting, waiting.bytes)

    def _take(self, index: int) -> _Waiting:
        waiting = self._waiting[index]
        del self._waiting[index]
        self._count(waiting, -waiting.bytes)
        return waiting

    def _count(self, waiting: _Waiting, size: int) -> None:
        if waiting.parcel is None:
            self._disk_bytes += size
        else:
            self._held_bytes += size

    def _is_first(self, parcel: Parcel) -> bool:
        if not self._waiting:
            return False
        place = self._waiting[0].place
        return (place.boot, place.number) == (parcel.boot, parcel.number)

    def _drop(self, index: int) -> None:
        lost = self._take(index)
        self.dropped_rows += lost.rows
        if lost.parcel is None:
            self._file(lost).unlink(missing_ok=True)

    def _keep_as_last(self, waiting: _Waiting) -> None:
        file = self._file(waiting)
        try:
            self._forget_last_sent()
            self._last_sent = file.rename(file.with_suffix(SENT))
        except OSError as error:  # it will be sent once more after a restart, and noticed
            self._report(f"the spool cannot be tidied: {error}")

    def _forget_last_sent(self) -> None:
        if self._last_sent:
            self._last_sent.unlink(missing_ok=True)

    def _file(self, waiting: _Waiting) -> Path:
        return self._directory / waiting.place.name(WAITING)

    def _report(self, trouble: str) -> None:
        """Say it when it changes, not each time round."""
        if trouble and trouble != self._trouble:
            _log.warning("spool in trouble", directory=str(self._directory), reason=trouble)
        self._trouble = trouble


def _try_read(file: Path) -> Parcel | None:
    """Return a parcel of an earlier start; one that a power cut tore is reported and removed."""
    try:
        return read_parcel(file)
    except (OSError, BadInput) as error:
        _log.error("a batch in the spool is torn and lost", error=str(error))
        file.unlink(missing_ok=True)
        return None


def _lock(directory: Path) -> int:
    """Keep the directory to ourselves; the kernel lets go when we die."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BadInput(f"cannot use {directory} as a spool: {error}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BadInput(f"another agent uses the spool in {directory}") from None
    return descriptor
