"""What path_shim told of the connections of this host: counted, trusted in nothing, and taken away in the end.

Each process writes a file of its own, named by its process id, and nobody but us takes it away. A file whose process
has ended goes when it has been quiet for a while. In a container process ids mean something else, so that this may be
too early or never: too early loses nothing, because what was told is counted before and the process begins a new
file; and a file that nobody touched for a day goes whatever its name is.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import structlog

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput, BadRing
from lockstep.host_paths import PathCount
from lockstep.path_file import OUTCOMES, parse_reports
from lockstep.rings.opening import ForeignFile, check_directory

_log = structlog.get_logger("paths")

_MOST_FILES = 4_096  # looked at; far more processes than a host has ranks
_MOST_BYTES = 2 << 20  # of a file; the shim stops after half of that
_MOST_REMOVED = 64  # in one look, which comes every second
_QUIET_NS = 60 * NS_PER_S  # a process that has just ended may still be told about by somebody who reads the files
_OLD_NS = 86_400 * NS_PER_S

_Mark = tuple[int, int, int, int]  # device, inode, size, last change, which its owner cannot forge


@dataclass(frozen=True, slots=True)
class _Told:
    """What one file says as of one plan."""

    mark: _Mark
    generation: int
    outcomes: Counter[str]


class PathReports:
    """Counts what the processes of this host told, also those whose files are gone by now."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder, self._proc = folder, proc
        self._told: dict[str, _Told] = {}  # by name of the file
        self._gone: Counter[str] = Counter()  # what files said that are no longer there
        self._is_distrusted = False

    def count(self, generation: int) -> PathCount:
        """Return how many of the connections that this plan or one before it named kept to it, since we began."""
        there = dict(self._look())
        for name in [name for name, told in self._told.items() if self._is_another(name, told, there)]:
            self._gone += self._told.pop(name).outcomes
        for name, mark in there.items():
            told = self._told.get(name)
            if told is None or (told.mark, told.generation) != (mark, generation):
                self._told[name] = _Told(mark, generation, _read(self._folder / name, mark, generation))
        return _sum_up(sum((told.outcomes for told in self._told.values()), self._gone), generation)

    def tidy(self, now_ns: int) -> int:
        """Take away the files that were counted and whose processes are gone; return how many."""
        over = [name for name, told in self._told.items() if self._is_over(name, now_ns - told.mark[3])]
        return sum(_remove(self._folder / name, self._told[name].mark) for name in over[:_MOST_REMOVED])

    def _is_over(self, name: str, quiet_ns: int) -> bool:
        return quiet_ns >= _OLD_NS or (quiet_ns >= _QUIET_NS and not (self._proc / name).exists())

    def _is_another(self, name: str, told: _Told, there: dict[str, _Mark]) -> bool:
        """Return whether a file is gone, or another one has its name; one too many to be looked at is neither."""
        if name in there:
            return there[name][:2] != told.mark[:2]
        return not os.path.lexists(self._folder / name)

    def _look(self) -> Iterator[tuple[str, _Mark]]:
        if not os.path.lexists(self._folder):
            return
        try:
            check_directory(self._folder)
            self._is_distrusted = False
        except BadRing as error:
            if not self._is_distrusted:
                _log.warning("directory of path reports is not read", error=str(error))
            self._is_distrusted = True
            return
        with os.scandir(self._folder) as entries:
            for entry in islice(entries, _MOST_FILES):
                if entry.name.isdecimal() and entry.name.isascii():
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.name, _mark(os.lstat(entry.path))


def _read(path: Path, mark: _Mark, generation: int) -> Counter[str]:
    """Return the outcomes in a file; none where it is not one that the shim could have written."""
    try:
        file = ForeignFile(path)
    except BadInput:
        return Counter()
    try:
        if file.inode != mark[:2] or file.size > _MOST_BYTES:
            return Counter()
        told = parse_reports(file.read_at(0, file.size).tobytes())
        return Counter(each.outcome for each in told if each.generation <= generation and each.outcome in OUTCOMES)
    except BadInput:  # it was cut meanwhile
        return Counter()
    finally:
        file.close()


def _remove(path: Path, mark: _Mark) -> bool:
    """Take away the file that was counted, if it is a plain one of which nothing has changed since."""
    with contextlib.suppress(OSError, BadInput):  # where only its owner may, it stays
        ForeignFile(path).close()
        if _mark(os.lstat(path)) == mark:
            path.unlink()
            return True
    return False


def _mark(found: os.stat_result) -> _Mark:
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


def _sum_up(outcomes: Counter[str], generation: int) -> PathCount:
    others = {name: count for name, count in sorted(outcomes.items()) if name != "enforced"}
    enforced = outcomes["enforced"]
    return PathCount(
        generation=generation, planned=enforced + sum(others.values()), enforced=enforced, reasons=others
    )
