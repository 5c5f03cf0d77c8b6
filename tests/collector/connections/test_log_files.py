"""A log is found where its process would find it, never outside, and read on where it was left."""

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.connections.log_files import LogTail, expand_name, open_log
from collector.connections.log_lines import LINE_BYTES
from lockstep.errors import BadInput
from tests.descriptors import open_descriptors

ME = os.getuid()


def content(root: Path, name: str, uid: int = ME) -> bytes:
    descriptor = open_log(root / "home", root, name, uid)
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


@pytest.fixture
def own_root(tmp_path: Path) -> Path:
    """The root of a process, beside a file that is none of its business."""
    root = tmp_path / "root"
    for folder in ("tmp", "home/logs", "data"):
        (root / folder).mkdir(parents=True)
    (root / "tmp/nccl.log").write_text("inside")
    (root / "home/logs/own.log").write_text("at home")
    (tmp_path / "secret").write_text("outside")
    return root


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("/tmp/nccl.%h.%p.log", "/tmp/nccl.n1.42.log"),
        ("/tmp/100%%", "/tmp/100%"),
        ("/tmp/%x%", "/tmp/%x%"),
        ("/tmp/%%p", "/tmp/%p"),
        ("", ""),
    ],
)
def test_name_is_made_as_nccl_makes_it(pattern: str, name: str) -> None:
    assert expand_name(pattern, "n1.cluster.local", 42) == name


def test_file_is_found_below_the_root_of_its_process(own_root: Path) -> None:
    assert content(own_root, "/tmp/nccl.log") == b"inside"
    assert content(own_root, "logs/own.log") == b"at home"


@pytest.mark.parametrize("target", ["/tmp/nccl.log", "../tmp/nccl.log"])
def test_link_leads_to_the_same_place_as_for_the_process_or_nowhere(own_root: Path, target: str) -> None:
    (own_root / "data/link.log").symlink_to(target)
    if target.startswith("/"):
        assert content(own_root, "/data/link.log") == b"inside"
    else:
        with pytest.raises(BadInput, match="goes up again"):
            content(own_root, "/data/link.log")


def test_link_to_a_directory_is_followed_inside(own_root: Path) -> None:
    (own_root / "scratch").symlink_to("/tmp")
    assert content(own_root, "/scratch/nccl.log") == b"inside"


def test_link_never_leads_out(own_root: Path, tmp_path: Path) -> None:
    (own_root / "tmp/out.log").symlink_to(tmp_path / "secret")
    with pytest.raises(FileNotFoundError):
        content(own_root, "/tmp/out.log")


def test_links_in_a_circle_are_given_up(own_root: Path) -> None:
    (own_root / "tmp/a").symlink_to("/tmp/b")
    (own_root / "tmp/b").symlink_to("/tmp/a")
    with pytest.raises(BadInput, match="directories and links away"):
        content(own_root, "/tmp/a")


def test_name_that_goes_up_is_refused(own_root: Path) -> None:
    with pytest.raises(BadInput, match="goes up again"):
        content(own_root, "/tmp/../../secret")


def test_file_of_another_user_is_refused(own_root: Path) -> None:
    with pytest.raises(BadInput, match=f"belongs to uid {ME}, and its process to uid {ME + 1}"):
        content(own_root, "/tmp/nccl.log", ME + 1)


def test_pipe_and_directory_are_no_logs_and_nobody_waits_for_them(own_root: Path) -> None:
    os.mkfifo(own_root / "tmp/pipe")
    for name in ("/tmp/pipe", "/tmp", "/"):
        with pytest.raises(BadInput, match="no regular file"):
            content(own_root, name)


def test_no_descriptor_stays_open(own_root: Path) -> None:
    before = len(open_descriptors())
    for name in ("/tmp/nccl.log", "/none", "/tmp", "/tmp/../x", "logs/own.log"):
        with contextlib.suppress(OSError, BadInput):
            content(own_root, name)
    assert len(open_descriptors()) == before


class Tail:
    """A file that grows, and its reader."""

    def __init__(self, file: Path) -> None:
        self.file, self.tail = file, LogTail()

    def read(self, limit: int = 1 << 20) -> list[bytes]:
        descriptor = os.open(self.file, os.O_RDONLY)
        try:
            return self.tail.read(descriptor, limit)
        finally:
            os.close(descriptor)


def test_only_whole_new_lines_are_read(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log")
    tail.file.write_bytes(b"one\ntw")
    assert [tail.read(), tail.read()] == [[b"one"], []]
    tail.file.write_bytes(b"one\ntwo\nthree\n")
    assert tail.read() == [b"two", b"three"]


def test_log_that_was_cut_or_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log")
    tail.file.write_bytes(b"one\ntwo\n")
    tail.read()
    tail.file.write_bytes(b"new\n")
    assert tail.read() == [b"new"]
    (tmp_path / "next").write_bytes(b"another\nfile\n")
    (tmp_path / "next").rename(tail.file)
    assert tail.read() == [b"another", b"file"]


def test_long_log_comes_in_pieces_and_loses_nothing(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log")
    lines = [b"line %d" % number for number in range(2_000)]
    tail.file.write_bytes(b"\n".join(lines) + b"\n")
    found: list[bytes] = []
    while piece := tail.read(LINE_BYTES):
        assert sum(map(len, piece)) <= LINE_BYTES
        found += piece
    assert found == lines


@given(st.integers(1, 5), st.integers(0, 200))
def test_line_without_an_end_is_passed_over_and_the_next_is_read(times: int, more: int) -> None:
    tail = LogTail()
    size = times * LINE_BYTES * 2 + more
    endless = os.memfd_create("log")
    try:
        os.write(endless, b"first\n" + b"x" * size)
        read = [tail.read(endless, LINE_BYTES * 2 + 6) for _ in range(times + 2)]
        os.write(endless, b"\nlast\n")
        read += [tail.read(endless, LINE_BYTES * 2 + 6) for _ in range(3)]
    finally:
        os.close(endless)
    lines = [line for piece in read for line in piece]
    assert lines[0] == b"first"
    assert lines[-1] == b"last"
    assert all(len(line) <= LINE_BYTES for line in lines)
