"""Processes that use NCCL as /proc shows them below a folder, and what their kernel says of sockets."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from collector.connections.flows import Kernel
from collector.kernel.inet_diag import TcpSocket
from collector.kernel.rdma import QueuePair
from collector.sources.connections import ConnectionsSource
from lockstep.errors import NotPresent
from tests.builders import SECOND, T0

REAL_LOG = Path(__file__).parents[2] / "data/nccl_log/rank1_nccl_2.28.9_socket.log"
REAL_PID = 417  # of the process that wrote it


def imitate_process(
    root: Path,
    pid: int = REAL_PID,
    environ: Mapping[str, str] | None = None,
    start_ticks: int = 100,
    sockets: Iterable[int] = (),
    maps: str = "",
    namespace_pid: int | None = None,
) -> Path:
    """Make a process; its own root is the folder `root` in what is returned."""
    folder = root / f"proc/{pid}"
    for name in ("fd", "root/tmp", "cwd"):
        (folder / name).mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (python) S 1 {'0 ' * 17}{start_ticks} 0\n")
    uids = "\t".join([str(os.getuid())] * 4)
    (folder / "status").write_text(f"Name:\tpython\nUid:\t{uids}\nNSpid:\t{pid}\t{namespace_pid or pid}\n")
    (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in (environ or {}).items()))
    (folder / "maps").write_text(maps)
    for number, inode in enumerate(sockets):
        (folder / f"fd/{number}").symlink_to(f"socket:[{inode}]")
    return folder


def rank_with_log(root: Path, text: str | bytes, pid: int = REAL_PID, **about: Any) -> Path:
    """Make a rank whose log is /tmp/nccl.log in its own root; return the log."""
    environ = {"NCCL_DEBUG_FILE": "/tmp/nccl.log", "RANK": "1", "LOCKSTEP_JOB": "7", **about.pop("environ", {})}
    log = imitate_process(root, pid, environ, **about) / "root/tmp/nccl.log"
    log.write_bytes(text if isinstance(text, bytes) else text.encode())
    return log


def tcp(inode: int = 1, **about: Any) -> TcpSocket:
    values: dict[str, Any] = {"local": "127.0.0.1", "lport": 40_000, "remote": "127.0.0.1", "rport": 50_000}
    return TcpSocket(**({"inode": inode, "cookie": inode, "bytes_sent": 0} | values | about))


def pair(lqpn: int, rqpn: int | None, pid: int = REAL_PID, device: str = "mlx5_0", **about: Any) -> QueuePair:
    values: dict[str, Any] = {"port": 1, "state": "RTS", "type": "RC"} | about
    return QueuePair(device=device, lqpn=lqpn, rqpn=rqpn, pid=pid, **values)


class Host:
    """A host that is read look by look, with a kernel that says what the test puts here."""

    def __init__(self, root: Path, **about: Any) -> None:
        (root / "proc").mkdir(exist_ok=True)
        self.sockets: list[TcpSocket] | NotPresent = []
        self.pairs: list[QueuePair] | NotPresent = []
        self.addresses: dict[str, str] = {"127.0.0.1": "lo"}
        kernel = Kernel(lambda _: _said(self.sockets), lambda _: self.addresses, lambda: _said(self.pairs))
        self.source = ConnectionsSource("h0", root, kernel=kernel, **about)
        self.now_ns = T0

    def look(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the rows and the events of the next look."""
        self.now_ns += 5 * SECOND
        self.reading = self.source.read(self.now_ns, ())
        tables = self.reading.tables
        return tables["connections"].to_pylist(), tables["events"].to_pylist()

    def rows(self) -> list[dict[str, Any]]:
        return self.look()[0]

    def events(self) -> list[dict[str, Any]]:
        return self.look()[1]


def _said(answer: list[Any] | NotPresent) -> list[Any]:
    if isinstance(answer, NotPresent):
        raise answer
    return answer
