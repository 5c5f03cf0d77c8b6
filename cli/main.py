"""Where the `lockstep` command begins, and where every error becomes one sentence."""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from cli.setup import err, out
from lockstep import __version__
from lockstep.allocation import share_memory
from lockstep.errors import LockstepError, NotPresent

# Command, the module that holds it, and the extra that brings what the module imports. Only the module of the
# command at hand is imported: a training host has neither torch nor a database driver.
_COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("up", "cli.up", "api,analyzer,planner,collector"),
    ("serve", "cli.serve", "api,analyzer,planner"),
    ("collect", "cli.collect", "collector"),
    ("run", "cli.run", "collector"),
    ("simulate", "cli.simulate", "sim"),
    ("story", "cli.story", "sim"),
    ("testbed", "cli.testbed", "dev"),
    ("import", "cli.imports", "sim"),
    ("topology", "cli.topology", "planner"),
    ("plan", "cli.plan", "planner"),
    ("checkpoints", "cli.checkpoints", "planner"),
    ("decisions", "cli.decisions", "client"),
    ("alerts", "cli.alerts", "client"),
    ("isolations", "cli.isolations", "client"),
    ("diagnose", "cli.diagnose", "analyzer"),
    ("capture", "cli.capture", "client"),
    ("top", "cli.top", "client"),
    ("record", "cli.record", "collector"),
    ("nvrx", "cli.nvrx", "nvrx"),
    ("store", "cli.store", "store"),
    ("token", "cli.token", "store"),
    ("bench", "cli.bench", "dev"),
    ("screenshots", "cli.screenshots", "dev"),
)


def build(arguments: Sequence[str], is_completing: bool = False) -> typer.Typer:
    """Return the command line, with the one command that the arguments name, or with all when they name none.

    A shell that completes a word must not wait: as long as no command is named, names are all that it gets.
    """
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Names the part that makes a training cluster wait, and says why.",
    )
    app.callback()(_options)
    wanted = _wanted(arguments)
    for name, module, extra in _COMMANDS:
        if is_completing and wanted is None:
            app.command(name)(lambda: None)
        elif wanted in (None, name):
            _add(app, name, module, extra, needed=wanted is not None and not is_completing)
    return app


def run() -> None:
    """Run the command line: 0 when the command did its work, 2 for bad usage, 1 with a sentence for the rest."""
    try:
        typed = _words_before_cursor(os.environ, sys.argv[1:])
        build(sys.argv[1:] if typed is None else typed, is_completing=typed is not None)()
    except LockstepError as error:
        err.print(f"lockstep: {error}", style="red", highlight=False)
        sys.exit(1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        err.print(f"lockstep: {place}{error.strerror or error}", style="red", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _words_before_cursor(environment: Mapping[str, str], arguments: Sequence[str]) -> list[str] | None:
    """Return the whole words before the cursor where a shell asks what could follow; None where none asks.

    Installing the script for that is part of it: it needs no command either.
    """
    asked = environment.get("_LOCKSTEP_COMPLETE", "")
    if asked.startswith("source_") or set(arguments) & {"--install-completion", "--show-completion"}:
        return []
    if not asked.startswith("complete_"):
        return None
    if "COMP_WORDS" in environment:  # bash
        return environment["COMP_WORDS"].split()[1 : int(environment["COMP_CWORD"])]
    line = environment.get("_TYPER_COMPLETE_ARGS", "")  # zsh and fish
    words = line.split()[1:]
    return words if line.endswith(" ") else words[:-1]


_SERVICES = ("up", "serve")  # that run for months


def _wanted(arguments: Sequence[str]) -> str | None:
    names = {name for name, _, _ in _COMMANDS}
    after_value = False  # the word after --config is a file
    for word in arguments:
        if not after_value and not word.startswith("-"):
            return word if word in names else None
        after_value = word == "--config"
    return None


def _add(app: typer.Typer, name: str, module: str, extra: str, needed: bool) -> None:
    if needed and name in _SERVICES:
        share_memory()
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if needed:
            package = (error.name or "more").partition(".")[0]
            raise NotPresent(
                f"`lockstep {name}` needs {package}, which is not installed here: pip install 'lockstep[{extra}]'"
            ) from error
        return
    if hasattr(loaded, "app"):
        app.add_typer(loaded.app, name=name)
    else:
        app.command(name)(loaded.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(__version__)
        raise typer.Exit


def _options(
    config: Annotated[
        Path | None, typer.Option(help="Settings file; else LOCKSTEP_CONFIG, else /etc/lockstep/lockstep.toml.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Options that stand before the command."""
