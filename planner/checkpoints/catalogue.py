"""The catalogue of a directory: each checkpoint in it, complete or not and why. Here the planner touches files.

A job's directory is read again and again. What was verified and has not changed since (the same files of the same
lengths and times) is not verified again; what has grown, or changed a moment ago, is being written. What is complete
by names and lengths is then read back (contents.py), the newest first.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from planner.checkpoints.checkpoint import (
    Catalogue,
    Checkpoint,
    Finding,
    Folder,
    Format,
    Pointer,
    explain_pointers,
    find_pointers,
    incomplete,
    list_folder,
    name_some,
    newest_first,
)
from planner.checkpoints.contents import Contents
from planner.checkpoints.dcp import check_dcp, check_torch_dist, is_dcp, is_torch_dist
from planner.checkpoints.zero import check_universal, check_zero, is_universal, is_zero, list_parameters

_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)[-_=]?(\d{1,15})(?!\d)|^(\d{1,15})$", re.IGNORECASE)
_BEGUN = re.compile(r"global_step\d+|iter_\d{7}|step-\d+")  # how frameworks name folders that they then fill
_TEMPORARY = re.compile(r".*[._-](?:tmp|temp|part|partial|incomplete)", re.IGNORECASE)  # of files, and of folders


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
