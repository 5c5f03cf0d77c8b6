"""Batches on disk until they have their receipts: bounded, in order, the oldest dropped first and counted.

Every batch is a file before it is sent, so a kill of the agent loses nothing that was packed. Files are synced only
while the server is away: with a receipt within a second there is nothing to win by it, and a training host's disk has
other work. The newest file stays after its receipt: it says how far the sources were. A disk that takes nothing sends
batches to memory, which has a bound of its own; before such a batch is sent its checkpoints go into space reserved
for that, so that its rows, which may be acknowledged, are never read again.
"""

import base64
import binascii
import json
import os
import re
import threading
import zlib
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from collector.shipping import Batch, Checkpoints
from lockstep.directories import lock_directory, sync_directory
from lockstep.errors import BadInput

WAITING, SENT = ".batch", ".sent"
_NAME = re.compile(r"([0-9]{8})-([0-9a-f]{32})-([0-9]{12})\.(?:batch|sent)")


@dataclass(frozen=True, order=True)
class Position:
    """Where a batch stands: which start of the agent it is of, and its number there. No clock has a say in it."""

    start: int
    number: int
    boot: str

    def name(self, ending: str) -> str:
        return f"{self.start:08}-{self.boot}-{self.number:012}{ending}"


def position_of(file: Path) -> Position | None:
    """Return the place that a file's name tells, None when it is not one of ours."""
    match = _NAME.fullmatch(file.name)
    return Position(int(match[1]), int(match[3]), match[2]) if match else None


def write_batch(directory: Path, position: Position, batch: Batch, durable: bool) -> int:
    """Write a batch and return its size; it is there in whole or not at all, also after a kill.

    `durable`: also after a power cut.
    """
    checkpoints = {source: base64.b64encode(state).decode() for source, state in batch.checkpoints.items()}
    head = json.dumps({"rows": batch.rows, "sum": zlib.crc32(batch.body), "checkpoints": checkpoints})
    content = head.encode() + b"\n" + batch.body
    unfinished = directory / (position.name(WAITING) + ".tmp")
    try:
        with open(unfinished, "wb") as out:
            out.write(content)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        unfinished.rename(directory / position.name(WAITING))
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(directory)
    return len(content)


