"""The path plan on its way to the programs of a host: fetched, written where path_shim reads it, and answered.

While the server is away, or has nothing new, all stays as it is: the last plan is at worst a choice by chance. What
the server told is kept beside the file, so that an agent that starts meanwhile knows the paths, too; and so are the
ports of queue pairs, for net plugins that care (lockstep/host_paths.py).
"""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import httpx
import structlog
from pydantic import ValidationError

from collector.kernel.foreign_file import ForeignFile, check_directory
from lockstep.clock import NS_PER_S, Clock
from lockstep.config import trusted
from lockstep.errors import BadInput, BadRing, LeaseLost, LockstepError
from lockstep.host_paths import (
    OUTCOMES,
    HostPaths,
    PathChoice,
    PathCount,
    parse_reports,
    read_plan,
    write_plan,
    write_queue_pairs,
)

_MOST_FILES = 4_096  # looked at; far more processes than a host has ranks
_MOST_BYTES = 2 << 20  # of a file; the shim stops after half of that
_MOST_REMOVED = 64  # in one look, which comes every second
_QUIET_NS = 60 * NS_PER_S  # a process that has just ended may still be told about by somebody who reads the files
_OLD_NS = 86_400 * NS_PER_S

_Mark = tuple[int, int, int, int]  # device, inode, size, last change, which its owner cannot forge


class _Reported(NamedTuple):
    """What one file says as of one plan."""

    mark: _Mark
    generation: int
    outcomes: Counter[str]


class PathReports:
    """Counts what the processes of this host told, also those whose files are gone by now."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder, self._proc = folder, proc
        self._reported: dict[str, _Reported] = {}  # by name of the file
        self._gone: Counter[str] = Counter()  # what files said that are no longer there
        self._is_distrusted = False

    def count(self, generation: int) -> PathCount:
        """Return how many of the connections that this plan or one before it named kept to it, since we began."""
        there = dict(self._list_files())
        for name in [name for name, reported in self._reported.items() if self._is_another(name, reported, there)]:
            self._gone += self._reported.pop(name).outcomes
        for name, mark in there.items():
            reported = self._reported.get(name)
            if reported is None or reported[:2] != (mark, generation):
                self._reported[name] = _Reported(mark, generation, _read(self._folder / name, mark, generation))
        outcomes = sum((reported.outcomes for reported in self._reported.values()), self._gone)
        others = {name: count for name, count in sorted(outcomes.items()) if name != "enforced"}
        enforced = outcomes["enforced"]
        planned = enforced + sum(others.values())
        return PathCount(generation=generation, planned=planned, enforced=enforced, reasons=others)

    def tidy(self, now_ns: int) -> int:
        """Take away the files that were counted and whose processes are gone; return how many."""
        over = [name for name, reported in self._reported.items() if self._is_over(name, now_ns - reported.mark[3])]
        return sum(_remove(self._folder / name, self._reported[name].mark) for name in over[:_MOST_REMOVED])

    def _is_over(self, name: str, quiet_ns: int) -> bool:
        return quiet_ns >= _OLD_NS or (quiet_ns >= _QUIET_NS and not (self._proc / name).exists())

    def _is_another(self, name: str, reported: _Reported, there: dict[str, _Mark]) -> bool:
        """Return whether a file is gone, or another one has its name; one too many to be looked at is neither."""
        if name in there:
            return there[name][:2] != reported.mark[:2]
        return not os.path.lexists(self._folder / name)

    def _list_files(self) -> Iterator[tuple[str, _Mark]]:
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
        reported = parse_reports(file.read_at(0, file.size).tobytes())
        return Counter(
            each.outcome for each in reported if each.generation <= generation and each.outcome in OUTCOMES
        )
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


_log = structlog.get_logger("paths")

_TIMEOUT_S = 5.0
POLL_S = 1.0  # a link that fails should be left within seconds; an unchanged plan costs an empty answer


class PathFollower:
    """Keeps the plan file of one host up to date."""

    def __init__(self, client: httpx.Client, host: str, file: Path, reports: Path, clock: Clock) -> None:
        """`client` knows the server and this host's token."""
        self._client, self._clock = client, clock
        self._path = f"/api/v1/paths/hosts/{host}"
        self._file, self._kept, self._reports = file, file.with_name(f"{file.name}.json"), PathReports(reports)
        self._held: HostPaths | None = None
        with contextlib.suppress(OSError, BadInput):  # nothing was kept by an earlier agent, or nothing of use
            self._held = _parse(self._kept.read_bytes())
        self._reported: PathCount | None = None
        self.trouble: str | None = None  # why the plan cannot be followed at the moment

    @property
    def choices(self) -> Sequence[PathChoice]:
        return self._held.choices if self._held and self._held.is_enforceable else ()

    def follow(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.follow_once()
            self._clock.wait(stop, POLL_S)

    def follow_once(self) -> None:
        """Fetch the plan if there is a new one, and tell how the programs of this host keep to it."""
        try:
            self._fetch()
            self._report()
            self._note(None)
        except (httpx.HTTPError, LockstepError, OSError) as error:
            self._note(str(error) or type(error).__name__)

    def _fetch(self) -> None:
        headers = {"If-None-Match": f'"{self._held.generation}"'} if self._held else {}
        answer = self._client.get(self._path, headers=headers)
        if answer.status_code in (304, 404):  # nothing new, or no plan has named this host yet
            return
        answer.raise_for_status()
        self._take(_parse(answer.content))

    def _take(self, reported: HostPaths) -> None:
        """Put a plan in force; its paths first, because whoever reads the new file asks for them at once."""
        before, self._held = self._held, reported
        try:
            write_plan(self._file, reported.as_file())
            write_queue_pairs(self._file.with_name(f"{self._file.name}.queue-pairs"), reported)
            self._kept.write_text(reported.model_dump_json(), encoding="utf-8")
        except LeaseLost as error:  # an older planner's word, or a server restored from a backup
            self._held = before
            _log.warning("path plan is older than the one in force, and left", reason=str(error))
        except (LockstepError, OSError):
            self._held = before  # so that it is fetched again
            raise

    def _report(self) -> None:
        try:
            plan = read_plan(self._file)
        except BadInput:
            return
        if plan is None:
            return
        count = self._reports.count(plan.generation)
        self._reports.tidy(self._clock.now_ns())
        if count != self._reported:
            self._client.post(f"{self._path}/count", json=count.model_dump()).raise_for_status()
            self._reported = count

    def _note(self, trouble: str | None) -> None:
        if trouble and not self.trouble:
            _log.warning("path plan cannot be followed, the last one stays", reason=trouble)
        self.trouble = trouble


def make_client(server: str, token: str, ca_file: Path | None = None) -> httpx.Client:
    """Return a client for the server, which this host's token opens."""
    if not server.startswith(("http://", "https://")):
        raise BadInput(f"{server!r} is not the address of a server; expected http(s)://host:port")
    context = trusted(ca_file, "collector.ca_file") if server.startswith("https:") else False
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=server, headers=headers, timeout=_TIMEOUT_S, verify=context)


def _parse(content: bytes) -> HostPaths:
    try:
        return HostPaths.model_validate_json(content)
    except ValidationError as error:
        raise BadInput(f"the server's path plan makes no sense: {error.errors()[0]['msg']}") from None
