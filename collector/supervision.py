"""Runs a command in our place, and reports how it ended: its output, its signals and its exit code pass through.

The command stays in our process group, so that a terminal and a scheduler reach it as if we were not there. What a
terminal sends (Ctrl-C) the command has already got; only what a process sent to us alone is passed on. A process that
signals the whole group reaches the command twice, directly and through us, which no sender can be told apart from.

The report is one line of JSON in a directory into which everybody may write. Whoever reads it takes it for a claim of
the file's owner: every field is checked, every text is cut and cleaned.
"""

import ctypes
import json
import os
import re
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep.clock import Clock
from lockstep.errors import BadInput

_TAIL_BYTES = 65_536  # of standard error kept: the longest traceback that Python prints whole fits many times
_DRAIN_S = 1.0  # how long the end waits for standard error that a grandchild still holds open
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# Faults of our own and what only the kernel may mean; everything else that can be caught is passed on.
_OURS = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGURG),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS),
}

# Where the plugin writes its ring files, where reports lie beside them, and where a collector looks for both.
REPORT_DIRECTORIES = (Path("/run/lockstep/rings"), Path("/dev/shm/lockstep"))  # noqa: S108
REPORT_LIMIT_BYTES = 65_536  # 20 lines of 500 letters that JSON writes as six bytes each, and the rest, fit
TAIL_LINES = 20
LINE_LETTERS = 500
_VERSION = 1
_NAME_LETTERS = 64
_LARGEST_PID = 1 << 22  # the kernel's PID_MAX_LIMIT on 64 bits
_LARGEST_NS = 1 << 63

# Where launchers say who a process is, best first; the plugin looks at the same ones.
JOB_VARIABLES = ("LOCKSTEP_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID")
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")

_TRACEBACK = "Traceback (most recent call last):"
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch.distributed puts it before each line of an uncaught exception
_EXCEPTION = re.compile(r"([A-Za-z_][\w.<>]*)(?:: (.*))?")


@dataclass(frozen=True)
class Ending:
    """How a command ended; exactly one of `exit_code` and `signal` is known."""

    pid: int
    started_ns: int
    ended_ns: int
    exit_code: int | None
    signal: int | None
    stderr: bytes  # the last of it

    @property
    def code(self) -> int:
        """Return the exit code as a shell gives it."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 0


def supervise(command: Sequence[str], clock: Clock) -> Ending:
    """Run a command to its end; call it from the main thread of a process that does nothing else.

    Raises OSError when the command cannot be started. When we are killed, so is the command: a scheduler that ended
    us takes its GPUs for free.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may have ignored it, and then nothing is told
    watched = signal.valid_signals() - _OURS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        started_ns = clock.now_ns()
        child = _start(command, before)
        tail = _Relay(child)
        status = _follow(child.pid, watched)
        return _ending(child, started_ns, clock.now_ns(), status, tail.finish())
    finally:
        while signal.sigtimedwait(watched, 0):  # meant for the command, which is gone; they must not end us now
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class Membership:
    """Which rank of which job a process is, as its environment says; None where it does not."""

    rank: int | None = None
    job: str | None = None

    def __str__(self) -> str:
        """Return it as a message begins; empty when nothing is known.

        >>> str(Membership(rank=3, job="4711")), str(Membership())
        ('rank 3 of job 4711', '')
        """
        rank = f"rank {self.rank}" if self.rank is not None else ""
        job = f"job {self.job}" if self.job else ""
        return f"{rank} of {job}" if rank and job else rank or job


@dataclass(frozen=True)
class UncaughtException:
    """A Python exception that ended a process, as its traceback names it."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


@dataclass(frozen=True)
class RunReport:
    """What happened to a command; exactly one of `exit_code` and `signal` is known."""

    pid: int  # of the command, in its own namespace
    program: str  # without its arguments, which may hold secrets
    member: Membership
    started_ns: int
    ended_ns: int
    exit_code: int | None
    signal: int | None
    exception: UncaughtException | None
    stderr_tail: tuple[str, ...]


def membership(environment: Mapping[str, str]) -> Membership:
    """Return which rank of which job a process with this environment is.

    >>> membership({"RANK": "3", "SLURM_JOB_ID": "4711"})
    Membership(rank=3, job='4711')
    """
    ranks = (environment[name] for name in _RANK_VARIABLES if environment.get(name))
    jobs = (environment[name] for name in JOB_VARIABLES if environment.get(name))
    rank = next(ranks, "")
    is_number = rank.isascii() and rank.isdigit() and int(rank[:11]) < 1 << 32
    return Membership(int(rank[:11]) if is_number else None, clean(next(jobs, ""), _NAME_LETTERS) or None)


def clean(text: str, letters: int) -> str:
    """Return the beginning of a text without anything that could move a cursor or break a line.

    >>> clean("loss\\x1b[2J 0.1\\n", 40)
    'loss[2J 0.1'
    """
    return "".join(letter for letter in text[: 4 * letters] if letter.isprintable())[:letters]


def last_lines(output: bytes) -> tuple[str, ...]:
    """Return the last lines of what a program wrote, each cut and cleaned; a progress bar's redraws are lines too."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return tuple(clean(line, LINE_LETTERS) for line in lines[-TAIL_LINES:])


def find_exception(output: bytes) -> UncaughtException | None:
    """Return the exception of the last traceback in what a Python program wrote before it failed.

    >>> str(find_exception(b"Traceback (most recent call last):\\n  File \\"a\\", line 1\\nValueError: no loss\\n"))
    'ValueError: no loss'
    """
    lines = [_RANK_PREFIX.sub("", line) for line in output.decode(errors="replace").splitlines()]
    begins = [index for index, line in enumerate(lines) if line == _TRACEBACK]
    after = lines[begins[-1] + 1 :] if begins else []
    last = next((line for line in after if line and not line[0].isspace()), "")
    found = _EXCEPTION.fullmatch(last)
    return UncaughtException(clean(found[1], 200), clean(found[2] or "", LINE_LETTERS)) if found else None