def read_batch(file: Path) -> Batch:
    """Return what a file holds; BadInput when that is not what was written."""
    position = position_of(file)
    try:
        head, _, body = file.read_bytes().partition(b"\n")
        fields = json.loads(head)
        rows, checksum = int(fields["rows"]), int(fields["sum"])
        checkpoints = {name: base64.b64decode(text) for name, text in fields["checkpoints"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise BadInput(f"{file}: not a batch of the spool: {error}") from None
    if position is None or checksum != zlib.crc32(body):
        raise BadInput(f"{file}: the batch is not what was written")
    return Batch(position.boot, position.number, body, rows, checkpoints)


_SLOT_BYTES = 1 << 18
_HEAD_BYTES = 16  # length and sum, as text


class CheckpointSlot:
    """A file of two slots, written in turn, so that a kill in mid-write leaves the other one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._next_slot = 0
        self._has_space = _reserve(file)

    def write(self, position: Position, checkpoints: Checkpoints) -> None:
        """Save it; OSError when it does not fit or there never was space."""
        states = {source: base64.b64encode(state).decode() for source, state in checkpoints.items()}
        body = json.dumps([position.start, position.number, position.boot, states]).encode()
        if not self._has_space or len(body) > _SLOT_BYTES - _HEAD_BYTES:
            raise OSError("no space was reserved for the state of the sources")
        content = f"{len(body):7} {zlib.crc32(body):08x}".encode() + body
        with open(self._file, "r+b", buffering=0) as out:
            out.seek(self._next_slot * _SLOT_BYTES)
            out.write(content)
        self._next_slot = 1 - self._next_slot

    def read(self) -> tuple[Position, Checkpoints] | None:
        """Return what was saved last, None when nothing was."""
        try:
            content = self._file.read_bytes()
        except OSError:
            return None
        saved = [slot for number in (0, 1) if (slot := _parse(content[number * _SLOT_BYTES :][:_SLOT_BYTES]))]
        return max(saved, key=lambda slot: slot[0], default=None)


def _reserve(file: Path) -> bool:
    """Take the space while there is some; return whether it is ours."""
    size = 2 * _SLOT_BYTES
    try:
        if not file.exists() or file.stat().st_size != size:
            file.write_bytes(bytes(size))
        with open(file, "r+b") as out:
            os.posix_fallocate(out.fileno(), 0, size)
    except OSError:
        return False
    return True


def _parse(slot: bytes) -> tuple[Position, Checkpoints] | None:
    try:
        length, checksum = int(slot[:7]), int(slot[8:_HEAD_BYTES], 16)
        body = slot[_HEAD_BYTES : _HEAD_BYTES + length]
        if zlib.crc32(body) != checksum:
            return None
        start, number, boot, states = json.loads(body)
    except ValueError:
        return None
    return Position(start, number, boot), {name: base64.b64decode(state) for name, state in states.items()}


_log = structlog.get_logger("spool")


@dataclass(frozen=True)
class _Filed:
    """A batch on disk."""

    position: Position
    bytes: int
    rows: int


class Spool:
    """A queue in a directory that no other agent uses.

    What is on disk is older than what is held in memory: a later batch is never written before an earlier one. Its
    checkpoints would say that the other's rows are safe, and after a kill nobody would read them again.
    """

    def __init__(self, directory: Path, max_bytes: int, memory_bytes: int) -> None:
        self._directory, self._max_bytes, self._memory_bytes = directory, max_bytes, memory_bytes
        self._lock = _lock(directory)
        self._guard = threading.Lock()
        self._filed: deque[_Filed] = deque()
        self._held: deque[Batch] = deque()  # all of this start
        self._filed_bytes = self._held_bytes = 0
        self._last_sent: Path | None = None
        self._trouble = ""
        self._slot = CheckpointSlot(directory / "checkpoint")
        self.dropped_rows = 0
        self._start, self.checkpoints = self._recover()

    @property
    def bytes(self) -> int:
        return self._filed_bytes + self._held_bytes

    def put(self, batch: Batch) -> None:
        with self._guard:
            self._held.append(batch)
            self._held_bytes += len(batch.body)
            self._write_held()
            self._make_room()

    def first(self) -> Batch | None:
        with self._guard:
            while self._filed:
                try:
                    return read_batch(self._file(self._filed[0]))
                except (OSError, BadInput) as error:
                    _log.error("a batch in the spool cannot be read and is lost", error=str(error))
                    self._drop_filed()
            return self._lend_held() if self._held else None

    def remove(self, batch: Batch) -> None:
        with self._guard:
            if self._is_first(batch):
                if self._filed:
                    self._keep_as_last(self._take_filed())
                else:
                    self._take_held()

    def refuse(self, batch: Batch) -> None:
        with self._guard:
            if self._is_first(batch):
                if self._filed:
                    self._drop_filed()
                else:
                    self._drop_held()

    def close(self) -> None:
        os.close(self._lock)

    def _recover(self) -> tuple[int, Checkpoints]:
        """Take over what an earlier agent left; return the number of this start, and how far the sources were."""
        for unfinished in self._directory.glob("*.tmp"):
            unfinished.unlink()
        found = sorted((position, file) for file in self._directory.iterdir() if (position := position_of(file)))
        known = [saved] if (saved := self._slot.read()) else []
        for position, file in found:
            batch = _try_read(file)
            if batch:
                known.append((position, batch.checkpoints))
            if file.suffix == SENT:
                self._forget_last_sent()
                self._last_sent = file
            elif batch:
                self._add_filed(_Filed(position, file.stat().st_size, batch.rows))
            else:
                self.dropped_rows += _torn_rows(file)
            if batch is None:
                file.unlink(missing_ok=True)
        newest, checkpoints = max(known, key=lambda entry: entry[0], default=(Position(0, 0, ""), {}))
        return newest.start + 1, checkpoints

    def _lend_held(self) -> Batch:
        """Return the first batch in memory, after writing down that its rows may be acknowledged from now on."""
        batch = self._held[0]
        try:
            self._slot.write(self._position_of(batch), batch.checkpoints)
        except OSError as error:
            self._report(f"after a kill some rows may be sent twice: {error}")
        return batch

    def _write_held(self) -> None:
        """Write what is in memory, in order, as far as the disk takes it."""
        while self._held:
            batch = self._held[0]
            position, others_wait = self._position_of(batch), bool(self._filed)
            try:
                size = write_batch(self._directory, position, batch, durable=others_wait)
            except OSError as error:
                self._report(f"the spool takes nothing, batches wait in memory: {error}")
                return
            self._take_held()
            self._add_filed(_Filed(position, size, batch.rows))
        self._report("")

    def _make_room(self) -> None:
        """Drop the oldest where there is too much, on disk or in memory; the newest always stays."""
        while self._filed_bytes > self._max_bytes and len(self._filed) + bool(self._held) > 1:
            self._drop_filed()
        while self._held_bytes > self._memory_bytes and len(self._held) > 1:
            self._drop_held()

    def _is_first(self, batch: Batch) -> bool:
        if self._filed:
            position = self._filed[0].position
            return (position.boot, position.number) == (batch.boot, batch.number)
        return bool(self._held) and self._held[0] is batch

    def _add_filed(self, filed: _Filed) -> None:
        self._filed.append(filed)
        self._filed_bytes += filed.bytes

    def _take_filed(self) -> _Filed:
        filed = self._filed.popleft()
        self._filed_bytes -= filed.bytes
        return filed

    def _take_held(self) -> Batch:
        batch = self._held.popleft()
        self._held_bytes -= len(batch.body)
        return batch

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

    def _position_of(self, batch: Batch) -> Position:
        return Position(self._start, batch.number, batch.boot)

    def _file(self, filed: _Filed) -> Path:
        return self._directory / filed.position.name(WAITING)

    def _report(self, trouble: str) -> None:
        """Say it when it changes, not each time round."""
        if trouble and trouble != self._trouble:
            _log.warning("spool in trouble", directory=str(self._directory), reason=trouble)
        self._trouble = trouble


def _try_read(file: Path) -> Batch | None:
    """Return a batch of an earlier start; one that a power cut tore is reported."""
    try:
        return read_batch(file)
    except (OSError, BadInput) as error:
        _log.error("a batch in the spool is torn and lost", error=str(error))
        return None


def _torn_rows(file: Path) -> int:
    """Return how many rows are lost with a file, as far as it still says so; at least its heartbeat."""
    with suppress(OSError), file.open("rb") as torn:
        found = re.match(rb'{"rows": (\d{1,9}),', torn.read(64))
        return max(int(found[1]), 1) if found else 1
    return 1


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return lock_directory(directory)
    except BlockingIOError:
        raise BadInput(f"another agent uses the spool in {directory}") from None
    except OSError as error:
        raise BadInput(f"cannot use {directory} as a spool: {error}") from None
