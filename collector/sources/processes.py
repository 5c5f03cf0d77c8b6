"""The ranks' processes: stopped, stuck in the kernel, ended and how; and what `lockstep run` tells of its command."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import structlog

from collector.kernel.foreign_file import ForeignFile, check_directory
from collector.kernel.process import (
    EndTimes,
    Exit,
    ProcConnector,
    ProcessStat,
    RingHolders,
    describe_end,
    read_membership,
    read_stat,
    read_wait_channel,
)
from collector.sources.source import ChangeLog, EventReporter, PlainSource, Reading, filled_tables_of
from collector.supervision import REPORT_DIRECTORIES, REPORT_LIMIT_BYTES, Membership, RunReport, decode_report
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput, BadRing, LockstepError, NotPresent
from lockstep.records import Event
from lockstep.topology import host_name

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
    """Reads what `lockstep run` left beside the ring files, and trusts none of it; what is no report stays there."""

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
            found = _read_report(path, inode)
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


def _read_report(path: Path, inode: Inode) -> FoundReport:
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


STUCK_READS = 5  # seconds in a row; a disk that is only busy lets a process go in between
_MOST_RANKS = 1_024  # watched on one host, whatever claims to be one
_OLDEST_NS = 3_600 * NS_PER_S  # of a report found at the start: it may have ended while no collector ran
_TAIL_LETTERS = 2_000  # of a command's last lines in a message
# With these a person or a scheduler asks a process to end; any other signal means that something is wrong.
_REQUESTS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}


class Exits(Protocol):
    """Tells which processes of the host have ended since the last time."""

    def read(self) -> list[Exit]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Watched:
    """A rank's process as it was at the last look."""

    stat: ProcessStat
    member: Membership
    trouble: str = ""  # process_stopped or process_stuck while it lasts
    stuck_reads: int = 0
    is_missing: bool = False  # not found at the last look; the kernel may still tell how it ended

    def __str__(self) -> str:
        return f"{self.member} (pid {self.stat.pid}, {self.stat.name})".lstrip()