def encode_report(report: RunReport) -> bytes:
    """Return the report as one line of JSON, within the size that a reader accepts."""
    line = json.dumps({"version": _VERSION} | asdict(report), separators=(",", ":")).encode() + b"\n"
    if len(line) > REPORT_LIMIT_BYTES:  # only letters that JSON escapes to twelve bytes can do that
        line = json.dumps({"version": _VERSION} | asdict(report) | {"stderr_tail": []}).encode() + b"\n"
    return line


def decode_report(line: bytes) -> RunReport:
    """Return the report that somebody wrote, or raise BadInput with the first thing in it that cannot be."""
    if len(line) > REPORT_LIMIT_BYTES:
        raise BadInput(f"a report has {REPORT_LIMIT_BYTES} bytes at most, not {len(line)}")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is no JSON: {type(error).__name__}") from None
    fields = _Fields(document)
    fields.number("version", _VERSION, _VERSION)
    return _report(fields)


def _start(command: Sequence[str], mask: set[int | signal.Signals]) -> "subprocess.Popen[bytes]":
    # Loaded here: between fork and exec nothing may be looked up.
    prctl, us = ctypes.CDLL(None).prctl, os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != us:  # we died before the kernel knew that it should tell
            os._exit(128 + signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return subprocess.Popen(command, stderr=subprocess.PIPE, bufsize=0, preexec_fn=prepare)  # no threads yet


def _follow(pid: int, watched: set[signal.Signals]) -> int:
    """Pass signals on until the command has ended; return its wait status."""
    while True:
        reported = signal.sigwaitinfo(watched)
        if reported.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if ended and not os.WIFSTOPPED(status):
                return status
            if ended and os.WSTOPSIG(status) == signal.SIGTSTP:
                # A shell that stops its job waits until we have stopped too. Where nobody could continue us (a group
                # without a parent in its session) the kernel does not stop the command, and so not us.
                os.kill(os.getpid(), signal.SIGSTOP)
        elif reported.si_code <= 0 and reported.si_pid != pid:  # above 0: the kernel has told the command too
            os.kill(pid, reported.si_signo)


def _ending(child: "subprocess.Popen[bytes]", started_ns: int, ended_ns: int, status: int, stderr: bytes) -> Ending:
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code  # we have waited ourselves; Popen would look for the process in vain
    return Ending(
        pid=child.pid,
        started_ns=started_ns,
        ended_ns=ended_ns,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        stderr=stderr,
    )


class _Relay:
    """Hands standard error on, byte by byte as it comes, and keeps the last of it."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        assert child.stderr is not None
        self._pipe = child.stderr
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._pump, name="stderr", daemon=True)
        self._thread.start()

    def finish(self) -> bytes:
        """Return the last of what came, when all has been handed on or a grandchild keeps it open."""
        self._thread.join(_DRAIN_S)
        return bytes(self._tail)

    def _pump(self) -> None:
        with self._pipe:
            while piece := os.read(self._pipe.fileno(), _TAIL_BYTES):
                self._tail = (self._tail + piece)[-_TAIL_BYTES:]
                _hand_on(piece)


def _hand_on(piece: bytes) -> None:
    """Write to our standard error; when nobody reads it any more the command must still not stand still."""
    rest = memoryview(piece)
    while rest:
        try:
            rest = rest[os.write(2, rest) :]
        except BlockingIOError:  # somebody else shares this file and wants it so
            select.select([], [2], [])
        except OSError:
            return


def _report(fields: "_Fields") -> RunReport:
    member, exception = fields.inner("member"), fields.inner("exception")
    code, signal = fields.maybe_number("exit_code", 0, 255), fields.maybe_number("signal", 1, 64)
    if (code is None) == (signal is None):
        raise BadInput("says neither or both of exit_code and signal")
    return RunReport(
        pid=fields.number("pid", 1, _LARGEST_PID),
        program=fields.text("program", _NAME_LETTERS),
        member=Membership(member.maybe_number("rank", 0, 1 << 32), member.text("job", _NAME_LETTERS) or None),
        started_ns=fields.number("started_ns", 0, _LARGEST_NS),
        ended_ns=fields.number("ended_ns", 0, _LARGEST_NS),
        exit_code=code,
        signal=signal,
        exception=UncaughtException(exception.text("name", 200), exception.text("message", LINE_LETTERS))
        if exception.document
        else None,
        stderr_tail=fields.lines("stderr_tail"),
    )


class _Fields:
    """An object of foreign JSON, asked field by field."""

    def __init__(self, document: object) -> None:
        if not isinstance(document, dict):
            raise BadInput(f"is {type(document).__name__} where an object is due")
        self.document: Mapping[str, object] = document

    def number(self, name: str, least: int, most: int) -> int:
        value = self.document.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise BadInput(f"{name} is no number from {least} to {most}")
        return value

    def maybe_number(self, name: str, least: int, most: int) -> int | None:
        return None if self.document.get(name) is None else self.number(name, least, most)

    def text(self, name: str, letters: int) -> str:
        value = self.document.get(name)
        if value is not None and not isinstance(value, str):
            raise BadInput(f"{name} is no text")
        return clean(value or "", letters)

    def lines(self, name: str) -> tuple[str, ...]:
        value = self.document.get(name)
        if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
            raise BadInput(f"{name} is no list of lines")
        return tuple(clean(line, LINE_LETTERS) for line in value[-TAIL_LINES:])

    def inner(self, name: str) -> "_Fields":
        return _Fields(self.document.get(name) or {})
