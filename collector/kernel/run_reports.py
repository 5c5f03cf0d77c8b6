"""Reports that `lockstep run` left beside the ring files: each is read once, trusted in nothing, and taken away."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import structlog

from collector.kernel.foreign_file import ForeignFile, check_directory
from lockstep.errors import BadInput, BadRing
from lockstep.supervision import REPORT_DIRECTORIES, REPORT_LIMIT_BYTES, RunReport, decode_report

_log = structlog.get_logger("processes")

_MOST_NAMES = 4_096  # looked at in one directory; ring files and reports of far more ranks than a host has
_MOST_REPORTS = 64  # in one read; the others wait for the next, so that a flood cannot fill a batch

Inode = tuple[int, int, int]  # device, number, and when it last changed: file systems use a number again


@dataclass(frozen=True)
class FoundReport:
    """A report, and who wrote it as the kernel says."""

    report: RunReport
    uid: int


class RunReports:
    """Reads what is new in the directories; what is no report stays where it is and is told once."""

    def __init__(self, root: Path, directories: Sequence[Path] = REPORT_DIRECTORIES) -> None:
        self._directories = [root / directory.relative_to("/") for directory in directories]
        self._distrusted: set[Path] = set()
        self._done: set[Inode] = set()  # still there, and not to be read again
        self._refused: list[str] = []  # why, in this read

    def read(self) -> list[FoundReport]:
        """Return the new reports; a file is taken away as soon as it was read."""
        listed = [file for directory in self._directories for file in self._list(directory)]
        self._done &= {inode for _, inode in listed}
        fresh = ((path, inode) for path, inode in listed if inode not in self._done)
        self._refused = []
        reports = list(islice((found for path, inode in fresh if (found := self._take(path, inode))), _MOST_REPORTS))
        if self._refused:  # one line, however many files somebody has put there
            _log.warning("files are no run reports and stay", files=len(self._refused), first=self._refused[0])
        return reports

    def _list(self, directory: Path) -> list[tuple[Path, Inode]]:
        if not os.path.lexists(directory):
            return []
        try:
            check_directory(directory)
            self._distrusted.discard(directory)
            return list(islice(_candidates(directory), _MOST_NAMES))
        except (BadRing, OSError) as error:
            if directory not in self._distrusted:
                _log.warning("directory of run reports is not read", error=str(error))
            self._distrusted.add(directory)
            return []

    def _take(self, path: Path, inode: Inode) -> FoundReport | None:
        self._done.add(inode)
        try:
            found = _read(path, inode)
        except BadInput as error:
            self._refused.append(str(error))
            return None
        _remove(path, inode)
        return found


def _candidates(directory: Path) -> Iterator[tuple[Path, Inode]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("run-") and entry.name.endswith(".json"):
                with contextlib.suppress(FileNotFoundError):  # its owner has just taken it back
                    found = os.lstat(entry.path)
                    yield Path(entry.path), _inode(found)


def _read(path: Path, inode: Inode) -> FoundReport:
    file = ForeignFile(path)
    try:
        if file.inode != inode[:2]:
            raise file.bad("was replaced while it was looked at")
        if file.size > REPORT_LIMIT_BYTES:
            raise file.bad(f"has {file.size} bytes, and a report {REPORT_LIMIT_BYTES} at most")
        return FoundReport(decode_report(file.read_at(0, file.size).tobytes()), file.uid)
    except BadRing:
        raise
    except BadInput as error:
        raise file.bad(str(error)) from None
    finally:
        file.close()


def _remove(path: Path, inode: Inode) -> None:
    """Take away the file that was read and no other; where only its owner may, it stays and is not read again."""
    try:
        if _inode(os.lstat(path)) == inode:
            path.unlink()
    except OSError as error:
        _log.info("run report was read and cannot be removed", file=path.name, error=error.strerror)


def _inode(found: os.stat_result) -> Inode:
    return found.st_dev, found.st_ino, found.st_ctime_ns
