"""The head node of the fleet: one gateway process and one ClickHouse server process, as they run in production."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.fleet_layout import host_name
from lockstep.clock import SystemClock
from lockstep.control.database import open_control
from lockstep.control.tokens import create_token
from lockstep.errors import LockstepError
from lockstep.store.layout import Layout
from lockstep.store.migrations import migrate
from lockstep.store.store import Store, open_store
from testbed.clickhouse import ClickHouseServer

_LOCKSTEP = Path(sys.executable).with_name("lockstep")
_START_S = 60.0
_STOP_S = 15.0
_LOOK_S = 0.05


class Head:
    """Gateway and store over one directory; `with` starts and ends them."""

    def __init__(self, directory: Path) -> None:
        self.clickhouse = ClickHouseServer(directory / "clickhouse")
        self.port = 0
        self.store_pid: int | None = None  # None while it is away
        self._state = directory / "state"
        self._log = directory / "gateway.log"
        self._gateway: subprocess.Popen[bytes] | None = None
        self.store: Store

    def __enter__(self) -> "Head":
        try:
            self.start_store()
            self.store = open_store(self.clickhouse.url)
            migrate(self.store, Layout(self.store.database), SystemClock().now_ns())
            self._start_gateway()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_gateway()
        if hasattr(self, "store"):
            self.store.close()
        self.kill_store()

    def start_store(self) -> None:
        self.clickhouse.start()
        self.store_pid = self.clickhouse.pid

    def kill_store(self) -> None:
        self.store_pid = None
        self.clickhouse.kill()

    @property
    def gateway_pid(self) -> int:
        assert self._gateway is not None, "the gateway was not started"
        return self._gateway.pid

    @property
    def backlog_bytes(self) -> int:
        """What is acknowledged and not in the store yet: the gateway's log. Asking the gateway would be load."""
        total = 0
        for pattern in ("*.segment", "*.open"):
            for path in (self._state / "gateway").glob(pattern):
                with suppress(FileNotFoundError):  # inserted meanwhile
                    total += path.stat().st_size
        return total

    def make_tokens(self, hosts: Iterable[int]) -> dict[int, str]:
        """Return an ingest token for every host."""
        now_ns = SystemClock().now_ns()
        with open_control(self._control_url) as control:
            return {
                host: create_token(control, scope="ingest", host=host_name(host), name="bench", now_ns=now_ns)
                for host in hosts
            }

    def is_gateway_alive(self) -> bool:
        return self._gateway is not None and self._gateway.poll() is None

    def gateway_output(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def _control_url(self) -> str:
        return f"sqlite:///{self._state}/control.db"

    def _start_gateway(self) -> None:
        self._state.mkdir()
        self.port = _free_port()
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "LOCKSTEP_STATE_DIR": str(self._state),
            "LOCKSTEP_STORE_URL": self.clickhouse.url,
            "LOCKSTEP_API_LISTEN": f"127.0.0.1:{self.port}",
            "LOCKSTEP_LOG_LEVEL": "warning",
        }
        with self._log.open("wb") as log:
            self._gateway = subprocess.Popen(
                [str(_LOCKSTEP), "serve", "api"], env=environment, cwd="/", stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(lambda: not self.is_gateway_alive() or self._is_ready(), _START_S)
        if not self.is_gateway_alive():
            raise LockstepError(f"the gateway did not start: {self.gateway_output()[-2000:]}")

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _stop_gateway(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is None:
            return
        gateway.terminate()
        try:
            gateway.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            gateway.kill()
            gateway.wait()


def wait_until(is_so: Callable[[], object], limit_s: float) -> bool:
    """Return whether it became so within the limit."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all its threads together, since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, proc(5)


def machine_cpu_seconds() -> float:
    """Return the CPU time that all processes together have used, on all cores, since the machine began."""
    user, nice, system, _idle, _wait, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
