"""The head node of the fleet: one gateway process and one ClickHouse server process, as they run in production."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from benchmarks.fleet_layout import host_name
from lockstep.clock import SystemClock
from lockstep.control.database import open_control
from lockstep.control.tokens import create_token
from lockstep.store.layout import Layout
from lockstep.store.migrations import migrate
from lockstep.store.store import Store, open_store
from testbed.clickhouse import ClickHouseServer
from testbed.services import Service, free_port

_LOOK_S = 0.05


class Head:
    """Gateway and store over one directory; `with` starts and ends them."""

    def __init__(self, directory: Path) -> None:
        self.clickhouse = ClickHouseServer(directory / "clickhouse")
        self.port = 0
        self.store_pid: int | None = None  # None while it is away
        self._state = directory / "state"
        self._log = directory / "gateway.log"
        self._gateway: Service | None = None
        self.store: Store

    def __enter__(self) -> "Head":
        try:
            self.start_store()
            self.store = open_store(self.clickhouse.url)
            migrate(self.store, Layout(self.store.database), SystemClock().now_ns())
            self._gateway = self._start_gateway()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_gateway_alive() and self._gateway:
            self._gateway.stop()
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
        return self._gateway is not None and self._gateway.is_alive()

    def gateway_output(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def _control_url(self) -> str:
        return f"sqlite:///{self._state}/control.db"

    def _start_gateway(self) -> Service:
        self._state.mkdir()
        self.port = free_port()
        settings = {
            "LOCKSTEP_STATE_DIR": str(self._state),
            "LOCKSTEP_STORE_URL": self.clickhouse.url,
            "LOCKSTEP_API_LISTEN": f"127.0.0.1:{self.port}",
            "LOCKSTEP_LOG_LEVEL": "warning",
        }
        return Service(("serve", "api"), settings, f"http://127.0.0.1:{self.port}/readyz", self._log).start()


def wait_until(is_so: Callable[[], object], limit_s: float) -> bool:
    """Return whether it became so within the limit."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def machine_cpu_seconds() -> float:
    """Return the CPU time that all processes together have used, on all cores, since the machine began."""
    user, nice, system, _idle, _wait, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
