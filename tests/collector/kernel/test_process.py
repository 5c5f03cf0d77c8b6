"""Who holds a ring file is found by lock and open file, on real processes and on imitated ones."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from collector.kernel import netlink
from collector.kernel.process import (
    EndTimes,
    Exit,
    ProcConnector,
    RingHolders,
    decode_exit,
    read_membership,
)
from collector.supervision import Membership
from lockstep.errors import NotPresent
from tests.descriptors import open_descriptors

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "wb")
if sys.argv[2] == "lock":
    fcntl.lockf(file, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holder(file: Path, how: str = "lock") -> Iterator[int]:
    """A process that has the file open, and locked as the plugin locks its ring file."""
    command = [sys.executable, "-ISc", HOLD, str(file), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def imitate_locks(root: Path, *lines: str) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/locks").write_text("".join(f"{line}\n" for line in lines))


def imitate_open(root: Path, pid: int, *targets: str) -> None:
    folder = root / "proc" / str(pid) / "fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(targets):
        (folder / str(number)).symlink_to(target)


def test_process_that_locks_a_ring_in_the_directory_is_found_until_it_ends(tmp_path: Path) -> None:
    rings, others = tmp_path / "rings", tmp_path / "rings-of-others"
    rings.mkdir()
    others.mkdir()
    holders = RingHolders(Path("/"), [rings])
    with (
        holder(rings / "7-100.ring") as first,
        holder(rings / "8-100.ring") as second,
        holder(rings / "9-100.ring", "open"),
        holder(rings / "7-100.log"),
        holder(others / "7-100.ring"),
    ):
        assert holders() == {first, second}
        assert holders() == {first, second}
    assert holders() == set()


def test_usual_directories_are_looked_at_a_removed_file_counts_and_other_locks_name_nobody(tmp_path: Path) -> None:
    holders = RingHolders(tmp_path)
    with pytest.raises(NotPresent, match=f"no processes in {tmp_path}/proc"):
        holders()
    imitate_open(tmp_path, 41, "socket:[1]", "/run/lockstep/rings/1-2.ring (deleted)")
    imitate_open(tmp_path, 42, "/dev/shm/lockstep/1-2.ring")
    imitate_open(tmp_path, 43, "/tmp/1-2.ring")
    (tmp_path / "proc/self").mkdir()
    assert RingHolders(tmp_path)() == {41, 42}, "every process is looked at where there is no list of locks"
    imitate_locks(tmp_path, *(f"{pid}: POSIX  ADVISORY  WRITE {pid} 00:1a:{pid} 0 EOF" for pid in (41, 42, 43)))
    assert holders() == {41, 42}
    (tmp_path / "proc/42/fd/0").unlink()
    assert holders() == {41, 42}, "who was found is not looked at again while it holds its lock"
    imitate_locks(tmp_path, *OTHER_LOCKS)
    assert holders() == RingHolders(tmp_path)() == set()


OTHER_LOCKS = [
    "1: FLOCK  ADVISORY  WRITE 42 00:1a:7 0 EOF",
    "1: POSIX  ADVISORY  READ 42 00:1a:7 0 EOF",
    "1: POSIX  ADVISORY  WRITE 42 00:1a:7 10 20",
    "1: -> POSIX  ADVISORY  WRITE 42 00:1a:7 0 EOF",
    "1: POSIX  ADVISORY  WRITE -1 00:1a:7 0 EOF",
    "1: POSIX  ADVISORY  WRITE 44 00:1a:7 0 EOF",  # it ended while we looked
    "garbage \x00 \x1b",
    "",
]


def test_environment_says_rank_and_job(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    for environ, member in {
        "RANK=3\0SLURM_PROCID=9\0LOCKSTEP_JOB=a\0SLURM_JOB_ID=b": Membership(3, "a"),
        "SLURM_PROCID=0\0TORCHELASTIC_RUN_ID=run": Membership(0, "run"),
        "RANK=\0OMPI_COMM_WORLD_RANK=2": Membership(2),
        **dict.fromkeys(("RANK=4294967296\0", f"RANK={'9' * 20}\0", "RANK=³\0", ""), Membership()),
    }.items():
        (tmp_path / "42/environ").write_text(environ)
        assert read_membership(tmp_path, 42) == member


REPO = Path(__file__).resolve().parents[3]
MESSAGE = struct.Struct("=IHHII IIIIHH IIQ iiIIii")  # netlink, connector, event, exit with its parent


def exit_message(*, what: int = 0x8000_0000, thread: int = 42, process: int = 42, status: int = 9) -> bytes:
    """Return what the kernel sends when a process ends."""
    return MESSAGE.pack(76, 3, 0, 0, 0, 1, 1, 0, 0, 40, 0, what, 0, 77, thread, process, status, 17, 1, 1)


def test_exit_is_decoded_with_its_time_and_everything_else_is_none() -> None:
    assert decode_exit(exit_message()) == Exit(pid=42, monotonic_ns=77, status=9)
    others = [exit_message(thread=43), exit_message(what=1), exit_message(what=0)]
    assert [decode_exit(message) for message in (*others, exit_message()[:51], b"", b"\xff" * 40)] == [None] * 6


def test_status_says_code_or_signal() -> None:
    statuses = {0: (0, None, False), 0x300: (3, None, False), 9: (None, 9, False), 0x80 | 11: (None, 11, True)}
    ends = [Exit(42, 0, status) for status in statuses]
    assert {end.status: (end.exit_code, end.signal, end.dumped_core) for end in ends} == statuses


@pytest.mark.needs_root
def test_real_exits_are_reported_once_and_threads_are_not() -> None:
    connector = ProcConnector()
    threads = "import threading; [threading.Thread(target=int).start() for _ in range(20)]; raise SystemExit(5)"
    killed = subprocess.Popen(["sleep", "1000"])
    killed.kill()
    killed.wait()
    threaded = subprocess.Popen([sys.executable, "-ISc", threads])
    threaded.wait()
    reported = [(end.pid, end.status) for end in connector.read() if end.pid in (killed.pid, threaded.pid)]
    assert reported == [(killed.pid, 9), (threaded.pid, 5 << 8)]
    assert not [end for end in connector.read() if end.pid in (killed.pid, threaded.pid)]
    connector.close()
    connector.close()  # once more does no harm


@pytest.mark.needs_root
def test_too_many_exits_between_two_reads_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "_NOTICE_BYTES", 1)  # the kernel makes the smallest of it
    with closing(ProcConnector()) as connector:
        subprocess.run(["sh", "-c", "i=0; while [ $i -lt 100 ]; do (exit 1); i=$((i+1)); done"], check=True)
        assert 0 < len(connector.read()) < 100
        assert connector.overruns > 0
        subprocess.run(["true"], check=True)
        assert connector.read(), "it goes on"


@pytest.mark.needs_root
@pytest.mark.parametrize("namespace", [["--net"], ["--pid", "--fork"]], ids=["network", "processes"])
def test_container_with_its_own_namespace_gets_a_reason(namespace: list[str]) -> None:
    ask = "from collector.kernel.process import ProcConnector; ProcConnector()"
    done = subprocess.run(
        ["unshare", *namespace, sys.executable, "-c", ask], cwd=REPO, capture_output=True, text=True, timeout=60
    )
    assert "NotPresent: the kernel does not report exits to us" in done.stderr


def test_process_that_is_gone_already_is_never_reported_and_nothing_stays_open() -> None:
    before = len(open_descriptors())
    with closing(EndTimes()) as ends, subprocess.Popen(["true"]) as process:
        process.wait()
        ends.watch(process.pid)
        ends.watch(os.getpid())
        assert ends.take(process.pid) is None
    assert len(open_descriptors()) == before
