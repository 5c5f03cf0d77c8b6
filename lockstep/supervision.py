"""How a command ended under `lockstep run`: the report it leaves behind, and how a collector reads one safely.

The report is one line of JSON in a directory into which everybody may write. Whoever reads it takes it for a claim of
the file's owner: every field is checked, every text is cut and cleaned.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep.errors import BadInput

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
_JOB_VARIABLES = ("LOCKSTEP_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID")
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")

_TRACEBACK = "Traceback (most recent call last):"
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch.distributed puts it before each line of an uncaught exception
_EXCEPTION = re.compile(r"([A-Za-z_][\w.<>]*)(?:: (.*))?")


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
    jobs = (environment[name] for name in _JOB_VARIABLES if environment.get(name))
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
