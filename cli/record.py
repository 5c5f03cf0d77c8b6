"""lockstep record: every callback of the jobs on this host for a while, for a bug report."""

import lzma
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from cli.setup import err, progress_bar
from importers.traces.recording import Limits, Recorded, lines_of, living_processes, record, traced
from lockstep.clock import SystemClock
from lockstep.errors import BadInput

DIRECTORIES = (Path("/run/lockstep/rings"), Path("/dev/shm/lockstep"))  # noqa: S108  where the plugin writes by itself


def command(
    target: Annotated[Path, typer.Option("--out", help="Directory to write into; one trace per job.")],
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long.")] = 10,
    rings: Annotated[Path | None, typer.Option(help="Directory of the ring files, where not the usual one.")] = None,
    limit_mb: Annotated[int, typer.Option(min=1, help="Memory for what is recorded; ends early when full.")] = 512,
) -> None:
    """Record every NCCL callback of the jobs on this host, as traces that `lockstep import nccl-callbacks` reads."""
    directory = rings or _usual_directory()
    target.mkdir(parents=True, exist_ok=True)
    with living_processes(directory) as processes:
        jobs = {job: list(of_job) for job, of_job in groupby(sorted(processes, key=_job), key=_job)}
        files = {job: _new_file(target, job) for job in jobs}
        err.print(f"recording {len(processes)} processes for {seconds:g} s at detail `trace`; Ctrl-C ends it early")
        with traced(processes):
            whole = _record(processes, Limits(seconds, limit_mb << 20))
        if not whole:
            err.print(f"ended early: {limit_mb} MB are full; --limit-mb sets another limit")
        for job, of_job in jobs.items():
            _save(files[job], lines_of(of_job, job))
            lost = sum(process.lost for process in of_job)
            unread = f"; {lost} records were overwritten unread" if lost else ""
            err.print(f"wrote {files[job]}, {len(of_job)} ranks{unread}")


def _record(processes: Sequence[Recorded], limits: Limits) -> bool:
    stop = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        with progress_bar(TextColumn("recording"), BarColumn(), TimeRemainingColumn()) as progress:
            task = progress.add_task("recording", total=limits.seconds)
            return record(processes, limits, SystemClock(), stop, lambda step: progress.advance(task, step))
    finally:
        signal.signal(signal.SIGINT, before)


def _usual_directory() -> Path:
    given = os.environ.get("LOCKSTEP_RING_DIR")
    found = [Path(given)] if given else [directory for directory in DIRECTORIES if any(directory.glob("*.ring"))]
    if not found:
        raise BadInput(f"no ring files in {' or '.join(map(str, DIRECTORIES))}; --rings names another directory")
    return found[0]


def _job(process: Recorded) -> str:
    return process.ring.identity.job or f"pid-{process.ring.identity.pid}"


def _new_file(target: Path, job: str) -> Path:
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in job).lstrip(".") or "job"
    path = target / f"{name}.jsonl.xz"
    if path.exists():
        raise BadInput(f"{path} exists already; traces are never overwritten")
    return path


def _save(path: Path, lines: Iterable[str]) -> None:
    """Write all or nothing."""
    partial = path.with_name(f".{path.name}.part")
    try:
        with lzma.open(partial, "wt", preset=6) as file:
            file.writelines(f"{line}\n" for line in lines)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
