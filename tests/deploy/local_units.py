"""The units on this machine without systemd: its directories and credentials lie below one of ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

from tests.deploy.processes import LOCKSTEP, Running, run_to_end
from tests.deploy.unit_file import Unit


@dataclass
class LocalUnits:
    """Runs units; each is given with what its EnvironmentFile says."""

    directory: Path
    _running: list[Running] = field(default_factory=list)

    def start(self, unit: Unit, administrators: Mapping[str, str]) -> Running:
        command = [LOCKSTEP, *unit.command[1:]]
        running = Running(unit.name, command, self.environment(unit, administrators), self.directory)
        self._running.append(running)
        return running

    def run(self, unit: Unit, administrators: Mapping[str, str], *words: str) -> "CompletedProcess[str]":
        """Run a command of ours as the unit's user would."""
        return run_to_end([LOCKSTEP, *words], self.environment(unit, administrators))

    def load_credential(self, unit: Unit, text: str) -> None:
        """Put a credential where systemd puts it."""
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
