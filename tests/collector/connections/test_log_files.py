"""A log is found where its process would find it, never outside, and read on where it was left."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.connections.log_files import (
    GRAPH_BYTES,
    DeviceUse,
    LogTail,
    expand_name,
    open_log,
    parse_device_names,
    parse_graph,
)
from collector.connections.log_lines import LINE_BYTES
from lockstep.errors import BadInput
from tests.collector.sources.imitated_nccl import REAL_LOG
from tests.descriptors import open_descriptors

ME = os.getuid()


def content(root: Path, name: str, uid: int = ME) -> bytes:
    with os.fdopen(open_log(root / "home", root, name, uid), "rb") as log:
        return log.read()


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


def test_name_is_made_as_nccl_makes_it_and_found_below_the_root_of_its_process_also_through_links(
    own_root: Path,
) -> None:
    names = {"/tmp/nccl.%h.%p.log": "/tmp/nccl.n1.42.log", "/tmp/%%p": "/tmp/%p", "/tmp/%x%": "/tmp/%x%", "": ""}
    assert {pattern: expand_name(pattern, "n1.cluster.local", 42) for pattern in names} == names
    (own_root / "data/link.log").symlink_to("/tmp/nccl.log")
    (own_root / "scratch").symlink_to("/tmp")
    assert content(own_root, "logs/own.log") == b"at home"
    for name in ("/tmp/nccl.log", "/data/link.log", "/scratch/nccl.log"):
        assert content(own_root, name) == b"inside"


def test_nothing_leads_out_or_to_what_is_no_file_of_its_user_and_no_descriptor_stays_open(
    own_root: Path, tmp_path: Path
) -> None:
    (own_root / "tmp/a").symlink_to("/tmp/b")
    (own_root / "tmp/b").symlink_to("/tmp/a")
    (own_root / "tmp/up").symlink_to("../tmp/nccl.log")
    (own_root / "tmp/out.log").symlink_to(tmp_path / "secret")
    os.mkfifo(own_root / "tmp/pipe")
    before = len(open_descriptors())
    refused = {
        "/tmp/a": "directories and links away",
        "/tmp/../../secret": "goes up again",
        "/tmp/up": "goes up again",
    }
    for name, problem in (refused | dict.fromkeys(("/tmp/pipe", "/tmp", "/"), "no regular file")).items():
        with pytest.raises(BadInput, match=problem):
            content(own_root, name)
    with pytest.raises(BadInput, match=f"belongs to uid {ME}, and its process to uid {ME + 1}"):
        content(own_root, "/tmp/nccl.log", ME + 1)
    for missing in ("/tmp/out.log", "/none"):
        with pytest.raises(FileNotFoundError):
            content(own_root, missing)
    assert len(open_descriptors()) == before


def read_file(tail: LogTail, file: Path, limit: int = 1 << 20) -> list[bytes]:
    with file.open("rb") as log:
        return tail.read(log.fileno(), limit)


def test_only_whole_new_lines_are_read_piece_by_piece_and_a_log_that_was_cut_or_replaced_from_its_beginning(
    tmp_path: Path,
) -> None:
    tail, file = LogTail(), tmp_path / "log"
    for content, lines in (
        (b"one\ntw", [b"one"]),
        (b"one\ntw", []),
        (b"one\ntwo\nthree\n", [b"two", b"three"]),
        (b"new\n", [b"new"]),
    ):
        file.write_bytes(content)
        assert read_file(tail, file) == lines
    many = [b"line %d" % number for number in range(2_000)]
    (tmp_path / "next").write_bytes(b"\n".join(many) + b"\n")
    (tmp_path / "next").rename(file)
    found: list[bytes] = []
    while piece := read_file(tail, file, LINE_BYTES):
        assert sum(map(len, piece)) <= LINE_BYTES
        found += piece
    assert found == many


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


CHANNELS = b"""<graphs version="1"><graph id="1"><channel><net dev="9"/><gpu dev="0"/><net dev="9"/></channel></graph>
<graph id="0" nchannels="2"><channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="1"/></channel>
<channel><net dev="1"/><gpu dev="1"/><gpu dev="0"/><net dev="0"/></channel></graph></graphs>"""


def test_data_comes_in_at_the_first_device_of_a_ring_and_goes_out_at_the_last() -> None:
    folder = REAL_LOG.parent
    assert parse_graph((folder / "graph.xml").read_bytes()) == [DeviceUse(0, "recv", 0), DeviceUse(0, "send", 0)]
    assert parse_device_names((folder / "topo.xml").read_bytes()) == {0: "lo"}
    uses = [(0, "recv", 0), (0, "send", 1), (1, "recv", 1), (1, "send", 0)]
    assert [(use.channel, use.direction, use.device) for use in parse_graph(CHANNELS)] == uses


def test_graph_without_networks_says_nothing_and_a_file_that_is_none_is_refused() -> None:
    for channel in (
        b"",
        b'<channel><gpu dev="0"/><gpu dev="1"/></channel>',
        b'<channel><net dev="-1"/><gpu dev="0"/><net dev="x"/></channel>',
        b'<channel><net/><gpu/><net dev="99999999999"/></channel>',
    ):
        assert parse_graph(b'<graphs><graph id="0">' + channel + b"</graph></graphs>") == []
    complaints = {b"": "no XML", b"<graphs": "no XML", b"\xff\xfe": "no XML", b" " * (GRAPH_BYTES + 1): "more than"}
    complaints[b'<!DOCTYPE a [<!ENTITY b "bb">]><graphs>&b;</graphs>'] = "declaration"
    for content, complaint in complaints.items():
        with pytest.raises(BadInput, match=complaint):
            parse_graph(content)


@given(st.binary(max_size=200) | st.lists(st.sampled_from(CHANNELS.split(b"<")), max_size=20).map(b"<".join))
def test_whatever_a_file_holds_only_bad_input_comes_out(content: bytes) -> None:
    for parse in (parse_graph, parse_device_names):
        try:
            parse(content)
        except BadInput:
            continue
