"""systemd units as these tests see them: sections of directives, read as strictly as systemd should."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

from lockstep.config import Settings, load_settings
from tests.conftest import REPO
from tests.deploy.processes import LOCKSTEP, Running, run_to_end

DIRECTORIES = (REPO / "deploy/systemd", REPO / "collector/systemd")

_SECTION = re.compile(r"\[(\w+)\]")
_DIRECTIVE = re.compile(r"(\w+)=(.*)")


@dataclass(frozen=True)
class Unit:
    name: str
    directives: tuple[tuple[str, str, str], ...]  # section, name, value

    def all(self, name: str) -> list[str]:
        return [value for _, directive, value in self.directives if directive == name]

    def only(self, name: str) -> str:
        values = self.all(name)
        assert len(values) == 1, f"{self.name} has {name}= {len(values)} times"
        return values[0]

    @property
    def environment(self) -> dict[str, str]:
        """What the unit sets before it reads its EnvironmentFile."""
        words = [word for line in self.all("Environment") for word in shlex.split(line)]
        return {name: value for name, _, value in (word.partition("=") for word in words)}

    @property
    def settings(self) -> Settings:
        """What Lockstep makes of the unit's environment and nothing else; unknown variables raise."""
        return load_settings(self.environment, Path("/dev/null"))

    @property
    def command(self) -> list[str]:
        return shlex.split(self.only("ExecStart"))


def unit_path(name: str) -> Path:
    """Return where a unit, or what belongs to units, lies: the collector's comes in the wheel."""
    (file,) = [folder / name for folder in DIRECTORIES if (folder / name).exists()]
    return file


def read_unit(name: str) -> Unit:
    """Return the unit; a line that systemd would skip with a warning is an error."""
    section, directives = "", []
    for number, line in enumerate(unit_path(name).read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if header := _SECTION.fullmatch(line):
            section = header[1]
        elif section and (directive := _DIRECTIVE.fullmatch(line)):
            directives.append((section, directive[1], directive[2]))
        else:
            raise ValueError(f"{name}, line {number}: neither a section nor a directive: {line!r}")
    return Unit(name, tuple(directives))


@dataclass
class LocalUnits:
    directory: Path
    _running: list[Running] = field(default_factory=list)

    def start(self, unit: Unit, administrators: Mapping[str, str]) -> Running:
        command = [LOCKSTEP, *unit.command[1:]]
        running = Running(unit.name, command, self.environment(unit, administrators), self.directory)
        self._running.append(running)
        return running

    def run(self, unit: Unit, administrators: Mapping[str, str], *words: str) -> "CompletedProcess[str]":
        return run_to_end([LOCKSTEP, *words], self.environment(unit, administrators))

    def load_credential(self, unit: Unit, text: str) -> None:
        name, _, _ = unit.only("LoadCredential").partition(":")
        file = self.directory / "run/credentials" / unit.name / name
        file.parent.mkdir(parents=True)
        file.write_text(text)

    def environment(self, unit: Unit, administrators: Mapping[str, str]) -> dict[str, str]:
        """Return what systemd would hand over, once it has made the directories that it makes."""
        for path in ("var/tmp", f"var/lib/{unit.only('StateDirectory')}"):
            (self.directory / path).mkdir(parents=True, exist_ok=True)
        own = {name: self._here(value) for name, value in unit.environment.items()}
        return own | dict(administrators)

    def kill_all(self) -> None:
        for running in self._running:
            running.kill()

    def _here(self, value: str) -> str:
        return f"{self.directory}{value}" if value.startswith("/") else value
