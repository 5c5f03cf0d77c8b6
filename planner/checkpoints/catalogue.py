"""The catalogue of a directory: each checkpoint in it, complete or not and why. Here the planner touches files.

A job's directory is read again and again. What was verified and has not changed since (the same files of the same
lengths and times) is not verified again; what has grown, or changed a moment ago, is being written. What is complete
by names and lengths is then read back, the newest first: each file once, a budget's worth at a time. A file is known
by its device, inode, length and time of change: while these stay, it is not read again. What a budget did not reach
is said, and read at the next look. Nothing is unpickled here.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from lockstep.clock import NS_PER_S, Clock, SystemClock
from lockstep.errors import BadInput
from planner.checkpoints.checkpoint import (
    Catalogue,
    Checkpoint,
    FileSeen,
    Finding,
    Folder,
    Format,
    Pieces,
    Pointer,
    explain_pointers,
    find_pointers,
    incomplete,
    list_folder,
    name_some,
    newest_first,
)
from planner.checkpoints.dcp import check_dcp, check_torch_dist, is_dcp, is_torch_dist
from planner.checkpoints.torch_file import Readable, is_safetensors, scan_safetensors, scan_zip
from planner.checkpoints.zero import check_universal, check_zero, is_universal, is_zero, list_parameters

_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)[-_=]?(\d{1,15})(?!\d)|^(\d{1,15})$", re.IGNORECASE)
_BEGUN = re.compile(r"global_step\d+|iter_\d{7}|step-\d+")  # how frameworks name folders that they then fill
_TEMPORARY = re.compile(r".*[._-](?:tmp|temp|part|partial|incomplete)", re.IGNORECASE)  # of files, and of folders


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


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a directory is read."""

    quiet_s: float = 10.0  # after the newest change: ranks that write together end within seconds of each other
    most_depth: int = 4  # such as run/checkpoints/step-100/weights
    most_folders: int = 10_000


def read_catalogue(
    top: Path,
    now_ns: int,
    *,
    job: str | None = None,
    before: Catalogue | None = None,
    contents: Contents | None = None,
    options: ReadOptions | None = None,
) -> Catalogue:
    """Return all checkpoints below a folder; with `contents` of the look before, only what changed is verified."""
    contents = contents or Contents()
    reader = _Reader(top, now_ns, before, contents, options or ReadOptions())
    for folder, kind in reader.walk():
        reader.read(folder, kind)
    checkpoints = contents.read_back(sorted(reader.found, key=newest_first))
    return Catalogue(
        job=job,
        folder=str(top),
        seen_ns=now_ns,
        checkpoints=tuple(checkpoints),
        remarks=(*reader.remarks, *explain_pointers(reader.pointers, checkpoints)),
    )


def find_format(folder: Folder) -> Format | None:
    """Return which format a folder is in, or None where it is not a checkpoint."""
    if is_universal(folder):
        return "universal"
    if is_torch_dist(folder):
        return "torch_dist"
    if is_dcp(folder):
        return "dcp"
    return "ds_zero" if is_zero(folder) else None


def find_step(path: Path, top: Path) -> int | None:
    """Return the step that a path below the top names, the innermost first."""
    for part in reversed((top.name, *path.relative_to(top).parts)):
        if named := _STEP.search(part):
            return int(named[1] or named[2])
    return None


