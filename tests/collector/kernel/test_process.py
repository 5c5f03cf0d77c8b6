"""Who holds a ring file is found by lock and open file, on real processes and on imitated ones."""

import os
import socket
import struct
import subprocess
import sys
import time
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
    read_stat,
)
from collector.supervision import Membership
from lockstep.errors import NotPresent
from tests.descriptors import open_descriptors
from tests.waiting import eventually

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
    imitate_locks(tmp_path, *(f"{pid}: POSIX  ADVISORY  WRITE {pid} 00:1a:{pid} 0 EOF" for pid in (41, 42, 43)))
    imitate_open(tmp_path, 41, "socket:[1]", "/run/lockstep/rings/1-2.ring (deleted)")
    imitate_open(tmp_path, 42, "/dev/shm/lockstep/1-2.ring")
    imitate_open(tmp_path, 43, "/tmp/1-2.ring")
    assert RingHolders(tmp_path)() == {41, 42}
    imitate_locks(tmp_path, *OTHER_LOCKS)
    assert RingHolders(tmp_path)() == set()


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


def test_every_process_is_looked_at_where_there_is_no_list_of_locks(tmp_path: Path) -> None:
    with pytest.raises(NotPresent, match=f"no processes in {tmp_path}/proc"):
        RingHolders(tmp_path)()
    imitate_open(tmp_path, 42, "/dev/shm/lockstep/1-2.ring")
    imitate_open(tmp_path, 43, "/dev/null")
    (tmp_path / "proc/self").mkdir()
    assert RingHolders(tmp_path)() == {42}


def test_rank_that_was_found_is_not_looked_at_again_while_it_holds_its_lock(tmp_path: Path) -> None:
    imitate_locks(tmp_path, "1: POSIX  ADVISORY  WRITE 42 00:1a:7 0 EOF")
    imitate_open(tmp_path, 42, "/dev/shm/lockstep/1-2.ring")
    holders = RingHolders(tmp_path)
    assert holders() == {42}
    (tmp_path / "proc/42/fd/0").unlink()
    assert holders() == {42}
    imitate_locks(tmp_path)
    assert holders() == set()


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


def test_rank_that_records_with_the_real_plugin_is_found(live_rings: Path) -> None:
    (pid,) = RingHolders(Path("/"), [live_rings])()
    assert read_membership(Path("/proc"), pid) == Membership(3, "job 7")
    stat = read_stat(Path("/proc"), os.getpid())
    assert (stat.pid, stat.state) == (os.getpid(), "R")
    assert stat.start_ticks > 0


REPO = Path(__file__).resolve().parents[3]
MESSAGE = struct.Struct("=IHHII IIIIHH IIQ iiIIii")  # netlink, connector, event, exit with its parent


def exit_message(*, what: int = 0x8000_0000, thread: int = 42, process: int = 42, status: int = 9) -> bytes:
    """Return what the kernel sends when a process ends."""
    return MESSAGE.pack(76, 3, 0, 0, 0, 1, 1, 0, 0, 40, 0, what, 0, 77, thread, process, status, 17, 1, 1)


@pytest.fixture
def connector() -> Iterator[ProcConnector]:
    with closing(ProcConnector()) as opened:
        yield opened


def test_exit_is_decoded_with_its_time_and_everything_else_is_none() -> None:
    assert decode_exit(exit_message()) == Exit(pid=42, monotonic_ns=77, status=9)
    others = [exit_message(thread=43), exit_message(what=1), exit_message(what=0)]
    assert [decode_exit(message) for message in (*others, exit_message()[:51], b"", b"\xff" * 40)] == [None] * 6


def test_status_says_code_or_signal() -> None:
    statuses = {0: (0, None, False), 0x300: (3, None, False), 9: (None, 9, False), 0x80 | 11: (None, 11, True)}
    ends = [Exit(42, 0, status) for status in statuses]
    assert {end.status: (end.exit_code, end.signal, end.dumped_core) for end in ends} == statuses


@pytest.mark.needs_root
def test_real_exits_are_reported_once_and_threads_are_not(connector: ProcConnector) -> None:
    threads = "import threading; [threading.Thread(target=int).start() for _ in range(20)]; raise SystemExit(5)"
    killed = subprocess.Popen(["sleep", "1000"])
    killed.kill()
    killed.wait()
    threaded = subprocess.Popen([sys.executable, "-ISc", threads])
    threaded.wait()
    reported = [(end.pid, end.status) for end in connector.read() if end.pid in (killed.pid, threaded.pid)]
    assert reported == [(killed.pid, 9), (threaded.pid, 5 << 8)]
    assert not [end for end in connector.read() if end.pid in (killed.pid, threaded.pid)]
    connector.close()  # and the fixture again


@pytest.mark.needs_root
def test_too_many_exits_between_two_reads_are_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "_NOTICE_BYTES", 1)  # the kernel makes the smallest of it
    with closing(ProcConnector()) as connector:
        subprocess.run(["sh", "-c", "i=0; while [ $i -lt 100 ]; do (exit 1); i=$((i+1)); done"], check=True)
        assert 0 < len(connector.read()) < 100
        assert connector.overruns > 0
        assert subprocess.run(["true"]).returncode == 0
        assert connector.read()  # and it goes on


@pytest.mark.needs_root
def test_exit_that_another_process_sends_is_not_believed(connector: ProcConnector) -> None:
    port = connector._netlink._socket.getsockname()[0]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11) as forger:
        forger.bind((0, 0))
        forger.sendto(exit_message(process=os.getpid(), thread=os.getpid()), (port, 0))
    assert os.getpid() not in [end.pid for end in connector.read()]


@pytest.mark.needs_root
@pytest.mark.parametrize("namespace", [["--net"], ["--pid", "--fork"]], ids=["network", "processes"])
def test_container_with_its_own_namespace_gets_a_reason(namespace: list[str]) -> None:
    ask = "from collector.kernel.process import ProcConnector; ProcConnector()"
    done = subprocess.run(
        ["unshare", *namespace, sys.executable, "-c", ask], cwd=REPO, capture_output=True, text=True, timeout=60
    )
    assert "NotPresent: the kernel does not report exits to us" in done.stderr


def end(process: "subprocess.Popen[bytes]", ends: EndTimes) -> int:
    """Kill a process and return when that was noticed."""
    process.kill()
    process.wait()
    noticed: list[int] = []

    def is_noticed() -> bool:
        noticed.extend(ended_ns for ended_ns in [ends.take(process.pid)] if ended_ns)
        return bool(noticed)

    eventually(is_noticed)
    return noticed[0]


def test_ends_are_timed_when_they_happen_and_reported_once() -> None:
    with closing(EndTimes()) as ends:
        first, second = (subprocess.Popen(["sleep", "1000"]) for _ in range(2))
        for process in (second, first):
            ends.watch(process.pid)
        assert ends.take(first.pid) is None
        before_ns = time.monotonic_ns()
        assert before_ns <= end(first, ends) < end(second, ends) <= time.monotonic_ns()
        assert ends.take(first.pid) is None


def test_process_that_is_gone_already_is_never_reported_and_nothing_stays_open() -> None:
    before = len(open_descriptors())
    with closing(EndTimes()) as ends, subprocess.Popen(["true"]) as process:
        process.wait()
        ends.watch(process.pid)
        ends.watch(os.getpid())
        assert ends.take(process.pid) is None
    assert len(open_descriptors()) == before
