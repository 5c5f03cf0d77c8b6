"""Programs that know nothing of the shim, run with it preloaded."""

import atexit
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import NotPresent
from lockstep.host_paths import PathEntry, PathPlan, PathReport, read_reports, write_plan
from tests.testbed.paths.shim import LIBRARY, ShimFiles, build
from tests.testbed.services import free_port
from tests.waiting import LIMIT_S

PROLOGUE = """
import json, os, socket, sys
def connect(port, address="127.0.0.1", source=None, family=socket.AF_INET):
    peer = socket.socket(family)
    peer.settimeout(20)
    if source: peer.bind(source)
    peer.connect((address, port))
    return peer
def local(peer): return list(peer.getsockname()[:2])
def tell(value): print(json.dumps(value), flush=True)
def wait(): sys.stdin.readline()
"""


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="lockstep-shim-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@cache
def build_shim(*programs: str) -> Path:
    """Return the folder with the library, and with these programs."""
    try:
        build(_folder(), *programs)
    except NotPresent as absence:
        pytest.skip(str(absence))
    return _folder()


@dataclass
class Stage:
    """A folder for the shim's files, and a server on loopback."""

    files: ShimFiles
    port: int
    generation: int = 0
    held: list[socket.socket] = field(default_factory=list)

    def plan(self, *entries: PathEntry, lease_end_s: int = 1 << 40) -> None:
        self.generation += 1
        write_plan(self.files.plan, PathPlan(self.generation, lease_end_s, entries))

    def entry(self, *ports: int, dport: int | None = None, source: str | None = None) -> PathEntry:
        return PathEntry("127.0.0.1", ports, dport or self.port, source)

    def free_ports(self, count: int) -> list[int]:
        """Return ports that nobody has now, and that the kernel gives to nobody before they are used."""
        ports: set[int] = set()
        while len(ports) < count:
            ports.add(free_port())
        return list(ports)

    def busy_port(self) -> int:
        """Return a port that somebody has until the test ends."""
        self.held.append(bound_socket())
        return int(self.held[-1].getsockname()[1])

    def start(self, program: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-ISc", PROLOGUE + program, str(self.port)]
        environment = self.files.environment()
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def play(self, program: str) -> Any:  # Any: what the program tells, in JSON
        with self.start(program) as process:
            told, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
        return json.loads(told)

    @property
    def reports(self) -> list[PathReport]:
        return list(read_reports(self.files.reports))

    @property
    def outcomes(self) -> list[str]:
        return [report.outcome for report in self.reports]


def bound_socket() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


@contextmanager
def stage(folder: Path, agent: str) -> Iterator[Stage]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        made = Stage(ShimFiles(build_shim() / LIBRARY, folder, agent), server.getsockname()[1])
        yield made
        for each in made.held:
            each.close()
