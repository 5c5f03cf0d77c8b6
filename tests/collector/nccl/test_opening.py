"""Files that somebody laid out for us, and directories in which they could, are refused with a sentence."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.kernel.foreign_file import MAX_FILE_BYTES, ForeignFile, check_directory
from collector.nccl.ringfile import open_ring
from lockstep.errors import BadRing
from tests.collector.nccl.forging import Forged, forge
from tests.collector.sources.imitated_rings import held
from tests.descriptors import open_descriptors

UNFIT: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda path: None, "No such file"),
    "link": (lambda path: path.symlink_to(forge(path.with_suffix(".real"))), "Too many levels of symbolic links"),
    "twin": (lambda path: path.hardlink_to(forge(path.with_suffix(".real"))), "has 2 names"),
    "fifo": (os.mkfifo, "is no regular file"),
    "folder": (os.mkdir, "is no regular file"),
    "huge": (lambda path: os.truncate(forge(path), MAX_FILE_BYTES + 1), f"has {MAX_FILE_BYTES + 1} bytes"),
    "open": (lambda path: forge(path).chmod(0o666), "can be written by others"),
    "tag": (lambda path: forge(path, lambda forged: forged.header.__setitem__("tag", 1 << 20)), "has the tag"),
    "/dev/zero": (lambda path: None, "is no regular file"),
    "a\0b": (lambda path: None, "embedded null byte"),
    os.fsdecode(b"\x1b[2J\n\xff"): (Path.touch, "has 0 bytes"),
}


def test_what_is_not_a_plain_file_of_one_owner_is_refused_and_closed_again_whatever_its_name(tmp_path: Path) -> None:
    before = open_descriptors()
    for name, (make, problem) in UNFIT.items():
        make(tmp_path / name)
        with pytest.raises(BadRing, match=problem) as caught:
            open_ring(tmp_path / name)
        assert str(caught.value).isprintable()
    assert open_descriptors() == before


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


def test_owner_is_the_process_that_holds_the_lock_and_nobody_when_it_is_killed(tmp_path: Path) -> None:
    with open_ring(forge(tmp_path / "a.ring")) as ring:
        assert ring.owner() is None
        with held(tmp_path / "a.ring") as pid:
            assert ring.owner() == pid
        assert ring.owner() is None


@pytest.mark.needs_root
def test_uid_is_the_kernels_word_and_a_directory_is_ours_and_sticky_where_others_may_write(tmp_path: Path) -> None:
    path = forge(tmp_path / "a.ring")
    for uid in (os.geteuid(), 12345):
        os.chown(path, uid, uid)
        with open_ring(path) as ring:
            assert ring.uid == uid
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
