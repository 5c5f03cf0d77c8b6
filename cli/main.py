"""Where the `lockstep` command begins, and where every error becomes one sentence."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from cli.setup import err, out
from lockstep import __version__
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
    ("decisions", "cli.decisions", "collector"),
    ("diagnose", "cli.diagnose", "analyzer"),
    ("capture", "cli.capture", "collector"),
    ("record", "cli.record", "collector"),
    ("store", "cli.store", "store"),
    ("token", "cli.token", "store"),
    ("bench", "cli.bench", "dev"),
)


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line, with the one command that the arguments name, or with all when they name none."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Names the part that makes a training cluster wait, and says why.",
    )
    app.callback()(_options)
    wanted = _wanted(arguments)
    for name, module, extra in _COMMANDS:
        if wanted in (None, name):
            _add(app, name, module, extra, needed=wanted is not None)
    return app


def run() -> None:
    """Run the command line: 0 when the command did its work, 2 for bad usage, 1 with a sentence for the rest."""
    try:
        build(sys.argv[1:])()
    except LockstepError as error:
        err.print(f"lockstep: {error}", style="red", highlight=False)
        sys.exit(1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        err.print(f"lockstep: {place}{error.strerror or error}", style="red", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _wanted(arguments: Sequence[str]) -> str | None:
    names = {name for name, _, _ in _COMMANDS}
    after_value = False  # the word after --config is a file
    for word in arguments:
        if not after_value and not word.startswith("-"):
            return word if word in names else None
        after_value = word == "--config"
    return None


def _add(app: typer.Typer, name: str, module: str, extra: str, needed: bool) -> None:
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
