"""Can the files of a checkpoint be read back? Each is read once, a budget's worth at a time, and remembered.

A file is known by its device, inode, length and time of change: while these stay, it is not read again. What a budget
did not reach is said, and read at the next look. Nothing is unpickled here.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from lockstep.clock import NS_PER_S, Clock, SystemClock
from lockstep.errors import BadInput
from planner.checkpoints.checkpoint import Checkpoint, FileSeen, Finding, Folder, Pieces
from planner.checkpoints.torch_file import Readable, is_safetensors, scan_safetensors, scan_zip


class _File:
    """A file that is open only while it is read: a scan may wait, and a file that was deleted gives its room back."""

    def __init__(self, path: Path, pieces: Pieces) -> None:
        self.path, self.pieces = path, pieces
        self._open: BinaryIO | None = None

    def seek(self, offset: int) -> int:
        self._open = self._open or self.path.open("rb")
        return self._open.seek(offset)

    def read(self, length: int) -> bytes:
        return self._open.read(length) if self._open else b""

    def close(self) -> None:
        if self._open:
            self._open.close()
        self._open = None


@dataclass(slots=True)
class _Scan:
    """How far a file was read back."""

    file: _File
    steps: Iterator[int]
    read: int = 0
    is_over: bool = False
    damage: str | None = None


class Budget:
    """How much may be read back in one look, or in all looks of some seconds where several directories share it."""

    def __init__(
        self, most_bytes: int = 1 << 30, most_s: float = 1.0, every_s: float = 0.0, clock: Clock | None = None
    ) -> None:
        self._most = most_bytes, int(most_s * NS_PER_S)  # of a planner's round
        self._every_ns, self._clock = int(every_s * NS_PER_S), clock or SystemClock()
        self._filled_ns: int | None = None
        self._bytes = self._left_ns = 0

    def fill(self) -> None:
        """Begin anew, unless that was a moment ago."""
        now_ns = self._clock.monotonic_ns()
        if self._filled_ns is None or now_ns - self._filled_ns >= self._every_ns:
            self._filled_ns, (self._bytes, self._left_ns) = now_ns, self._most

    def run(self, scan: _Scan) -> None:
        """Take a scan as far as the budget goes."""
        begun_ns = self._clock.monotonic_ns()
        try:
            while not scan.is_over and self._bytes > 0 and self._clock.monotonic_ns() - begun_ns < self._left_ns:
                step = next(scan.steps, None)
                scan.is_over = step is None
                scan.read += step or 0
                self._bytes -= step or 0
        except BadInput as damage:
            scan.is_over, scan.damage = True, str(damage)
        finally:
            self._left_ns -= self._clock.monotonic_ns() - begun_ns
            scan.file.close()


@dataclass(frozen=True, slots=True)
class _Verified:
    """A checkpoint that was found complete, and the files that it had then."""

    files: frozenset[FileSeen]
    checkpoint: Checkpoint
    holds_tensors: dict[FileSeen, _File]


@dataclass(slots=True)
class Contents:
    """Reads what complete checkpoints hold; one object serves all looks at a directory."""

    budget: Budget = field(default_factory=Budget)
    _verified: dict[str, _Verified] = field(default_factory=dict)
    _scans: dict[FileSeen, _Scan] = field(default_factory=dict)

    def recall(self, path: str, files: Collection[FileSeen]) -> Checkpoint | None:
        """Return a checkpoint as it was found complete, or None where a file of it has changed since."""
        known = self._verified.get(path)
        return known.checkpoint if known and known.files == frozenset(files) else None

    def remember(self, made: Checkpoint, folders: Iterable[Folder], found: Finding) -> None:
        """Remember a checkpoint that was found complete, so that its files are read back."""
        files = {seen: (each, name) for each in folders for name, seen in each.files.items()}
        tensors = {
            seen: _File(folder.file(name), found.pieces.get(name, ()))
            for seen, (folder, name) in files.items()
            if name in found.pieces or name.endswith((".pt", ".safetensors"))
        }
        self._verified[made.path] = _Verified(frozenset(files), made, tensors)

    def read_back(self, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
        """Return checkpoints in their order, each complete one with how much of it was read back by now."""
        self.budget.fill()
        read = [self._read_one(each) if each.state == "complete" else each for each in checkpoints]
        held = {seen for each in read if each.path in self._verified for seen in self._verified[each.path].files}
        self._verified = {each.path: self._verified[each.path] for each in read if each.path in self._verified}
        self._scans = {seen: scan for seen, scan in self._scans.items() if seen in held}
        return read

    def _read_one(self, checkpoint: Checkpoint) -> Checkpoint:
        unread = 0
        for seen, file in self._verified[checkpoint.path].holds_tensors.items():
            scan = self._scans.setdefault(seen, _Scan(file, _scan(file, seen.bytes)))
            try:
                self.budget.run(scan)
            except OSError as error:  # gone by now, or a disk that fails: it is tried again
                del self._scans[seen]
                return _changed(checkpoint, "unverified", f"{file.path.name} cannot be read: {error.strerror}")
            if scan.damage and _has_changed(file.path, seen):
                return _changed(checkpoint, "writing", f"{file.path.name} has changed while it was read back")
            if scan.damage:
                return _changed(checkpoint, "unreadable", f"{file.path.name} {scan.damage}")
            unread += 0 if scan.is_over else max(seen.bytes - scan.read, 1)
        message = f"{unread / 1e9:.3g} GB of it are not read back yet" if unread else "its records were read back"
        return _changed(checkpoint, "complete", f"{checkpoint.reason}; {message}")


def _scan(file: _File, size: int) -> Iterator[int]:
    """Read a file back and yield bytes as they are read, or raise BadInput."""
    if file.path.suffix == ".safetensors" or is_safetensors(file):
        yield from scan_safetensors(file, size)
    elif file.pieces:
        for offset, length in zip(file.pieces[::2], file.pieces[1::2], strict=True):
            if length:
                yield from scan_zip(file, offset, length)
    elif _is_zip(file):  # whatever else a job calls .pt is its own matter; what must be a zip was looked at before
        yield from scan_zip(file, 0, size)


def _is_zip(file: Readable) -> bool:
    file.seek(0)
    return file.read(2) == b"PK"


def _changed(checkpoint: Checkpoint, state: str, reason: str) -> Checkpoint:
    return checkpoint.model_copy(update={"state": state, "reason": reason})


def _has_changed(path: Path, seen: FileSeen) -> bool:
    try:
        return FileSeen.of(path.stat()) != seen
    except OSError:
        return True
