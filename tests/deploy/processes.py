"""Services as plain processes, and whether a command line of ours would be taken: command and options exist."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from typer.core import TyperGroup
from typer.main import get_command

from cli.main import build
from tests.waiting import eventually

LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))
STOP_S = 15
_READY_S = 180.0  # three services import at once on a busy machine


class Running:
    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            bare = bare_environment(environment)
            self._process = subprocess.Popen(command, env=bare, cwd="/", stdout=log, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Return when it is ready; fail with what it said when it ends before that."""

        def is_ready_or_gone() -> bool:
            return self._process.poll() is not None or is_ready()

        eventually(is_ready_or_gone, _READY_S)
        assert self._process.poll() is None, f"{self.name} ended with {self._process.returncode}:\n{self.output}"

    def wait(self, limit_s: float) -> int:
        return self._process.wait(limit_s)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.wait(STOP_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def run_to_end(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    bare = bare_environment(environment)
    return subprocess.run(command, env=bare, cwd="/", capture_output=True, text=True, timeout=60, check=False)


def bare_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a container or unit would give, and nothing of ours but the path to system tools."""
    return {"PATH": os.environ["PATH"], **environment}


def check_command(words: Sequence[str]) -> None:
    """Fail unless `lockstep` followed by these words is a command with valid arguments; nothing is run."""
    command = get_command(build(words))
    rest = list(words)
    while isinstance(command, TyperGroup):
        assert rest, f"`lockstep {' '.join(words)}` stops before it names a command"
        name = rest.pop(0)
        assert name in command.commands, f"`lockstep {' '.join(words)}`: there is no {name!r}"
        command = command.commands[name]
    command.make_context(words[0], rest)
