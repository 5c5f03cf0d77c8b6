"""Files that somebody laid out for us, and directories in which they could, are refused with a sentence."""

import os
import stat
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
    ],
)
def test_what_is_not_a_plain_file_of_one_owner_is_refused(
    tmp_path: Path, make: Callable[[Path], object], problem: str
) -> None:
    make(tmp_path / "a.ring")
    with pytest.raises(BadRing, match=problem):
        open_ring(tmp_path / "a.ring")


def test_device_is_refused() -> None:
    with pytest.raises(BadRing, match="is no regular file"):
        open_ring(Path("/dev/zero"))


def test_refused_file_is_closed_again(tmp_path: Path) -> None:
    bad = forge(tmp_path / "bad.ring", lambda forged: forged.header.__setitem__("tag", 1 << 20))
    before = open_descriptors()
    for path in (tmp_path, bad, tmp_path / "missing"):
        with pytest.raises(BadRing):
            open_ring(path)
    assert open_descriptors() == before


def test_hostile_name_cannot_break_the_message(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\x1b[2J\n\xff.ring")
    path.touch(0o600)
    with pytest.raises(BadRing) as caught:
        open_ring(path)
    assert str(caught.value).isprintable()


def test_name_with_a_zero_is_refused() -> None:
    with pytest.raises(BadRing, match="embedded null byte"):
        open_ring(Path("a\0b"))


def test_read_beyond_the_end_is_a_bad_ring(tmp_path: Path) -> None:
    file = ForeignFile(forge(tmp_path / "a.ring"))
    os.truncate(tmp_path / "a.ring", 5000)
    assert len(file.read_at(4000, 1000)) == 1000
    with pytest.raises(BadRing, match="ends at byte 5000"):
        file.read_at(4000, 1001)
    file.close()


def test_short_reads_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ForeignFile(forge(tmp_path / "a.ring"))
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, into, at: whole(descriptor, [into[0][:7]], at))
    assert file.read_at(0, 100).tobytes() == (tmp_path / "a.ring").read_bytes()[:100]
    file.close()


def test_error_of_the_disk_is_a_bad_ring(tmp_path: Path) -> None:
    file = ForeignFile(forge(tmp_path / "a.ring"))
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


def test_uid_is_the_kernels_word(tmp_path: Path) -> None:
    with open_ring(forge(tmp_path / "a.ring")) as ring:
        assert ring.uid == os.geteuid()


@pytest.mark.needs_root
def test_uid_of_another_owner_is_seen(tmp_path: Path) -> None:
    os.chown(forge(tmp_path / "a.ring"), 12345, 12345)
    with open_ring(tmp_path / "a.ring") as ring:
        assert ring.uid == 12345


@pytest.mark.parametrize(
    ("mode", "is_good"), [(0o700, True), (0o755, True), (0o1777, True), (0o777, False), (0o770, False)]
)
def test_directory_that_others_may_write_must_be_sticky(tmp_path: Path, mode: int, is_good: bool) -> None:
    folder = tmp_path / "rings"
    folder.mkdir()
    folder.chmod(mode)
    assert stat.S_IMODE(folder.stat().st_mode) == mode
    if is_good:
        check_directory(folder)
        return
    with pytest.raises(BadRing, match="not sticky"):
        check_directory(folder)


def test_directory_that_is_a_link_a_file_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(BadRing, match="is no directory"):
            check_directory(tmp_path / name)
    with pytest.raises(BadRing, match="No such file"):
        check_directory(tmp_path / "missing")


@pytest.mark.needs_root
def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
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
        assert ring.read_records().enqueued["seq"].tolist() == [0, 1, 2]
