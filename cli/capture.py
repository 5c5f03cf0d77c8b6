"""lockstep capture: a job's last minutes out of a running Lockstep, as a case file."""

import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, TextColumn

from cli.client import DEFAULT_SERVER, Server, Token, offer_jobs
from cli.setup import err, progress_bar
from lockstep.capture.files import is_archive, unpack
from lockstep.client import Client
from lockstep.errors import BadInput

_SINCE = re.compile(r"(\d+)([smh])")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def command(
    job: Annotated[str, typer.Option(help="Which job.", autocompletion=offer_jobs)],
    target: Annotated[Path, typer.Option("--out", help="Capture to write: a directory, or a .tar.zst.")],
    since: Annotated[str, typer.Option(help="How far back: 90s, 10m or 2h.")] = "10m",
    server: Server = DEFAULT_SERVER,
    token: Token = "",
) -> None:
    """Save what a running Lockstep knows of a job's last minutes."""
    if target.exists():
        raise BadInput(f"{target} exists already; captures are never overwritten")
    since_s = parse_since(since)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        archive = Path(folder) / "capture.tar.zst"
        with Client(server, token) as lockstep, progress_bar(TextColumn("receiving"), DownloadColumn()) as progress:
            task = progress.add_task("receiving", total=None)
            lockstep.save_capture(
                job, archive, since_s=since_s, watch=lambda size: progress.update(task, completed=size)
            )
        unpacked = Path(folder) / "capture"
        unpacked.mkdir()
        unpack(archive, unpacked)  # also where the archive is kept: what answered may be no Lockstep at all
        (archive if is_archive(target) else unpacked).rename(target)
    err.print(f"wrote {target}")


def parse_since(text: str) -> int:
    """Return seconds.

    >>> parse_since("10m")
    600
    """
    match = _SINCE.fullmatch(text)
    if not match:
        raise BadInput(f"{text!r} is no length of time: write 90s, 10m or 2h")
    return int(match[1]) * _SECONDS[match[2]]
