"""Opens files that belong to somebody else, and reads them without trusting them.

Whoever owns a ring file may truncate, replace or rewrite it at any moment, and the reader is often root. So nothing
is mapped (a truncated mapping kills the reader), nothing is followed, and every failure is a BadRing.
"""

import fcntl
import os
import stat
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import BadRing
from lockstep.wire import text_of

MAX_FILE_BYTES = 1 << 30  # the plugin makes 64 MiB at most
_FLOCK = struct.Struct("hhqqi0q")  # struct flock of 64-bit Linux: type, whence, start, length, pid


def check_directory(path: Path) -> None:
    """Raise BadRing unless nobody but root and us can replace what others have put into this directory."""
    name = printable(path)
    try:
        found = os.lstat(path)
    except OSError as error:
        raise BadRing(f"cannot be looked at: {error.strerror}", file=name) from None
    if problem := directory_problem(found):
        raise BadRing(problem, file=name)


def directory_problem(found: os.stat_result, any_owner: bool = False) -> str | None:
    """Return why a directory cannot be trusted, or None; with `any_owner` it may belong to anybody."""
    if not stat.S_ISDIR(found.st_mode):
        return "is no directory (a link to one does not count)"
    if not any_owner and found.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {found.st_uid}, neither to root nor to us"
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        return f"others may write into it and it is not sticky (mode {found.st_mode & 0o7777:o})"
    return None


class ForeignFile:
    """An open regular file of somebody else's; `uid` is its owner as the kernel says."""

    def __init__(self, path: Path, access: int = os.O_RDONLY, shown: Path | None = None) -> None:
        """`shown` is how messages name it, where `path` leads through a descriptor of ours."""
        self.path, self.name = path, printable(shown or path)
        self._descriptor = -1
        try:
            # Without O_NONBLOCK a named pipe would keep us here until somebody writes into it.
            self._descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            found = os.fstat(self._descriptor)
        except (OSError, ValueError) as error:
            self.close()
            raise self.bad(f"cannot be opened: {getattr(error, 'strerror', error)}") from None
        self.uid, self.size = found.st_uid, found.st_size
        self.inode = (found.st_dev, found.st_ino)
        if problem := _problem_of(found):
            self.close()
            raise self.bad(problem)

    def bad(self, problem: str) -> BadRing:
        """Return the exception that says so of this file."""
        return BadRing(problem, file=self.name)

    def read_at(self, offset: int, size: int) -> NDArray[np.uint8]:
        """Return exactly these bytes; the caller has compared `size` with a limit."""
        buffer = np.empty(size, np.uint8)
        done = 0
        while done < size:
            try:
                got = os.preadv(self._descriptor, [buffer.data[done:]], offset + done)
            except OSError as error:
                raise self.bad(f"cannot be read: {error.strerror}") from None
            if got == 0:
                raise self.bad(f"ends at byte {offset + done}, before {offset + size}: it was cut while being read")
            done += got
        return buffer

    def write_at(self, offset: int, content: bytes) -> None:
        """Write these bytes into space that the file already has."""
        try:
            if os.fstat(self._descriptor).st_size < offset + len(content):
                raise self.bad("is shorter than it was: it was cut")
            os.pwrite(self._descriptor, content, offset)
        except OSError as error:
            raise self.bad(f"cannot be written: {error.strerror}") from None

    def lock_owner(self) -> int | None:
        """Return who holds a lock on the file; 0: a process that cannot be seen from here, None: nobody."""
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            answer = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, question))
        except (OSError, ValueError) as error:
            raise self.bad(f"cannot be asked for its lock: {getattr(error, 'strerror', error)}") from None
        return None if answer[0] == fcntl.F_UNLCK else max(answer[4], 0)

    def close(self) -> None:
        """Close the file; what is read afterwards is a BadRing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def printable(path: Path) -> str:
    """Return a path as it may stand in a message: whoever named the file may have chosen a hostile name."""
    return text_of(os.fsencode(path))


def _problem_of(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    if found.st_nlink != 1:
        return f"has {found.st_nlink} names: somebody may have linked a file that is not theirs"
    if found.st_mode & 0o022:
        return f"can be written by others than its owner (mode {found.st_mode & 0o7777:o})"
    if found.st_size > MAX_FILE_BYTES:
        return f"has {found.st_size} bytes, more than {MAX_FILE_BYTES}"
    return None
