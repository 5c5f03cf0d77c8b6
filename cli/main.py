"""Where the `lockstep` command begins, and where every error becomes one sentence."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

import typer

from lockstep import __version__
from lockstep.errors import LockstepError, NotPresent


class Command(NamedTuple):
    """A command; its module is imported when it runs: a training host has neither torch nor a database driver."""

    name: str
    location: str  # module:name; the name is app or command where it is not given
    extra: str  # that brings what the module imports
    summary: str  # what help lists, without the module: the first sentence of the command's own help

    @property
    def module(self) -> str:
        return self.location.partition(":")[0]

    def load(self) -> typer.Typer | Callable[..., None]:
        """Import the module and return what does the work."""
        module = import_module(self.module)
        name = self.location.partition(":")[2] or ("app" if hasattr(module, "app") else "command")
        found: typer.Typer | Callable[..., None] = getattr(module, name)
        return found


COMMANDS = (
    Command("up", "cli.up", "api,analyzer,planner,collector", "Run everything in one process until Ctrl-C."),
    Command("serve", "cli.serve", "api,analyzer,planner", "Run one service, for compose and systemd."),
    Command("collect", "cli.host:collect", "collector", "Read this host and send what is found, until stopped."),
    Command("host", "cli.host", "collector", "A training host joins, leaves, and is checked."),
    Command("run", "cli.run", "collector", "Run a command as if it stood alone, and report its end."),
    Command("simulate", "cli.simulate", "sim", "Run a scenario and write its telemetry as a capture."),
    Command("scenario", "cli.simulate:scenarios", "sim", "The fault scenarios that come with Lockstep."),
    Command("testbed", "cli.testbed", "dev", "A fabric of network namespaces with real ranks; needs root."),
    Command("import", "cli.imports", "sim", "Turn recordings of another tool into a capture."),
    Command("topology", "cli.topology", "planner", "What is cabled to what."),
    Command("plan", "cli.plan", "planner", "Plans for traffic and for recovery."),
    Command("checkpoints", "cli.checkpoints", "planner", "List the checkpoints below a folder."),
    Command("decisions", "cli.decisions", "client", "What is proposed, done and undone, and what it was worth."),
    Command("alerts", "cli.decisions:alerts", "client", "Receivers of alerts, and whether notifications arrive."),
    Command("isolations", "cli.decisions:isolations", "client", "Nodes that are out of service, and their way back."),
    Command(
        "explain",
        "cli.diagnose:explain",
        "analyzer",
        "Name the faulty parts from files of other tools, as they lie in a folder.",
    ),
    Command("diagnose", "cli.diagnose", "analyzer", "Name the faulty parts of a capture, or of a running job."),
    Command("capture", "cli.capture", "client", "Save what a running Lockstep knows of a job's last minutes."),
    Command("top", "cli.top", "client", "Show what happens now: jobs, incidents, agents, pending approvals."),
    Command("record", "cli.record", "collector", "Record every NCCL callback of the jobs on this host."),
    Command("nvrx", "cli.nvrx", "nvrx", "What NVIDIA's ft_launcher asks on a training host."),
    Command("store", "cli.store", "store", "The telemetry store."),
    Command("token", "cli.store:tokens", "store", "Tokens for collectors and readers."),
    Command("audit", "cli.store:audit", "store", "The audit: who did what."),
    Command("bench", "cli.bench", "dev", "Measure the figures of one claim beside their references."),
    Command("screenshots", "cli.screenshots", "dev", "Take the README's pictures of a running demo."),
)
_SERVICES = ("up", "serve")  # that run for months
_IN_A_CLONE = {"tests", "benchmarks"}  # packages that no wheel has


def build(arguments: Sequence[str], is_completing: bool = False) -> typer.Typer:
    """Return the command line with the one command that the arguments name.

    Where they name none, help and completion get the names of all and nothing is imported: neither should wait.
    """
    wanted = _wanted(arguments)
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if wanted else None,  # rich alone takes longer to import than everything else
        help="Names the part that makes a training cluster wait, and says why.",
    )
    app.callback()(_options)
    if wanted:
        _add(app, wanted, is_completing)
    else:
        for command in COMMANDS:
            app.command(command.name, help=command.summary)(lambda: None)
    return app


def run() -> None:
    """Run the command line: 0 when the command did its work, 2 for bad usage, 1 with a sentence for the rest."""
    try:
        typed = _words_before_cursor(os.environ, sys.argv[1:])
        if typed == [] and os.environ.get("_LOCKSTEP_COMPLETE") == "complete_bash":
            _offer_names(os.environ["COMP_WORDS"])
            sys.exit(0)
        build(sys.argv[1:] if typed is None else typed, is_completing=typed is not None)()
    except LockstepError as error:
        _fail(str(error))
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        _fail(f"{file}{error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(sentence: str) -> NoReturn:
    from cli.setup import err  # with rich, which help does not wait for

    err.print(f"lockstep: {sentence}", style="red", highlight=False)
    sys.exit(1)


def _offer_names(line: str) -> None:
    """Answer bash, which wants names alone, without typer: it would import pydantic for that."""
    begun = line.split()[1:]
    for command in COMMANDS:
        if command.name.startswith(begun[-1] if begun else ""):
            typer.echo(command.name)


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


def _wanted(arguments: Sequence[str]) -> Command | None:
    after_value = False  # the word after --config is a file
    for word in arguments:
        if not after_value and not word.startswith("-"):
            return next((command for command in COMMANDS if command.name == word), None)
        after_value = word == "--config"
    return None


def _add(app: typer.Typer, command: Command, is_completing: bool) -> None:
    if command.name in _SERVICES and not is_completing:
        from lockstep.allocation import share_memory  # before anything else is imported

        share_memory()
    try:
        loaded = command.load()
    except ModuleNotFoundError as error:
        if is_completing:
            return
        raise NotPresent(_what_is_missing(command, (error.name or "more").partition(".")[0])) from error
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=command.name)
    else:
        app.command(command.name)(loaded)


def _what_is_missing(command: Command, package: str) -> str:
    if package in _IN_A_CLONE:
        return (
            f"`lockstep {command.name}` needs {package}/, which is not part of the installed package: "
            "clone the repository, run `make install` there, and use its .venv/bin/lockstep"
        )
    return (
        f"`lockstep {command.name}` needs {package}, which is not installed here: "
        f"pip install 'lockstep[{command.extra}]'"
    )


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def _options(
    config: Annotated[
        Path | None, typer.Option(help="Settings file; else LOCKSTEP_CONFIG, else /etc/lockstep/lockstep.toml.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Options that stand before the command."""
