"""Real processes with real sockets, in this network namespace and in one of their own, are found in /proc."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pytest

from collector.sources.connections import ConnectionsSource
from tests.builders import SECOND, T0
from tests.waiting import eventually

RANK = """
import ctypes, fcntl, socket, struct, sys, threading

if sys.argv[1] == "apart":
    assert ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: up and running
server = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(server.getsockname())
receiver, _ = server.accept()

def drain():
    while receiver.recv(65536):
        pass

threading.Thread(target=drain, daemon=True).start()
print(sender.getsockname()[1], flush=True)
for _ in sys.stdin:
    sender.sendall(bytes(1 << 20))
    print("sent", flush=True)
"""
LINES = """\
n1:{pid}:{pid} [0] NCCL INFO NCCL version 2.28.9+cuda13.0
n1:{pid}:{pid} [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>
n1:{pid}:{pid} [0] NCCL INFO comm 0xaa rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1 commId 0x2a - Init START
n1:{pid}:{pid} [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""


class LiveRank:
    """A process that sends when it is told to, and what a source that looks at this very host says of its job."""

    def __init__(self, process: "subprocess.Popen[str]", job: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin: IO[str] = process.stdin
        self._stdout: IO[str] = process.stdout
        self.pid, self._job, self._now_ns = process.pid, job, T0
        self._port = int(self._stdout.readline())
        self._source = ConnectionsSource("h0")
        self.rows: list[dict[str, Any]] = []

    def look(self) -> list[dict[str, Any]]:
        self._now_ns += 5 * SECOND
        reading = self._source.read(self._now_ns, ())
        self.rows = [row for row in reading.tables["connections"].to_pylist() if row["job"] == self._job]
        return self.rows

    def is_seen_to_send(self) -> bool:
        self._stdin.write("send\n")
        self._stdin.flush()
        assert self._stdout.readline() == "sent\n"
        return any(row["sport"] == self._port for row in self.look())


@contextmanager
def live_rank(log: Path, where: str = "here") -> Iterator[LiveRank]:
    job = f"live-{uuid4().hex[:8]}"
    environment = os.environ | {"NCCL_DEBUG_FILE": str(log), "RANK": "0", "LOCKSTEP_JOB": job}
    command, pipe = [sys.executable, "-c", RANK, where], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as process:
        yield LiveRank(process, job)
        process.kill()


@pytest.mark.needs_root
@pytest.mark.parametrize("where", ["here", "apart"])
def test_connection_of_a_real_process_is_found_also_in_a_namespace_of_its_own(tmp_path: Path, where: str) -> None:
    with live_rank(tmp_path / "nccl.%p.log", where) as rank:
        (tmp_path / f"nccl.{rank.pid}.log").write_text(LINES.format(pid=rank.pid))
        (row,) = rank.look()
        assert (row["comm"], row["rank"], row["peer"], row["nic"], row["sport"]) == (0x2A, 0, 1, "lo", None)
        eventually(rank.is_seen_to_send)
        (row,) = rank.rows
        assert (row["comm"], row["channel"], row["nic"], row["source"]) == (0x2A, 0, "lo", "nccl_log")
        assert (row["local"], row["remote"]) == ("127.0.0.1", "127.0.0.1")