class _Reader:
    """One reading of a directory: what was found so far, and what could not be read."""

    def __init__(
        self, top: Path, now_ns: int, before: Catalogue | None, contents: Contents, options: ReadOptions
    ) -> None:
        self.top, self.now_ns, self.contents, self.options = top, now_ns, contents, options
        self.known = {each.path: each for each in before.checkpoints} if before else {}
        self.found: list[Checkpoint] = []
        self.remarks: list[str] = []
        self.pointers: list[Pointer] = []

    def walk(self) -> Iterator[tuple[Folder, Format | None]]:
        """Yield folders and their formats, the outer first; none is entered twice, whatever links lead to it."""
        waiting, seen = [(self.top, 0)], set[tuple[int, int]]()
        for path, depth in waiting:
            folder = self._enter(path, seen)
            if folder is None:
                continue
            kind = find_format(folder)
            yield folder, kind
            if len(seen) + len(folder.folders) > self.options.most_folders:
                self.remarks.append(f"only {self.options.most_folders} folders below {self.top} were looked at")
                return
            is_begun = depth > 0 and _TEMPORARY.fullmatch(path.name)  # what is in it gets its last place later
            if depth < self.options.most_depth and kind is None and not is_begun:
                waiting.extend((path / name, depth + 1) for name in folder.folders)

    def read(self, folder: Folder, kind: Format | None) -> None:
        if kind:
            self.found.append(self._describe(folder, kind))
            return
        self.pointers.extend(find_pointers(folder))
        if folder.problem:
            self.remarks.append(folder.problem)
        if _BEGUN.fullmatch(folder.path.name) and not folder.folders:
            self.remarks.append(f"{folder.path.name} holds no file of a format that is known here")

    def _enter(self, path: Path, seen: set[tuple[int, int]]) -> Folder | None:
        try:
            about = path.stat()
        except OSError as error:
            if path == self.top:
                raise BadInput(f"{path} cannot be read: {error.strerror}") from None
            self.remarks.append(f"{path} cannot be read: {error.strerror}")
            return None
        if (about.st_dev, about.st_ino) in seen:
            return None
        seen.add((about.st_dev, about.st_ino))
        folder = list_folder(path)
        if path == self.top and folder.problem and not folder.files and not folder.folders:
            raise BadInput(folder.problem)
        return folder

    def _describe(self, folder: Folder, kind: Format) -> Checkpoint:
        inner = list_parameters(folder) if kind == "universal" else []
        files = [file for each in (folder, *inner) for file in each.files.values()]
        size, newest_ns = sum(file.bytes for file in files), max((file.changed_ns for file in files), default=0)
        if verified := self.contents.recall(str(folder.path), files):
            return verified
        before = self.known.get(str(folder.path))
        finding = self._find_writing(folder, before, size, newest_ns) or _check(folder, kind, inner)
        made = Checkpoint(
            path=str(folder.path),
            format=kind,
            step=finding.step if finding.step is not None else find_step(folder.path, self.top),
            layout=finding.layout,
            state=finding.state,
            reason=finding.reason,
            bytes=size,
            files=len(files),
            saved_ns=max(newest_ns, 0),
            moves=finding.moves,
            moves_because=finding.moves_because,
            convert_flags=finding.convert_flags,
            experts=finding.experts,
        )
        if made.state == "complete":
            self.contents.remember(made, (folder, *inner), finding)
        return made

    def _find_writing(self, folder: Folder, before: Checkpoint | None, size: int, newest_ns: int) -> Finding | None:
        """Return that a checkpoint is being written, or None: seen to grow, or changed a moment ago."""
        if before and size > before.bytes:
            return Finding("writing", f"has grown by {size - before.bytes} bytes since it was looked at before")
        quiet_s = (self.now_ns - newest_ns) / NS_PER_S
        if quiet_s < 0:
            return Finding("writing", f"its newest file is of {-quiet_s:.0f} s ahead of this host's clock")
        if quiet_s < self.options.quiet_s:
            return Finding("writing", f"its newest file changed {quiet_s:.0f} s ago")
        return None


def _check(folder: Folder, kind: Format, inner: list[Folder]) -> Finding:
    if folder.problem:
        return Finding("unverified", folder.problem)
    temporary = [name for name in (folder.path.name, *folder.files) if _TEMPORARY.fullmatch(name)]
    if temporary:
        return incomplete(f"its writer has not ended: {name_some(temporary)} has not got its last name yet")
    if kind == "universal":
        return check_universal(folder, inner)
    return {"dcp": check_dcp, "torch_dist": check_torch_dist, "ds_zero": check_zero}[kind](folder)
