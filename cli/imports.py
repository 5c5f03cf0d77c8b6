"""lockstep import: what other tools recorded, as a capture."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.setup import err, progress_bar
from collector.nccl.snapshot import Losses
from importers.traces.callback_capture import find_plugin, import_callbacks
from importers.traces.formats import FORMATS, Reader, import_recordings
from importers.traces.readings import Reading, count_sentences
from lockstep.errors import BadInput

_PLAYED = "nccl-callbacks"  # goes through the plugin; the others are read as they are
_FORMATS = (_PLAYED, *FORMATS)

# What a person should know of a capture before trusting it; the names are those of Losses.
_SENTENCES = {
    "overwritten": "records were overwritten before they were read",
    "unknown_comm": "operations have no communicator",
    "orphans": "parts of operations were recorded without the operation",
    "late": "parts came after the row of their operation was written",
    "stale_kernels": "kernel times cannot be true and were left out",
    "sizeless": "transfers were left out, because nobody can say how much they moved",
    "unreached": "steps ended without reaching the network and were left out",
    "forgotten": "operations were dropped, because too many were open",
}


def command(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of: {', '.join(_FORMATS)}.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES...", help="What was recorded; several files are parts of one run.")
    ],
    target: Annotated[Path, typer.Option("--out", help="Capture to write: a directory, or a .tar.zst.")],
    plugin: Annotated[
        Path | None,
        typer.Option(help="NCCL plugin to play callbacks through; else LOCKSTEP_PLUGIN, else a checkout's."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(help="Job id, which only nccl-callbacks records by itself; else the name of the capture."),
    ] = None,
) -> None:
    """Turn recordings of another tool into a capture."""
    if format_name not in _FORMATS:
        raise BadInput(f"there is no format {format_name!r}; the known ones are: {', '.join(_FORMATS)}")
    if format_name == _PLAYED:
        if job is not None:
            raise BadInput(f"--job has no meaning for {_PLAYED}, which records the job itself")
        losses = _play(files, target, find_plugin(plugin, os.environ))
        for name, count in asdict(losses).items():
            if count:
                err.print(f"{count} {_SENTENCES[name]}")
    else:
        reading = _read(FORMATS[format_name], files, target, job or target.name.partition(".")[0])
        for sentence in count_sentences(reading.unread):
            err.print(sentence)
    err.print(f"wrote {target}")


def _read(read: Reader, files: list[Path], target: Path, job: str) -> Reading:
    with progress_bar() as progress:
        task = progress.add_task("reading", total=sum(path.stat().st_size for path in files if path.is_file()))
        return import_recordings(read, files, target, job, lambda read_bytes: progress.advance(task, read_bytes))


def _play(files: list[Path], target: Path, library: Path) -> Losses:
    with progress_bar() as progress:
        task = progress.add_task("playing ranks", total=None)
        return import_callbacks(
            files, target, library, lambda done, of: progress.update(task, completed=done, total=of)
        )
