"""lockstep run: a training command in our place, and a report of how it ended."""

import os
import stat
from pathlib import Path
from typing import Annotated

import typer

from cli.setup import err
from collector.supervision import (
    REPORT_DIRECTORIES,
    Ending,
    RunReport,
    clean,
    encode_report,
    find_exception,
    last_lines,
    membership,
    supervise,
)
from lockstep.clock import SystemClock

_NOT_FOUND, _NOT_STARTED = 127, 126  # as shells say it


def command(
    words: Annotated[list[str], typer.Argument(metavar="-- CMD", help="The command and its arguments.")],
    report: Annotated[
        Path | None,
        typer.Option(envvar="LOCKSTEP_RUN_REPORT", help="File for the report; else one that the collector finds."),
    ] = None,
) -> None:
    """Run a command as if it stood alone, and report its end: exit code, signal, exception, last error lines."""
    try:
        ending = supervise(words, SystemClock())
    except OSError as error:
        err.print(f"lockstep: {words[0]}: {error.strerror}", style="red", highlight=False)
        raise typer.Exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED) from None
    _report(words[0], ending, report)
    raise typer.Exit(ending.code)


def _report(program: str, ending: Ending, given: Path | None) -> None:
    """Leave the report; whatever goes wrong here, the command's own exit code is what the caller gets."""
    try:
        line = encode_report(_describe(program, ending))
        _place(line, given or _usual_file())
    except Exception as error:  # noqa: BLE001  # the job's outcome matters more than anything that is wrong with us
        if given:  # without one, a host that has no ring directory is simply not watched
            err.print(f"lockstep: no report in {given}: {error}", style="red", highlight=False)


def _describe(program: str, ending: Ending) -> RunReport:
    return RunReport(
        pid=ending.pid,
        program=clean(Path(program).name, 64),
        member=membership(os.environ),
        started_ns=ending.started_ns,
        ended_ns=ending.ended_ns,
        exit_code=ending.exit_code,
        signal=ending.signal,
        exception=find_exception(ending.stderr) if ending.code else None,
        stderr_tail=last_lines(ending.stderr),
    )


def _usual_file() -> Path:
    given = os.environ.get("LOCKSTEP_RING_DIR")
    directories = (
        [Path(given)] if given else [directory for directory in REPORT_DIRECTORIES if os.access(directory, os.W_OK)]
    )
    return next(iter(directories), REPORT_DIRECTORIES[0]) / f"run-{os.getpid()}.json"


def _place(line: bytes, file: Path) -> None:
    """Put the line there in one step, so that nobody reads half of it, and never over something that is no file."""
    if file.is_symlink() or (file.exists() and not stat.S_ISREG(file.lstat().st_mode)):
        raise OSError(f"{file} is no regular file")
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as target:
            target.write(line)
        unfinished.rename(file)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
