"""Ring files and processes as the kernel shows them below a root, for tests of the source that follows them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from collector.sources.nccl_rings import NcclRingsSource
from lockstep.batches import DetailRequest
from lockstep.clock import SystemClock
from tests.collector.nccl.forging import Forged
from tests.conftest import REPO

USUAL = Path("/run/lockstep/rings")
_CLOCK = SystemClock()
_PLAY = (sys.executable, "-m", "tests.fixtures.live_job")
_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


class Follower:
    """Reads a source again and again, at the host's time, and keeps all that it gave."""

    def __init__(self, source: NcclRingsSource) -> None:
        self.source = source
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.dropped = self.folded = 0
        self.cost_ns: int | None = None  # of the last reading
        self.paid_ns = 0  # of all
        self.watermark_ns = 0
        self.checkpoint: bytes | None = None
        self.skipped_ns = 0  # how far its time is ahead of the host's

    def now_ns(self) -> int:
        return _CLOCK.now_ns() + self.skipped_ns

    def read(self, *requests: DetailRequest) -> Mapping[str, pa.Table]:
        reading = self.source.read(self.now_ns(), requests)
        for name, table in reading.tables.items():
            self.rows.setdefault(name, []).extend(table.to_pylist())
        self.dropped, self.folded = self.dropped + reading.dropped, self.folded + reading.folded
        self.cost_ns, self.watermark_ns = reading.plugin_cost_ns, reading.watermark_ns
        self.checkpoint = reading.checkpoint
        self.paid_ns += reading.plugin_cost_ns or 0
        return reading.tables

    def skip(self, seconds: float) -> None:
        """Let the source believe that so much time has passed."""
        self.skipped_ns += round(seconds * 1e9)

    def has(self, table: str) -> bool:
        """Read a second later; return whether there are rows of this table by now."""
        self.skip(1)
        self.read()
        return bool(self.rows.get(table))

    def refusals(self) -> list[str]:
        return [event["message"] for event in self.rows.get("events", []) if event["kind"] == "ring_refused"]


def show_process(root: Path, pid: int, uid: int = 0, environment: str = "", cgroup: str = "0::/\n") -> Path:
    """Make a process below `root/proc` as the kernel would show it."""
    folder = root / "proc" / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\n")
    (folder / "environ").write_text(environment)
    (folder / "cgroup").write_text(cgroup)
    (folder / "ns" / "mnt").symlink_to("mnt:[1]")
    return folder


def make_root(root: Path) -> Path:
    """Make a host without processes and return its directory for ring files."""
    (root / "proc" / "self" / "ns").mkdir(parents=True)
    (root / "proc" / "self" / "ns" / "mnt").symlink_to("mnt:[1]")
    directory = root / USUAL.relative_to("/")
    directory.mkdir(parents=True)
    directory.chmod(0o1777)
    return directory


@contextmanager
def held(path: Path, **claims: bytes | int) -> Iterator[int]:
    """Write a ring file that is right but for these claims, and let a process hold it; give the process's id."""
    forged = Forged()
    for name, value in claims.items():
        forged.header[name] = value
    forged.write(path)
    command = [sys.executable, "-ISc", _HOLD, str(path)]  # isolated and without site: it starts in no time
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.kill()


@contextmanager
def recording(
    library: Path, folder: Path, *before: str, count: str = "", **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """Run a rank that records through the real plugin; `before` stands before its command, such as unshare.

    With a count it does so many operations whenever `do_more` says so, and rests otherwise.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKSTEP_", "SLURM_"))}
    reported = {"LOCKSTEP_RING_DIR": str(folder), "LOCKSTEP_DETAIL": "transfers", "LOCKSTEP_RING_MIB": "4"}
    command = [*before, *_PLAY, str(library), *([count] if count else [])]
    whose, pipe = {**ours, **reported, **environment}, subprocess.PIPE
    with subprocess.Popen(command, cwd=REPO, env=whose, stdin=pipe, stdout=pipe, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "running\n"
        yield job
        job.kill()


def do_more(job: "subprocess.Popen[str]") -> None:
    """Have a rank that rests do its next operations; return when it rests again."""
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.write("more\n")
    job.stdin.flush()
    assert job.stdout.readline() == "rested\n"
