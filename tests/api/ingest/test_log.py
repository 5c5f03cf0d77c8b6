"""The log holds exactly what was appended, whole again after any tear, and says where it is damaged."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.ingest.log import (
    Entry,
    OpenSegment,
    Segment,
    Watermarks,
    identify,
    list_segments,
    read_segment,
    recover,
    segment_number,
)
from api.ingest.log import write_atomically as write_whole
from lockstep.bounds import BOUNDS
from lockstep.errors import LockstepError
from tests.builders import SECOND, T0

ENTRIES = [Entry("h0", "b1", 1, T0, b"first"), Entry("h1", "b2", 7, T0 + 1, b""), Entry("h0", "b1", 2, T0, b"third")]


def written(directory: Path, entries: list[Entry]) -> Path:
    """Return an open segment with these entries, left behind as by a crash."""
    segment = OpenSegment(directory, 1)
    segment.append(entries)
    segment._file.close()
    return segment.path


def test_entries_come_back_in_order_from_segments_that_are_listed_oldest_first(tmp_path: Path) -> None:
    segment = OpenSegment(tmp_path, 12)
    segment.append(ENTRIES[:2])
    segment.append(ENTRIES[2:])
    path = segment.cut()
    assert path.name == "000000000012.segment"
    assert segment_number(path) == 12
    assert read_segment(path) == Segment(ENTRIES)
    assert path.stat().st_size == segment.size
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    path.unlink()
    for number in (10, 9, 100):
        OpenSegment(tmp_path, number).cut()
    OpenSegment(tmp_path, 101)._file.close()
    assert [segment_number(path) for path in list_segments(tmp_path)] == [9, 10, 100]
    OpenSegment(tmp_path, 1)._file.close()
    with pytest.raises(FileExistsError):
        OpenSegment(tmp_path, 1)


@pytest.mark.parametrize("tail", [b"", bytes(4096)])  # zeros: as a full disk or a power cut leaves it
def test_open_segment_is_cut_by_recovery_which_leaves_all_other_files_alone(tmp_path: Path, tail: bytes) -> None:
    others = {"000000000002.segment": b"damaged", "identity": b"me"}
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    path = written(tmp_path, ENTRIES)
    path.write_bytes(path.read_bytes() + tail)
    recover(tmp_path)
    assert read_segment(tmp_path / "000000000001.segment") == Segment(ENTRIES)
    left = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != "000000000001.segment"}
    assert left == others


def test_recovery_drops_a_torn_tail_wherever_it_is_torn(tmp_path: Path) -> None:
    whole = written(tmp_path, ENTRIES).read_bytes()
    (tmp_path / "000000000001.open").unlink()
    kept = written(tmp_path, ENTRIES[:2]).read_bytes()
    (tmp_path / "000000000001.open").unlink()
    for length in range(len(kept), len(whole)):
        folder = tmp_path / str(length)
        folder.mkdir()
        (folder / "000000000001.open").write_bytes(whole[:length])
        recover(folder)
        assert read_segment(folder / "000000000001.segment") == Segment(ENTRIES[:2]), length
        assert (folder / "000000000001.segment").read_bytes() == kept


@pytest.mark.parametrize("data", [b"", b"LKS", b"LKS1" + bytes(100), b"\xff" * 64])
def test_open_segment_without_a_whole_entry_leaves_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "000000000001.open").write_bytes(data)
    recover(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_flipped_bit_anywhere_is_noticed_and_what_stands_before_it_is_kept(tmp_path: Path) -> None:
    whole = written(tmp_path, ENTRIES).read_bytes()
    begins = [0]
    for entry in ENTRIES:
        begins.append(begins[-1] + len(written_alone(tmp_path / f"alone{len(begins)}", entry)))
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path = tmp_path / "damaged.segment"
        path.write_bytes(damaged)
        hit = max(index for index, begin in enumerate(begins) if begin <= place)
        assert read_segment(path) == Segment(ENTRIES[:hit], damaged_at=begins[hit]), place


def written_alone(directory: Path, entry: Entry) -> bytes:
    directory.mkdir()
    return written(directory, [entry]).read_bytes()


@given(body=st.binary(max_size=300), agent=st.text(max_size=20), number=st.integers(1, 2**63 - 1))
def test_whatever_an_entry_holds_comes_back(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, agent: str, number: int
) -> None:
    entry = Entry(agent, "b", number, T0, body)
    path = written(tmp_path_factory.mktemp("log"), [entry])
    assert read_segment(path) == Segment([entry])


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_append_that_fails_leaves_the_file_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    segment = OpenSegment(tmp_path, 1)
    segment.append(ENTRIES[:1])
    before, write = segment.path.read_bytes(), os.write
    tries = iter([True, False])

    def half_then_full(descriptor: int, data: bytes) -> int:
        if next(tries):
            return write(descriptor, bytes(data)[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, half_then_full if failing == "write" else fail)
        with pytest.raises(OSError, match=r"No space left|Input/output error"):
            segment.append(ENTRIES[1:2])
        assert segment.path.read_bytes() == before
    segment.append(ENTRIES[2:])
    assert read_segment(segment.cut()) == Segment([ENTRIES[0], ENTRIES[2]])


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    segment = OpenSegment(tmp_path, 1)
    segment.append(ENTRIES)
    assert read_segment(segment.cut()) == Segment(ENTRIES)


def test_small_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "watermarks.json"
    write_whole(file, b"old")
    with monkeypatch.context() as patch:

        def fail(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    write_whole(file, b"newer")
    assert file.read_bytes() == b"newer"
    assert [path.name for path in tmp_path.iterdir()] == ["watermarks.json"]


DAY_NS = 86_400 * SECOND


def entry(agent: str, boot: str, number: int, received_ns: int = T0) -> Entry:
    return Entry(agent, boot, number, received_ns, b"")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "watermarks.json"


def save(marks: Watermarks, now_ns: int = T0) -> None:
    marks.write(marks.take_changes(now_ns))


def test_marks_are_appended_to_a_file_that_stays_short(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.ingest.log._MOST_APPENDED", 8)
    marks, lines = Watermarks(file), list[int]()
    for number in range(1, 13):
        marks.advance(entry("h0", "b1", number))
        save(marks)
        lines.append(len(file.read_bytes().splitlines()))
    assert lines == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6], "a line counts as much as the mark in it"
    assert Watermarks(file).get("h0", "b1") == 12


def test_agent_with_many_boots_keeps_the_newest_of_them(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.ingest.log.BOUNDS", replace(BOUNDS, boots=3))
    marks = Watermarks(file)
    for agent, boot in (("h1", "b"), *(("h0", f"b{number}") for number in range(4)), ("h0", "b1"), ("h0", "b9")):
        marks.advance(entry(agent, boot, 1 + marks.get(agent, boot)))
    save(marks)
    for known in (marks, Watermarks(file)):
        kept = [boot for boot in ("b0", "b1", "b2", "b3", "b9") if known.get("h0", boot)]
        assert (kept, known.get("h1", "b")) == (["b1", "b3", "b9"], 1)


def test_line_that_a_crash_cut_off_is_left_out_and_any_other_damage_is_one_sentence(file: Path) -> None:
    marks = Watermarks(file)
    for number in (1, 2):
        marks.advance(entry("h0", "b1", number))
        save(marks)
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    again = Watermarks(file)
    assert again.get("h0", "b1") == 1
    save(again)
    assert b"\n" not in file.read_bytes()
    for damaged in (b"", b"{", b"[]", b'{"marks": []}', whole[3:], whole.replace(b"\n", b"\n{\n")):
        file.write_bytes(damaged)
        with pytest.raises(LockstepError, match=r"watermarks\.json is damaged, line [12] cannot be read: restore"):
            Watermarks(file)


@pytest.mark.parametrize(("content", "why"), [(b"", "it is empty"), (b"nonsense\n", "it holds no name")])
def test_identity_that_is_damaged_is_one_sentence(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "identity").write_bytes(content)
    with pytest.raises(LockstepError, match=rf"identity is damaged, {why}: restore it from a backup"):
        identify(tmp_path)


def test_marks_are_counted_by_agent_and_boot_never_go_back_and_survive_a_restart_once_saved(file: Path) -> None:
    marks = Watermarks(file)
    assert (marks.get("h0", "b1"), marks.is_new(entry("h0", "b1", 1)), marks.last_segment) == (0, True, 0)
    marks.advance(entry("h0", "b1", 5))
    assert (marks.is_new(entry("h0", "b1", 5)), marks.is_new(entry("h0", "b1", 6))) == (False, True)
    assert (marks.get("h0", "b1"), marks.get("h0", "b2"), marks.get("h1", "b1")) == (5, 0, 0)
    marks.advance(entry("h0", "b1", 3))
    assert marks.get("h0", "b1") == 5
    marks.advance(entry("hôte/ü", "b\n2", 7))
    marks.last_segment = 42
    save(marks, T0)
    marks.advance(entry("h0", "b1", 9))
    again = Watermarks(file)
    assert (again.get("h0", "b1"), again.get("hôte/ü", "b\n2"), again.last_segment) == (5, 7, 42)


def test_boot_that_was_silent_for_a_month_is_forgotten_and_the_others_stay(file: Path) -> None:
    marks = Watermarks(file)
    marks.advance(entry("h0", "old", 5, received_ns=T0))
    marks.advance(entry("h0", "new", 3, received_ns=T0 + DAY_NS))
    save(marks, T0 + 30 * DAY_NS - 1)
    assert Watermarks(file).get("h0", "old") == 5
    save(marks, T0 + 30 * DAY_NS)
    assert (marks.get("h0", "old"), marks.get("h0", "new")) == (0, 3)
    assert (Watermarks(file).get("h0", "old"), Watermarks(file).get("h0", "new")) == (0, 3)
