"""Files that somebody laid out for us, and directories in which they could, are refused with a sentence."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.kernel.foreign_file import MAX_FILE_BYTES, ForeignFile, check_directory
from collector.nccl.ringfile import open_ring
from lockstep.errors import BadRing
from tests.collector.nccl.forging import Forged, forge
from tests.descriptors import open_descriptors


def make_link(path: Path) -> None:
    path.symlink_to(forge(path.with_suffix(".real")))


def make_second_name(path: Path) -> None:
    path.hardlink_to(forge(path.with_suffix(".real")))


def make_huge(path: Path) -> None:
    forge(path)
    os.truncate(path, MAX_FILE_BYTES + 1)


def make_writable_by_all(path: Path) -> None:
    forge(path).chmod(0o666)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "No such file"),
        (make_link, "Too many levels of symbolic links"),
        (make_second_name, "has 2 names"),
        (os.mkfifo, "is no regular file"),
        (os.mkdir, "is no regular file"),
        (make_huge, f"has {MAX_FILE_BYTES + 1} bytes"),
        (make_writable_by_all, "can be written by others"),
        (lambda path: forge(path, lambda forged: forged.header.__setitem__("tag", 1 << 20)), "has the tag"),
    ],
)
def test_what_is_not_a_plain_file_of_one_owner_is_refused_and_closed_again(
    tmp_path: Path, make: Callable[[Path], object], problem: str
) -> None:
    make(tmp_path / "a.ring")
    before = open_descriptors()
    with pytest.raises(BadRing, match=problem):
        open_ring(tmp_path / "a.ring")
    assert open_descriptors() == before


def test_device_is_refused_and_a_hostile_name_cannot_break_the_message(tmp_path: Path) -> None:
    with pytest.raises(BadRing, match="is no regular file"):
        open_ring(Path("/dev/zero"))
    with pytest.raises(BadRing, match="embedded null byte"):
        open_ring(Path("a\0b"))
    path = tmp_path / os.fsdecode(b"\x1b[2J\n\xff.ring")
    path.touch(0o600)
    with pytest.raises(BadRing) as caught:
        open_ring(path)
    assert str(caught.value).isprintable()


def test_short_reads_are_put_together_and_one_beyond_the_end_or_of_a_closed_file_is_a_bad_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ForeignFile(forge(tmp_path / "a.ring"))
    whole = os.preadv
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", lambda descriptor, into, at: whole(descriptor, [into[0][:7]], at))
        assert file.read_at(0, 100).tobytes() == (tmp_path / "a.ring").read_bytes()[:100]
    os.truncate(tmp_path / "a.ring", 5000)
    assert len(file.read_at(4000, 1000)) == 1000
    with pytest.raises(BadRing, match="ends at byte 5000"):
        file.read_at(4000, 1001)
    file.close()
    for act in (lambda: file.read_at(0, 1), lambda: file.write_at(0, b"x"), file.lock_owner):
        with pytest.raises(BadRing):
            act()


LOCK = """
import fcntl, struct, sys
file = open(sys.argv[1], "r+b")
fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi0q", fcntl.F_WRLCK, 0, 0, 0, 0))
print("locked", flush=True)
sys.stdin.read()
"""


def test_owner_is_the_process_that_holds_the_lock_and_nobody_when_it_is_killed(tmp_path: Path) -> None:
    path = forge(tmp_path / "a.ring")
    with open_ring(path) as ring:
        assert ring.owner() is None
        command = [sys.executable, "-c", LOCK, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "locked\n"
            assert ring.owner() == writer.pid
            writer.kill()
            writer.wait()
        assert ring.owner() is None


@pytest.mark.needs_root
def test_uid_is_the_kernels_word(tmp_path: Path) -> None:
    path = forge(tmp_path / "a.ring")
    for uid in (os.geteuid(), 12345):
        os.chown(path, uid, uid)
        with open_ring(path) as ring:
            assert ring.uid == uid


@pytest.mark.needs_root
def test_directory_must_be_a_real_one_of_ours_and_sticky_where_others_may_write(tmp_path: Path) -> None:
    folder = tmp_path / "rings"
    folder.mkdir()
    for mode in (0o700, 0o755, 0o1777):
        folder.chmod(mode)
        check_directory(folder)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").touch()
    refused = {"link": "is no directory", "file": "is no directory", "missing": "No such file"}
    for mode in (0o777, 0o770):
        folder.chmod(mode)
        for name, problem in (refused | {"rings": "not sticky"}).items():
            with pytest.raises(BadRing, match=problem):
                check_directory(tmp_path / name)
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(BadRing, match="belongs to uid 12345"):
        check_directory(tmp_path)


def test_file_that_grows_is_read_as_far_as_it_said(tmp_path: Path) -> None:
    forged = Forged()
    forged.append(1, 3)
    path = forged.write(tmp_path / "a.ring")
    os.truncate(path, len(forged.content) + 12345)
    with open_ring(path) as ring:
        os.truncate(path, MAX_FILE_BYTES * 4)
        assert ring.read_records().sorted.enqueued["seq"].tolist() == [0, 1, 2]
