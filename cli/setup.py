"""What every command begins with: settings, logging, and the two consoles; needs nothing but the base packages."""

import getpass
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, ProgressColumn
from rich.segment import Segment

from lockstep.config import Settings, load_settings
from lockstep.words import clean

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
Why = Annotated[str, typer.Option(help="Reason, kept in the audit.")]
_WIDE = 200  # columns where nobody looks at a terminal: tables in files and pipes are not folded


class CleanConsole(Console):
    """Prints names and sentences of others as they are: nothing in them means anything to us or to the terminal."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:  # Any: those of rich
        width = None if (sys.stderr if stderr else sys.stdout).isatty() else _WIDE
        usual = {"soft_wrap": True, "markup": False, "emoji": False, "width": width}  # no [tag], no :word:
        super().__init__(stderr=stderr, **(usual | options))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield what is printed; all that moves a cursor is rich's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))


out, err = CleanConsole(), CleanConsole(stderr=True)


def settings_of(context: typer.Context) -> Settings:
    """Return the settings, read when a command first needs them so that help works without."""
    file: Path | None = context.find_root().params.get("config")
    settings = load_settings(os.environ, file)
    configure_logging(settings.log_level)
    return settings


def configure_logging(level: str) -> None:
    """Send log lines to standard error: readable on a terminal, JSON elsewhere."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,  # the request that a line of the web process belongs to
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Return a bar that leaves no trace, and is not there at all where nobody looks at a terminal."""
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


@contextmanager
def progress_of(task: str) -> Iterator[Callable[[int, int], None]]:
    """Yield what takes done and due: a bar on a terminal, a line each quarter elsewhere."""
    quarters = 0

    def print_quarter(done: int, due: int) -> None:
        nonlocal quarters
        if done * 4 // max(due, 1) > quarters:
            quarters = done * 4 // max(due, 1)
            err.print(f"{task}: {done:,} of {due:,}", highlight=False)

    if not err.is_terminal:
        yield print_quarter
        return
    with progress_bar() as progress:
        bar = progress.add_task(task, total=None)
        yield lambda done, due: progress.update(bar, completed=done, total=due)


def who_asks() -> str:
    """Return the name of the user for the audit; a container may run under a number that has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