class ProcessesSource(PlainSource):
    """Watches the processes that `find_ranks` names; by default those that hold a ring file in `directories`."""

    name = "processes"
    period_s = 1.0

    def __init__(
        self,
        host: str,
        root: Path = Path("/"),
        find_ranks: Callable[[], Iterable[int]] | None = None,
        open_exits: Callable[[], Exits] = ProcConnector,
        reports: RunReports | None = None,
        directories: Sequence[Path] = REPORT_DIRECTORIES,
    ) -> None:
        self._proc = root / "proc"
        self._report = EventReporter(host, self.name, host_name(host)).report
        self._find_ranks = find_ranks or RingHolders(root, directories)
        self._open_exits = open_exits
        self._reports = reports or RunReports(root, directories)
        self._exits: Exits | None = None
        self._end_times: EndTimes | None = None  # where the kernel reports no exits
        self._is_subscribed = False
        self._problems = ChangeLog(_log)
        self._ranks: dict[int, Watched] = {}
        self._last_ns: int | None = None  # when it was read; nothing older is told any more

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        if not self._proc.is_dir():
            raise NotPresent(f"no processes in {self._proc}")
        if not self._is_subscribed:
            self._subscribe()
        events = [*self._read_ends(now_ns), *self._poll(now_ns), *self._read_reports(now_ns)]
        self._find_new()
        self._last_ns = now_ns
        return Reading(filled_tables_of(events=events), watermark_ns=now_ns, is_urgent=bool(events))

    def close(self) -> None:
        for subscription in (self._exits, self._end_times):
            if subscription:
                subscription.close()

    def _subscribe(self) -> None:
        self._is_subscribed = True
        try:
            self._exits = self._open_exits()
        except NotPresent as absence:
            _log.info("ends of ranks are seen without exit code and signal", reason=str(absence))
            # Below another root the numbers may be those of another namespace.
            self._end_times = EndTimes() if self._proc == Path("/proc") else None

    def _read_ends(self, now_ns: int) -> list[Event]:
        """Return how ranks ended, as the kernel told; whoever is told so is not watched any more."""
        events, boot_ns = list[Event](), now_ns - time.monotonic_ns()
        for end in self._exits.read() if self._exits else []:
            if rank := self._ranks.pop(end.pid, None):
                ended_ns = self._time(boot_ns + end.monotonic_ns, now_ns)
                how = describe_end(end.exit_code, end.signal) + (" and left a core dump" if end.dumped_core else "")
                about = {"exit_code": end.exit_code, "signal": end.signal}
                events.append(self._event_of(rank, ended_ns, "process_exit", _severity(end), how, **about))
        return events

    def _poll(self, now_ns: int) -> list[Event]:
        """Return what changed with the ranks that are watched."""
        events: list[Event] = []
        for pid, before in list(self._ranks.items()):
            now = self._stat(pid)
            if now is None or now.start_ticks != before.stat.start_ticks:
                events += self._miss(before, now_ns)
                continue
            if before.member == Membership():  # in the midst of an exec the kernel shows no environment
                before = replace(before, member=read_membership(self._proc, pid))
            self._ranks[pid] = after = judge(before, now)
            if change := describe_change(before, after):
                where = read_wait_channel(self._proc, pid) if after.trouble == "process_stuck" else ""
                kind, severity, what = change
                events.append(self._event_of(after, now_ns, kind, severity, what + (f" in {where}" if where else "")))
        return events

    def _miss(self, rank: Watched, now_ns: int) -> list[Event]:
        """Return that a rank is gone; one read later where the kernel tells how, because that may be on its way."""
        if self._exits and not rank.is_missing:
            self._ranks[rank.stat.pid] = replace(rank, is_missing=True)
            return []
        del self._ranks[rank.stat.pid]
        ended_ns = self._end_times.take(rank.stat.pid) if self._end_times else None
        reported_ns = now_ns if ended_ns is None else self._time(now_ns - time.monotonic_ns() + ended_ns, now_ns)
        return [self._event_of(rank, reported_ns, "process_gone", "error", "is gone; how it ended is unknown")]

    def _find_new(self) -> None:
        for pid in set(self._found()) - self._ranks.keys():
            stat = self._stat(pid)
            if stat and len(self._ranks) < _MOST_RANKS:
                # One that already stands still is told at the next look, as every change is.
                self._ranks[pid] = Watched(stat, read_membership(self._proc, pid))
                if self._end_times:
                    self._end_times.watch(pid)

    def _found(self) -> Iterable[int]:
        """Return who is a rank now; while that cannot be told, those known are watched all the same."""
        found: Iterable[int] = ()
        try:
            found, fault = self._find_ranks(), ""
        except (OSError, LockstepError) as error:
            fault = str(error)
        self._problems.note("new ranks cannot be found", fault, "error")
        return found

    def _stat(self, pid: int) -> ProcessStat | None:
        """Return the process as it is, or None when it has ended, also when its parent has not noticed yet."""
        try:
            stat = read_stat(self._proc, pid)
        except (OSError, ValueError):
            return None
        return None if stat.state in "ZX" else stat

    def _read_reports(self, now_ns: int) -> list[Event]:
        events = []
        for found in self._reports.read():
            report, ended_ns = found.report, self._time(found.report.ended_ns, now_ns)
            kind, severity = "python_exception" if report.exception else "run_exit", _severity(report)
            about = {"rank": report.member.rank, "pid": report.pid}
            about |= {"exit_code": report.exit_code, "signal": report.signal}
            events.append(self._report(ended_ns, kind, severity, describe_report(found), **about))
        return events

    def _time(self, reported_ns: int, now_ns: int) -> int:
        """Return a moment that others told us, kept between the last read and now, as the watermark promises."""
        earliest_ns = max(now_ns - _OLDEST_NS, 0) if self._last_ns is None else min(self._last_ns, now_ns)
        return min(max(reported_ns, earliest_ns), now_ns)

    def _event_of(self, rank: Watched, ts_ns: int, kind: str, severity: str, what: str, **about: int | None) -> Event:
        about |= {"rank": rank.member.rank, "pid": rank.stat.pid}
        return self._report(ts_ns, kind, severity, f"{rank} {what}", **about)


def judge(before: Watched, now: ProcessStat) -> Watched:
    """Return the process as it is now: stopped at once, stuck only after some looks in a row without an end."""
    stuck_reads = before.stuck_reads + 1 if now.state == "D" else 0
    trouble = "process_stuck" if stuck_reads >= STUCK_READS else ""
    if now.state in "Tt":
        trouble = "process_stopped"
    return replace(before, stat=now, trouble=trouble, stuck_reads=stuck_reads, is_missing=False)


def describe_change(before: Watched, after: Watched) -> tuple[str, str, str] | None:
    """Return kind, severity and what happened when something began or ended between two looks."""
    if before.trouble == after.trouble:
        return None
    if after.trouble == "process_stopped":
        by = "a debugger" if after.stat.state == "t" else "a signal"
        return after.trouble, "warning", f"was stopped by {by}"
    if after.trouble == "process_stuck":
        return after.trouble, "warning", "waits in the kernel and cannot be interrupted"
    return "process_continued", "info", "goes on"


def describe_report(found: FoundReport) -> str:
    """Return what `lockstep run` says of its command, and whose word that is."""
    report = found.report
    who = f"{report.member} ({report.program}, pid {report.pid} in its namespace, uid {found.uid})".lstrip()
    how = describe_end(report.exit_code, report.signal)
    exception = f" by {report.exception}" if report.exception else ""
    tail = " | ".join(report.stderr_tail)[-_TAIL_LETTERS:] if report.exit_code != 0 else ""
    return f"{who} {how}{exception}" + (f"; last lines: {tail}" if tail else "")


def _severity(end: Exit | RunReport) -> str:
    if end.signal is not None:
        return "warning" if end.signal in _REQUESTS else "error"
    return "error" if end.exit_code else "info"
