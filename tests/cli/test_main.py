"""Every ending of the command is 0, 1 with a sentence, or 2; and a command loads only what it needs."""

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from cli import main
from lockstep import __version__
from lockstep.errors import LockstepError
from tests.cli.commands import Run, check_failure, run_process
from tests.conftest import REPO

COMMANDS = [command.name for command in main.COMMANDS]
SLOW_TO_IMPORT = {"rich", "structlog", "pydantic", "pyarrow", "numpy", "httpx"}  # each 0.1 s or more
HEAVY = ("torch", "fastapi", "sqlalchemy", "chdb", "clickhouse_connect")


Ended = tuple[int, str, str]  # exit code, standard output and standard error


def run_without(folder: Path, cases: Sequence[tuple[Sequence[str], str]]) -> list[Ended]:
    """Ask for the help of commands, each in a process in which some modules cannot be imported."""
    script = f"""
import os, sys
from cli.main import run
for number, (modules, command) in enumerate({cases!r}):
    if not os.fork():
        for descriptor in (1, 2):
            os.dup2(os.open(f"{folder}/{{number}}.{{descriptor}}", os.O_CREAT | os.O_WRONLY), descriptor)
        sys.modules.update(dict.fromkeys(modules))
        sys.argv = ["lockstep", command, "--help"]
        run()
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=REPO, stdout=subprocess.PIPE, text=True, check=True)
    said = [[(folder / f"{number}.{each}").read_text() for each in (1, 2)] for number in range(len(cases))]
    return [(int(code), out, err) for code, (out, err) in zip(done.stdout.split(), said, strict=True)]


def test_version_and_help_are_printed_and_everything_unknown_is_bad_usage_also_installed(
    lockstep: Run, tmp_path: Path
) -> None:
    outcome = lockstep("--version")
    assert (outcome.code, outcome.out) == (0, f"{__version__}\n")
    outcome = lockstep("--help")
    assert outcome.code == 0
    assert [name for name in COMMANDS if f" {name} " not in outcome.out] == []
    check_failure(lockstep("dance"), "No such command 'dance'", code=2)
    for arguments in (["--no-such"], ["scenario", "dance"], ["scenario", "list", "--no-such"], ["capture"]):
        outcome = lockstep(*arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert "Usage: lockstep" in outcome.err
    outcome = lockstep()
    assert outcome.code == 2
    assert "Usage: lockstep" in outcome.out + outcome.err
    assert run_process("--version", state=tmp_path).out == f"{__version__}\n"
    check_failure(run_process("dance", state=tmp_path), "No such command 'dance'", code=2)


def test_command_has_help_that_needs_no_settings_and_begins_as_in_the_list(lockstep: Run) -> None:
    for command in main.COMMANDS:
        outcome = lockstep(command.name, "--help", LOCKSTEP_NO_SUCH="1")
        assert (outcome.code, f"lockstep {command.name}" in outcome.out) == (0, True)
        loaded = command.load()
        own = loaded.info.help if isinstance(loaded, typer.Typer) else loaded.__doc__
        assert isinstance(own, str)
        assert own.startswith(command.summary.rstrip(".")), command.name


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    def build(_: object, is_completing: bool) -> typer.Typer:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(fail)
        return app

    monkeypatch.setattr(main, "build", build)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (LockstepError("host [/red] says :smile: and [bold]no[/]"), "host [/red] says :smile: and [bold]no[/]"),
        (PermissionError(errno.EACCES, "Permission denied", "/some/file"), "/some/file: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("something odd"), "something odd"),
    ],
)
def test_our_error_or_the_system_s_is_one_sentence_printed_as_it_is(
    lockstep: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    fail_with(error, monkeypatch)
    check_failure(lockstep(), f"lockstep: {sentence}")


def test_command_at_hand_is_the_first_word_that_is_no_option() -> None:
    for arguments in (["--config", "up", "scenario"], ["--config=up", "scenario"], ["scenario", "up"], ["scenario"]):
        wanted = main._wanted(arguments)
        assert wanted is not None
        assert wanted.name == "scenario"
    for nothing in ([], ["--help"], ["dance"], ["--config", "scenario"]):
        assert main._wanted(nothing) is None


def test_command_says_how_to_get_what_is_missing(tmp_path: Path) -> None:
    clone = "clone the repository, run `make install` there, and use its .venv/bin/lockstep"
    remedies = {("clickhouse_connect", "store"): "pip install 'lockstep[store]'", ("benchmarks", "bench"): clone}
    ended = run_without(tmp_path, [([missing], command) for missing, command in remedies])
    for ((missing, command), remedy), (code, out, err) in zip(remedies.items(), ended, strict=True):
        is_ours = remedy is clone
        absence = "/, which is not part of the installed package" if is_ours else ", which is not installed here"
        assert (code, out) == (1, "")
        assert err == f"lockstep: `lockstep {command}` needs {missing}{absence}: {remedy}\n"


def test_services_have_rows_where_freed_memory_can_be_given_back() -> None:
    code = """
import os
from cli.main import Command, build

def load(command):
    import pyarrow
    print(command.name, pyarrow.default_memory_pool().backend_name, flush=True)
    return lambda: None

Command.load = load
for name in ("up", "serve", "simulate"):
    if not os.fork():
        build([name])
        os._exit(0)
    os.wait()
"""
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=REPO, capture_output=True, text=True, check=True)
    pools = dict(line.split() for line in done.stdout.splitlines())
    assert {name: pool == "system" for name, pool in pools.items()} == {"up": True, "serve": True, "simulate": False}


@pytest.mark.parametrize(
    ("option", "variables"),
    [
        ("--help", {}),
        ("--version", {}),
        ("", {"_LOCKSTEP_COMPLETE": "complete_bash", "COMP_WORDS": "lockstep ", "COMP_CWORD": "1"}),
    ],
)
def test_help_version_and_completion_import_nothing_that_takes_long(option: str, variables: dict[str, str]) -> None:
    script = f"""
import atexit, sys
atexit.register(lambda: print(*sorted({{name.split(".")[0] for name in sys.modules}}), file=sys.stderr))
sys.argv = ["lockstep", {option!r}]
from cli.main import run
run()
"""
    command, environment = [sys.executable, "-c", script], os.environ | variables
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, check=True)
    ours = {"lockstep", "cli"}
    packages = {*ours, "collector", "importers", "simulator", "analyzer", "planner", "api"}
    assert set(done.stderr.split()) & {*packages, *SLOW_TO_IMPORT, *HEAVY} == ours
