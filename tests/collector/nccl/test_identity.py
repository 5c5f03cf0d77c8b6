"""What a ring file says of its process; files and directories that somebody laid out for us are refused."""

import os
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path

import pytest

from collector.kernel.foreign_file import MAX_FILE_BYTES, ForeignFile, check_directory
from collector.nccl.header import MAX_SECTION_BYTES, Identity
from collector.nccl.ringfile import open_ring
from lockstep import wire
from lockstep.errors import BadRing, RingNotReady
from tests.collector.nccl.forging import Forged, Sizes, forge
from tests.descriptors import open_descriptors


def identity_with(path: Path, **header: int | bytes) -> Identity:
    forged = Forged()
    for name, value in header.items():
        forged.header[name] = value
    with open_ring(forged.write(path / "a.ring")) as ring:
        return ring.identity


def test_everything_of_the_header_is_reported(tmp_path: Path) -> None:
    found = identity_with(tmp_path, attempt=2, kernel_channels=1)
    expected = {"pid": 4711, "created_ns": 1_700_000_000_000_000_000, "tag": 0xBEEF, "host": "node-7", "job": "train"}
    expected |= {"attempt": 2, "world_rank": 3, "world_size": 8, "local_rank": None}
    expected |= {"plugin_version": "0.1.0", "nccl_version": "2.28.9", "api_version": 5, "kernel_channels": True}
    assert asdict(found) == expected | {"clock_kind": wire.CLOCK_MONOTONIC}


def test_version_is_written_as_people_do_unknown_ranks_are_none_and_text_can_be_printed(tmp_path: Path) -> None:
    versions = {22809: "2.28.9", 23203: "2.32.3", 2804: "2.8.4", 0: None, 21005: "2.10.5"}
    assert {code: identity_with(tmp_path, nccl_version=code).nccl_version for code in versions} == versions
    found = identity_with(tmp_path, world_rank=-1, world_size=-1, local_rank=0, host=b"\xff" * 80, job=b"a\x1b[2J\nb")
    assert (found.world_rank, found.world_size, found.local_rank) == (None, None, 0)
    assert (found.host, found.job) == ("\ufffd" * 80, "a[2Jb")


UNWRITTEN: dict[tuple[str, int | bytes], str] = {
    ("magic", b"LOCKSTOP"): "is no ring file",
    ("version", 0): "has version 0",
    ("version", wire.VERSION + 1): "has version 2, and this reader knows 1",
    ("ready", 2): "ready is 2",
    ("tag", 0x10000): "has the tag 65536",
    ("clock_kind", 0): "counts time",
    ("clock_kind", 5): "counts time",
    ("created_ns", 1 << 63): "which is no time",
}


def test_what_no_plugin_writes_is_refused(tmp_path: Path) -> None:
    for (field, value), problem in UNWRITTEN.items():
        with pytest.raises(BadRing, match=problem) as caught:
            identity_with(tmp_path, **{field: value})
        assert not isinstance(caught.value, RingNotReady)


def test_file_whose_writer_has_only_begun_may_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "a.ring"
    path.touch(0o600)
    problems = []
    for content in (b"", bytes(100), bytes(wire.PAGE)):
        path.write_bytes(content)
        with pytest.raises(RingNotReady) as caught:
            open_ring(path)
        problems.append(caught.value.problem)
    assert problems == ["has 0 bytes, not even a header", "has 100 bytes, not even a header", "is not complete yet"]
    with pytest.raises(RingNotReady, match="not complete"):
        identity_with(tmp_path, ready=0)
    assert os.listdir(tmp_path) == ["a.ring"]


SECTIONS = ("requests", "status", "clocks", "comms", "rows", "rings", "records", "operations", "transfers")


def refusal(path: Path, forged: Forged) -> str:
    with pytest.raises(BadRing) as caught:
        open_ring(forged.write(path))
    assert not isinstance(caught.value, RingNotReady)
    return caught.value.problem


WRONG = {
    "offset": [0, wire.PAGE - 8, wire.PAGE + 1, (1 << 64) - 8, 1 << 40],
    "count": [0, (1 << 32) - 1],
    "stride": [0, 8, 1 << 31, (1 << 32) - 1],
}


def test_section_that_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    wrong = [(field, value) for field, values in WRONG.items() for value in values]
    for section, (field, value) in product(SECTIONS, wrong):
        forged = Forged()
        forged.header[section][field] = value
        assert section in refusal(tmp_path / "a.ring", forged), (field, value)


def test_sections_that_do_not_fit_the_file_or_each_other_are_refused(tmp_path: Path) -> None:
    usual, path = Forged().header, tmp_path / "a.ring"
    sizes = [(name, "count", int(usual[name]["count"]) - 1) for name in ("records", "operations", "transfers")]
    unfit = dict.fromkeys(sizes, "for 2 rings")
    unfit["transfers", "offset", int(usual["transfers"]["offset"]) + wire.PAGE] = "has its transfers at "
    unfit["rows", "offset", int(usual["comms"]["offset"]) + 8] = "has comms and rows in one place"
    for (section, field, value), problem in unfit.items():
        forged = Forged()
        forged.header[section][field] = value
        assert problem in refusal(path, forged)
    assert "rings of less than 256" in refusal(path, Forged(Sizes(records=128)))
    forged = Forged()
    forged.header["transfers"]["count"], forged.header["transfers"]["stride"] = 1 << 16, 1 << 12
    forged.header["file_bytes"] = 1 << 30
    os.truncate(forged.write(path), 1 << 30)  # a hole: it costs nothing to make, and would take all our memory
    assert MAX_SECTION_BYTES < 1 << 28
    assert "has 65536 transfers of 4096 bytes each" in refusal(path, forged)


def test_file_shorter_or_longer_than_it_says_is_refused_and_one_that_grows_is_read_as_far_as_it_said(
    tmp_path: Path,
) -> None:
    for size in (0, 1 << 20, (1 << 64) - 1):
        forged = Forged()
        forged.header["file_bytes"] = size
        assert f"says it has {size} bytes" in refusal(tmp_path / "a.ring", forged)
    forged = Forged()
    forged.append(1, 3)
    path = forged.write(tmp_path / "b.ring")
    os.truncate(path, len(forged.content) - 1)
    with pytest.raises(BadRing, match="says it has"):
        open_ring(path)
    os.truncate(forged.write(path), len(forged.content) + 12345)
    with open_ring(path) as ring:
        os.truncate(path, MAX_FILE_BYTES * 4)
        assert ring.read_records().sorted.enqueued["seq"].tolist() == [0, 1, 2]


def test_longer_elements_of_a_later_version_are_read_as_far_as_we_know_them(tmp_path: Path) -> None:
    forged = Forged(stretch=24)
    forged.append(1, 300)
    forged.table("comms")[["incarnation", "id"]][2] = (1, 77)
    with open_ring(forged.write(tmp_path / "a.ring")) as ring:
        read = ring.read_records().sorted.enqueued["seq"].tolist()
        assert read == list(range(300 - (forged.sizes.records - 65), 300))
        assert ring.clock().to_unix_ns([2_000]).tolist() == [1_700_000_000_000_002_000]
        assert ring.communicators()[["index", "id"]].tolist() == [(2, 77)]


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
