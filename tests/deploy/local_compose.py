"""The compose file on this machine without Docker: host names, ports and paths become those of here."""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

from tests.deploy.compose_file import Compose, Service
from tests.deploy.processes import LOCKSTEP, Running, run_to_end
from tests.testbed.clickhouse import ClickHouseServer
from tests.testbed.services import free_port

# Everything is read-only but the directories given before `--`, as in a container with `read_only: true`.
READ_ONLY_ROOT = """
set -e
mount --make-rprivate /
while [ "$1" != -- ]; do mount --bind "$1" "$1"; shift; done
shift
mount -o remount,bind,ro /
exec "$@"
"""
_UNSHARED = ("unshare", "--mount", "sh", "-c")


@dataclass
class LocalCompose:
    """Runs our services; the ClickHouse server stands for the service of that name."""

    compose: Compose
    directory: Path
    secrets: Path
    clickhouse: ClickHouseServer
    read_only: bool = False  # obey `read_only: true`, which needs root
    ports: dict[str, int] = field(default_factory=dict)  # of the container -> here
    _running: list[Running] = field(default_factory=list)

    def start(self, name: str) -> Running:
        service = self.compose.services[name]
        command = [LOCKSTEP, *service.command]
        if self.read_only and service.read_only:
            command = [*_UNSHARED, READ_ONLY_ROOT, "sh", *self._writable(service), "--", *command]
        running = Running(name, command, self.environment(name), self.directory)
        self._running.append(running)
        return running

    def is_healthy(self, name: str) -> bool:
        kind, program, *arguments = self.compose.services[name].health
        assert (kind, program) == ("CMD", "python")
        command = [sys.executable, *(self._here(argument) for argument in arguments)]
        return run_to_end(command, {}).returncode == 0

    def run(self, name: str, *words: str) -> "CompletedProcess[str]":
        return run_to_end([LOCKSTEP, *words], self.environment(name))

    def environment(self, name: str) -> dict[str, str]:
        service = self.compose.services[name]
        places = {mount.target: str(self._volume(mount.source)) for mount in service.mounts}
        for path, secret in service.secrets.items():
            places[path] = str(self.secrets / Path(self.compose.secrets[secret]).name)
        environment = {key: places.get(value, self._here(value)) for key, value in service.environment.items()}
        return environment | {"TMPDIR": str(self._volume("tmp"))}

    def published(self, name: str) -> str:
        (port,) = self.compose.services[name].ports
        return f"http://127.0.0.1:{self._port(str(port.target))}"

    def kill_all(self) -> None:
        for running in self._running:
            running.kill()

    def _writable(self, service: Service) -> list[str]:
        volumes = [mount.source for mount in service.mounts if mount.is_volume]
        return [str(self._volume(name)) for name in [*volumes, *(path.strip("/") for path in service.tmpfs)]]

    def _volume(self, name: str) -> Path:
        path = self.directory / "volumes" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _here(self, text: str) -> str:
        text = text.replace("clickhouse:8123", f"127.0.0.1:{self.clickhouse.http_port}")
        return re.sub(r"\b(?:0\.0\.0\.0|127\.0\.0\.1):(864\d)\b", lambda m: f"127.0.0.1:{self._port(m[1])}", text)

    def _port(self, inside: str) -> int:
        return self.ports.setdefault(inside, free_port())
