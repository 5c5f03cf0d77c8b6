"""NCCL's log files of other people's processes: where one lies, how it is opened safely, and what is new in it.

A file is looked for where the process itself would find it, below /proc/PID/root; a link leads to another place below
that root and never out of it. Only a regular file that belongs to the user of the process is read, so that naming a
file is not a way to have it read.
"""

import os
import stat
from contextlib import ExitStack
from pathlib import Path

from collector.nccl_log.reading import LINE_BYTES
from lockstep.errors import BadInput

READ_BYTES = 1 << 20  # of one file at a time; a log of NCCL has some ten KB a communicator
_MOST_STEPS = 128  # directories and links on the way to a file; each holds a descriptor until it is found


def expand_name(pattern: str, hostname: str, pid: int) -> str:
    """Return the name that NCCL makes of NCCL_DEBUG_FILE.

    >>> expand_name("/tmp/%h.%p.100%%.%x", "n1.cluster", 42)
    '/tmp/n1.42.100%.%x'
    """
    values = {"h": hostname.partition(".")[0], "p": str(pid), "%": "%"}
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        letter, following = pattern[at], pattern[at + 1 : at + 2]
        is_code = letter == "%" and following in values and bool(following)
        parts.append(values[following] if is_code else letter)
        at += 2 if is_code else 1
    return "".join(parts)


class LogTail:
    """Reads a file from where it last stopped; begins anew when the file was replaced or cut."""

    def __init__(self) -> None:
        self.inode: tuple[int, int] | None = None
        self.offset = 0  # behind the last whole line
        self._passes_over = False  # the rest of a line that is too long to be one

    def read(self, descriptor: int, limit: int = READ_BYTES) -> list[bytes]:
        """Return the whole lines that are new, of `limit` bytes at most; OSError when it cannot be read."""
        found = os.fstat(descriptor)
        inode = (found.st_dev, found.st_ino)
        if inode != self.inode or found.st_size < self.offset:
            self.inode, self.offset, self._passes_over = inode, 0, False
        return self._whole_lines(os.pread(descriptor, limit, self.offset))

    def _whole_lines(self, chunk: bytes) -> list[bytes]:
        end = chunk.rfind(b"\n") + 1
        lines = chunk[:end].splitlines()
        if self._passes_over and end:
            lines, self._passes_over = lines[1:], False
        if len(chunk) - end > LINE_BYTES:  # whoever writes this will not end it soon, and it is not NCCL
            end, self._passes_over = len(chunk), True
        self.offset += end
        return lines


def open_log(start: Path, root: Path, name: str, uid: int) -> int:
    """Return a descriptor of the file that a process calls `name`.

    `root` is /proc/PID/root; a name that does not begin with a slash counts from `start`, which is /proc/PID/cwd.
    Raises FileNotFoundError and other OSErrors, and BadInput where it is no regular file of the user `uid`.
    """
    with ExitStack() as opened:
        place = _find_below(opened, root if name.startswith("/") else start, root, name)
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode):
            raise BadInput("is no regular file")
        if found.st_uid != uid:
            raise BadInput(f"belongs to uid {found.st_uid}, and its process to uid {uid}")
        # Only now is it opened for reading: a device or a pipe would notice.
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def _find_below(opened: ExitStack, start: Path, root: Path, name: str) -> int:
    """Return a descriptor that only names the file; a link on the way is read by us and leads on below `root`."""
    steps = _steps_of(name)
    here = _name(opened, start, os.O_DIRECTORY)
    for _ in range(_MOST_STEPS):
        if not steps:
            return here
        there = _name(opened, steps[0], os.O_NOFOLLOW, here)
        if not stat.S_ISLNK(os.fstat(there).st_mode):
            here, steps = there, steps[1:]
            continue
        target = os.readlink("", dir_fd=there)
        here = _name(opened, root, os.O_DIRECTORY) if target.startswith("/") else here
        steps = _steps_of(target) + steps[1:]
    raise BadInput(f"is more than {_MOST_STEPS} directories and links away")


def _name(opened: ExitStack, path: Path | str, flags: int, directory: int | None = None) -> int:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | flags, dir_fd=directory)
    opened.callback(os.close, descriptor)
    return descriptor


def _steps_of(name: str) -> list[str]:
    steps = [step for step in name.split("/") if step not in ("", ".")]
    if ".." in steps or "\0" in name:
        raise BadInput("has a name that goes up again, which is not followed")
    return steps
