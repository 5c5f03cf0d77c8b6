"""Who holds a ring file is found by lock and open file, on real processes and on imitated ones."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collector.kernel.process import RingHolders, read_membership, read_stat
from lockstep.errors import NotPresent
from lockstep.supervision import Membership

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
    command = [sys.executable, "-c", HOLD, str(file), how]
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
