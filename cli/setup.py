"""What every command begins with: settings, logging, and the two consoles; needs nothing but the base packages."""

import logging
import os
import sys
from pathlib import Path

import structlog
import typer
from rich.console import Console

from lockstep.config import Settings, load_settings
from lockstep.errors import BadInput

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


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
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


def make_state_dir(settings: Settings) -> Path:
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot make the state directory {settings.state_dir} ({error.strerror}); set LOCKSTEP_STATE_DIR"
        ) from error
    return settings.state_dir
