"""Where ring files are: the usual directories of the host, and those inside containers.

A container is looked into through /proc/PID/root of a process that holds a ring file there. Nothing on the way is
followed: a link inside of a container would lead to a place on the host. A directory stays open while it is of use,
also when the process through which it was found has ended.

Whose the directory may be: the host's own must be root's, or ours. Those in shared memory are made by the plugin
itself, and those in containers belong to the container, perhaps to an unprivileged user namespace, so there any owner
will do, as long as others cannot rename what is not theirs. That is no loss: whose a ring is comes from the lock and
from the kernel, and whoever owns the directory can only make us miss a file.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from collector.kernel.foreign_file import directory_problem, printable
from collector.kernel.process import RingHolders, read_link
from lockstep.clock import NS_PER_S

Inode = tuple[int, int]  # device and number

SCAN_NS = 5 * NS_PER_S  # how often directories are looked for; the files in those that are known come every time
_MOST_FILES = 4_096  # looked at in one directory
_MOST_DIRECTORIES = 256
_SHARED_MEMORY = Path("dev/shm")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class FoundFile:
    """A file that may be a ring."""

    directory: "RingDirectory"
    name: str
    inode: Inode

    @property
    def path(self) -> Path:
        """The way to it that nobody can bend meanwhile."""
        return Path(f"/proc/self/fd/{self.directory.descriptor}/{self.name}")

    @property
    def shown(self) -> Path:
        """As people know it."""
        return self.directory.path / self.name

    def remove(self) -> None:
        """Take the file away, if the name still means the same one."""
        with contextlib.suppress(OSError):
            found = os.stat(self.name, dir_fd=self.directory.descriptor, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == self.inode:
                os.unlink(self.name, dir_fd=self.directory.descriptor)


class RingDirectory:
    """An open directory."""

    def __init__(self, path: Path, descriptor: int, is_contained: bool) -> None:
        self.path, self.descriptor, self.is_contained = path, descriptor, is_contained
        found = os.fstat(descriptor)
        self.inode: Inode = (found.st_dev, found.st_ino)

    def files(self) -> Iterator[FoundFile]:
        """Return what is named like a ring file; without looking at the files themselves."""
        with contextlib.suppress(OSError), os.scandir(self.descriptor) as entries:
            for entry in islice(entries, _MOST_FILES):
                if entry.name.endswith(".ring"):
                    yield FoundFile(self, entry.name, (self.inode[0], entry.inode()))

    def close(self) -> None:
        os.close(self.descriptor)


class RingDirectories:
    """Finds the directories again and again; jobs and containers come and go."""

    def __init__(self, root: Path, directories: Sequence[Path]) -> None:
        self._root, self._proc = root, root / "proc"
        self._relative = [directory.relative_to("/") for directory in directories]
        self._holders = RingHolders(root, directories)
        self._open: dict[Inode, RingDirectory] = {}
        self._scanned_ns: int | None = None
        self._distrusted: dict[Path, str] = {}
        self.complaints: list[str] = []  # directories that turned out not to be trusted in the last look

    def scan(self, now_ns: int, in_use: set[Inode]) -> list[RingDirectory]:
        """Return the directories there are; those of `in_use` stay open whatever happens."""
        self.complaints = []
        if self._scanned_ns is None or not 0 <= now_ns - self._scanned_ns < SCAN_NS:
            self._scanned_ns = now_ns
            self._scan(in_use)
        return list(self._open.values())

    def close(self) -> None:
        for directory in self._open.values():
            directory.close()
        self._open = {}

    def _scan(self, in_use: set[Inode]) -> None:
        seen: set[Inode] = set()
        for base, is_contained in [(self._root, False), *((base, True) for base in self._containers())]:
            for relative in self._relative:
                if directory := self._find(base, relative, is_contained):
                    seen.add(directory.inode)
        for inode in self._open.keys() - seen - in_use:
            self._open.pop(inode).close()

    def _containers(self) -> Iterator[Path]:
        """Return the root of a process per mount namespace that is not ours and in which a ring is held."""
        ours = read_link(self._proc / "self/ns/mnt")
        namespaces = {read_link(self._proc / f"{pid}/ns/mnt"): pid for pid in sorted(self._holders(), reverse=True)}
        for namespace, pid in namespaces.items():
            if namespace and namespace != ours:
                yield self._proc / str(pid) / "root"

    def _find(self, base: Path, relative: Path, is_contained: bool) -> RingDirectory | None:
        path = base / relative
        try:
            descriptor = _open_below(base, relative)
        except OSError:  # it is not there, a link on the way, or not for us
            return None
        found = RingDirectory(path, descriptor, is_contained)
        any_owner = is_contained or relative.is_relative_to(_SHARED_MEMORY)
        problem = directory_problem(os.fstat(descriptor), any_owner)
        self._note(path, problem)
        if problem or found.inode in self._open or len(self._open) >= _MOST_DIRECTORIES:
            found.close()
            return None if problem else self._open.get(found.inode)
        self._open[found.inode] = found
        return found

    def _note(self, path: Path, problem: str | None) -> None:
        """Complain when it changes, not each time round."""
        if problem and self._distrusted.get(path) != problem:
            self.complaints.append(f"{printable(path)}: {problem}")
        if problem and len(self._distrusted) < _MOST_DIRECTORIES:
            self._distrusted[path] = problem
        elif not problem:
            self._distrusted.pop(path, None)


def _open_below(base: Path, relative: Path) -> int:
    descriptor = os.open(base, _FLAGS)
    for part in relative.parts:
        above = descriptor
        try:
            descriptor = os.open(part, _FLAGS | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
    return descriptor
