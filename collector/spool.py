"""Parcels on disk until they have their receipts: bounded, in order, the oldest dropped first and counted.

Every parcel is a file before it is sent, so a kill of the agent loses nothing that was packed. Files are synced only
while the server is away: with a receipt within a second there is nothing to win by it, and a training host's disk has
other work. The newest file stays after its receipt: it says how far the sources were. A disk that takes nothing sends
parcels to memory, which has a bound of its own; before such a parcel is sent its checkpoints go into space reserved
for that, so that its rows, which may be acknowledged, are never read again.
"""

import os
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import structlog

from collector.checkpoint_slot import CheckpointSlot
from collector.parcel import Checkpoints, Parcel
from collector.spool_file import SENT, WAITING, Place, place_of, read_parcel, write_parcel
from lockstep.directories import lock_directory
from lockstep.errors import BadInput

_log = structlog.get_logger("spool")


@dataclass(frozen=True)
class _Filed:
    """A parcel on disk."""

    place: Place
    bytes: int
    rows: int


class Spool:
    """An outbox in a directory that no other agent uses.

    What is on disk is older than what is held in memory: a later parcel is never written before an earlier one. Its
    checkpoints would say that the other's rows are safe, and after a kill nobody would read them again.
    """

    def __init__(self, directory: Path, max_bytes: int, memory_bytes: int) -> None:
        self._directory, self._max_bytes, self._memory_bytes = directory, max_bytes, memory_bytes
        self._lock = _lock(directory)
        self._guard = threading.Lock()
        self._filed: deque[_Filed] = deque()
        self._held: deque[Parcel] = deque()  # all of this start
        self._filed_bytes = self._held_bytes = 0
        self._last_sent: Path | None = None
        self._trouble = ""
        self._slot = CheckpointSlot(directory / "checkpoint")
        self.dropped_rows = 0
        self._start, self.checkpoints = self._look_around()

    @property
    def bytes(self) -> int:
        return self._filed_bytes + self._held_bytes

    def put(self, parcel: Parcel) -> None:
        with self._guard:
            self._held.append(parcel)
            self._held_bytes += len(parcel.body)
            self._write_held()
            self._make_room()

    def first(self) -> Parcel | None:
        with self._guard:
            while self._filed:
                try:
                    return read_parcel(self._file(self._filed[0]))
                except (OSError, BadInput) as error:
                    _log.error("a batch in the spool cannot be read and is lost", error=str(error))
                    self._drop_filed()
            return self._lend_held() if self._held else None

    def remove(self, parcel: Parcel) -> None:
        with self._guard:
            if not self._is_first(parcel):
                return
            if self._filed:
                self._keep_as_last(self._take_filed())
            else:
                self._take_held()

    def refuse(self, parcel: Parcel) -> None:
        with self._guard:
            if not self._is_first(parcel):
                return
            if self._filed:
                self._drop_filed()
            else:
                self._drop_held()

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
                self._add_filed(_Filed(place, file.stat().st_size, parcel.rows))
        newest, checkpoints = max(known, key=lambda entry: entry[0], default=(Place(0, 0, ""), {}))
        return newest.start + 1, checkpoints

    def _lend_held(self) -> Parcel:
        """Return the first parcel in memory, after writing down that its rows may be acknowledged from now on."""
        parcel = self._held[0]
        try:
            self._slot.write(self._place_of(parcel), parcel.checkpoints)
        except OSError as error:
            self._report(f"after a kill some rows may be sent twice: {error}")
        return parcel

    def _write_held(self) -> None:
        """Write what is in memory, in order, as far as the disk takes it."""
        while self._held:
            parcel = self._held[0]
            place, others_wait = self._place_of(parcel), bool(self._filed)
            try:
                size = write_parcel(self._directory, place, parcel, durable=others_wait)
            except OSError as error:
                self._report(f"the spool takes nothing, batches wait in memory: {error}")
                return
            self._take_held()
            self._add_filed(_Filed(place, size, parcel.rows))
        self._report("")

    def _make_room(self) -> None:
        """Drop the oldest where there is too much, on disk or in memory; the newest always stays."""
        while self._filed_bytes > self._max_bytes and len(self._filed) + bool(self._held) > 1:
            self._drop_filed()
        while self._held_bytes > self._memory_bytes and len(self._held) > 1:
            self._drop_held()

    def _is_first(self, parcel: Parcel) -> bool:
        if self._filed:
            place = self._filed[0].place
            return (place.boot, place.number) == (parcel.boot, parcel.number)
        return bool(self._held) and self._held[0] is parcel

    def _add_filed(self, filed: _Filed) -> None:
        self._filed.append(filed)
        self._filed_bytes += filed.bytes

    def _take_filed(self) -> _Filed:
        filed = self._filed.popleft()
        self._filed_bytes -= filed.bytes
        return filed

    def _take_held(self) -> Parcel:
        parcel = self._held.popleft()
        self._held_bytes -= len(parcel.body)
        return parcel

    def _drop_filed(self) -> None:
        lost = self._take_filed()
        self.dropped_rows += lost.rows
        self._file(lost).unlink(missing_ok=True)

    def _drop_held(self) -> None:
        self.dropped_rows += self._take_held().rows

    def _keep_as_last(self, filed: _Filed) -> None:
        file = self._file(filed)
        try:
            self._forget_last_sent()
            self._last_sent = file.rename(file.with_suffix(SENT))
        except OSError as error:  # it will be sent once more after a restart, and noticed
            self._report(f"the spool cannot be tidied: {error}")

    def _forget_last_sent(self) -> None:
        if self._last_sent:
            self._last_sent.unlink(missing_ok=True)

    def _place_of(self, parcel: Parcel) -> Place:
        return Place(self._start, parcel.number, parcel.boot)

    def _file(self, filed: _Filed) -> Path:
        return self._directory / filed.place.name(WAITING)

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
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return lock_directory(directory)
    except BlockingIOError:
        raise BadInput(f"another agent uses the spool in {directory}") from None
    except OSError as error:
        raise BadInput(f"cannot use {directory} as a spool: {error}") from None
