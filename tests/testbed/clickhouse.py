"""A real ClickHouse server on loopback, without Docker, for tests and benchmarks: start, kill, start again."""

import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from lockstep.errors import LockstepError
from lockstep.store.engine import forget_orphans
from tests.testbed.services import free_port

_START_TIMEOUT_S = 600


@dataclass
class ClickHouseServer:
    """One server process over one data directory; the ports stay the same over restarts.

    Those that are not given are none of the kernel's, which could give them away while the server is down.
    """

    directory: Path
    user: str = "lockstep"
    password: str = "secret"  # guards a server on loopback that lives for one test
    http_port: int = 0
    tcp_port: int = 0
    data: Path = field(init=False)
    _process: subprocess.Popen[bytes] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.data = self.directory / "data"
        self.data.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return self.url_for("lockstep")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def url_for(self, database: str) -> str:
        return f"http://{self.user}:{self.password}@127.0.0.1:{self.http_port}/{database}"

    def start(self) -> "ClickHouseServer":
        """Start the server as deploy/ does, orphaned tokens forgotten first, and return when it answers."""
        forget_orphans(self.data)
        self.http_port, self.tcp_port = self.http_port or free_port(), self.tcp_port or free_port()
        run = self.directory / "run"
        run.mkdir(exist_ok=True)
        self._write_config(run)
        command = [sys.executable, str(Path(__file__).with_name("chserve.py")), str(self.data), str(run)]
        log = open(self.directory / "server.log", "ab")  # noqa: SIM115  # the child keeps it
        self._process = subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        log.close()
        self.http_port, self.tcp_port = self._read_ports()
        self._wait_for_ping()
        return self

    def kill(self) -> None:
        """End it as a power cut would end the process: at once, in the middle of whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream:
                    stream.close()

    def __enter__(self) -> "ClickHouseServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _read_ports(self) -> tuple[int, int]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        ready = select.poll()  # not select(), which cannot watch a descriptor above 1,023
        ready.register(process.stdout, select.POLLIN)
        line = process.stdout.readline().decode().split() if ready.poll(_START_TIMEOUT_S * 1_000) else []
        if len(line) != 2:
            self.kill()
            log = (self.directory / "server.log").read_text(errors="replace")[-2000:]
            raise LockstepError(f"the ClickHouse server did not start: {log}")
        return int(line[0]), int(line[1])

    def _wait_for_ping(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                with urlopen(f"http://127.0.0.1:{self.http_port}/ping", timeout=5) as answer:
                    if answer.read() == b"Ok.\n":
                        return
            except (URLError, OSError):
                pass
            time.sleep(0.02)
        raise LockstepError("the ClickHouse server listens but does not answer")

    def _write_config(self, run: Path) -> None:
        open_to_all = "<networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>"
        own_session = "<networks><ip>::1</ip></networks><profile>default</profile><quota>default</quota>"
        (run / "users.xml").write_text(
            "<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users>"
            f"<{self.user}><password>{self.password}</password>{open_to_all}"
            f"<access_management>1</access_management></{self.user}>"
            # The engine's own session logs in as default; from outside loopback v6 nobody can.
            f"<default><password></password>{own_session}</default></users></clickhouse>"
        )
        (run / "config.xml").write_text(
            "<clickhouse><listen_host>127.0.0.1</listen_host>"
            f"<http_port>{self.http_port}</http_port><tcp_port>{self.tcp_port}</tcp_port>"
            "<users_config>users.xml</users_config>"
            "<merge_tree><old_parts_lifetime>480</old_parts_lifetime></merge_tree>"
            f"<backups><allowed_path>{self.directory / 'backups'}/</allowed_path></backups></clickhouse>"
        )
