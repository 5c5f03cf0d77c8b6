"""Lockstep's own services as processes on loopback: started, killed, started again."""

import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx

from lockstep.errors import LockstepError
from tests.waiting import LIMIT_S

_STOP_TIMEOUT_S = 60
_POLL_S = 0.02
_PORTS = range(20_000, 32_768)
Found = TypeVar("Found")
LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))


def own_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with these settings of ours and no others."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")} | dict(settings)


def collector_settings(
    state: Path, server: str, token_file: Path, host: str, sources: Sequence[str], rings: Path
) -> dict[str, str]:
    """Return what the collector of a host needs to be told; no sources are all there are."""
    return {
        "LOCKSTEP_STATE_DIR": str(state),
        "LOCKSTEP_COLLECTOR_SERVER": server,
        "LOCKSTEP_COLLECTOR_TOKEN_FILE": str(token_file),
        "LOCKSTEP_COLLECTOR_HOST": host,
        "LOCKSTEP_COLLECTOR_SOURCES": json.dumps(sources),
        "LOCKSTEP_COLLECTOR_RING_DIRS": json.dumps([str(rings)]),
        "LOCKSTEP_LOG_LEVEL": "warning",
    }


@dataclass
class Service:
    """One process of ours with settings from its environment; `probe` is where it says over HTTP that it is up."""

    words: tuple[str, ...]
    settings: Mapping[str, str]
    probe: str
    log: Path
    _process: "subprocess.Popen[bytes] | None" = field(init=False, default=None)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the service was not started"
        return self._process.pid

    def start(self) -> "Service":
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [LOCKSTEP, *self.words],
                env=own_environment(self.settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        with httpx.Client(timeout=5, trust_env=False) as client:  # one for all tries: making it is what costs
            wait_until(lambda: self._is_up(client), f"{' '.join(self.words)} answers; see {self.log}")
        return self

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def __enter__(self) -> "Service":
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._process:
            self.kill()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None, "the service was not started"
        process.send_signal(how)
        process.wait(_STOP_TIMEOUT_S)

    def _is_up(self, client: httpx.Client) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            last_words = self.log.read_text(errors="replace")[-500:].strip()
            raise LockstepError(f"{' '.join(self.words)} ended with {self._process.returncode}: {last_words}")
        try:
            return client.get(self.probe).is_success
        except httpx.TransportError:
            return False


def wait_until(is_so: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Return as soon as it is so; LockstepError when it is not in time."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            raise LockstepError(f"waited {limit_s:.0f} s in vain until {what}")
        time.sleep(_POLL_S)


def await_found(find: Callable[[], Found | None], what: str) -> Found:
    """Return what is found as soon as it is there."""
    found: list[Found] = []

    def is_there() -> bool:
        seen = find()
        found.extend([seen] if seen else [])
        return bool(found)

    wait_until(is_there, what)
    return found[0]


def free_port() -> int:
    """Return a port that nobody listens on at the moment.

    It lies below those that the kernel gives to connections (32768 and up), which could take it before its user does.
    """
    while True:
        port = secrets.choice(_PORTS)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError as taken:
            if taken.errno != errno.EADDRINUSE:
                raise


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all its threads together, since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, proc(5)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
