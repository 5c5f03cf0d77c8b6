"""What lies in a folder, each file looked at once: names, bytes, times, and a sentence where it cannot be read."""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MOST_ENTRIES = 200_000  # of one folder: more is not a checkpoint, and looking at all of it takes minutes


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A plain file."""

    bytes: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder as it was at one moment. Links are followed; what is neither file nor folder is left out."""

    path: Path
    files: dict[str, FileSeen] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    problem: str | None = None  # why not all of it was seen

    def file(self, name: str) -> Path:
        """Return the path of a file in it."""
        return self.path / name


def list_folder(path: Path, most: int = MOST_ENTRIES) -> Folder:
    """Return what lies in a folder; where it cannot be read or holds too much, `problem` says so."""
    files: dict[str, FileSeen] = {}
    folders: list[tuple[bool, str]] = []
    unread: list[str] = []
    try:
        with os.scandir(path) as entries:
            for number, entry in enumerate(entries):
                if number == most:
                    return Folder(path, files, _in_order(folders), f"{path} holds more than {most} entries")
                _note(entry, files, folders, unread)
    except OSError as error:
        return Folder(path, problem=f"{path} cannot be read: {error.strerror}")
    return Folder(path, files, _in_order(folders), "; ".join(sorted(unread)[:3]) or None)


def _note(
    entry: os.DirEntry[str], files: dict[str, FileSeen], folders: list[tuple[bool, str]], unread: list[str]
) -> None:
    try:
        if entry.is_dir():
            folders.append((entry.is_symlink(), entry.name))
            return
        seen = entry.stat()
    except OSError as error:  # a link that leads nowhere or to itself, or a file that has just gone
        unread.append(f"{entry.path} cannot be read: {error.strerror}")
        return
    if stat.S_ISREG(seen.st_mode):  # opening a pipe would wait for ever
        files[entry.name] = FileSeen(seen.st_size, seen.st_mtime_ns)


def _in_order(folders: Iterable[tuple[bool, str]]) -> tuple[str, ...]:
    """Return names, links last: where a link leads to a folder beside it, that one's own name counts."""
    return tuple(name for _, name in sorted(folders))
