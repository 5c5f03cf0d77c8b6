"""A capture appears whole under its name, or not at all, and never over another one."""

import json
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lockstep.capture.files import CaptureWriter, pack, read_capture
from lockstep.errors import BadInput
from lockstep.tables import TABLE_BY_NAME, TABLES
from tests.lockstep.capture.build import INFO, TOPOLOGY, read_tar, sample, whole_capture, write_capture
from tests.lockstep.state.build import verdict

STEPS = TABLE_BY_NAME["steps"]

both_forms = pytest.mark.parametrize("name", ["case", "case.tar.zst"])


class Mishap(Exception):
    """Something that goes wrong while a capture is written."""


@both_forms
def test_capture_comes_back_as_it_was_and_is_never_overwritten(name: str, tmp_path: Path) -> None:
    killed = CaptureWriter(tmp_path / name)
    killed.write(STEPS, sample(STEPS))
    write_capture(tmp_path / name, whole_capture())
    assert [entry.name for entry in tmp_path.iterdir()] == [name], "remains of a killed writer are swept away"
    with pytest.raises(BadInput, match="exists already; captures are never overwritten"):
        CaptureWriter(tmp_path / name)
    found = read_capture(tmp_path / name)
    assert (found.info, found.topology) == (INFO, TOPOLOGY)
    assert set(found.tables) == {table.name for table in TABLES}
    for table, rows in whole_capture().tables.items():
        assert found.tables[table].equals(rows), table
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="exists already"):
        CaptureWriter(tmp_path / "link")


@both_forms
def test_rows_come_in_any_order_and_empty_ones_leave_no_file(name: str, tmp_path: Path) -> None:
    rows = sample(STEPS)
    with CaptureWriter(tmp_path / name) as writer:
        writer.write(STEPS, rows.slice(2))
        writer.write(TABLE_BY_NAME["events"], sample(TABLE_BY_NAME["events"], 0))
        writer.write(STEPS, rows.slice(0, 2))
        writer.finish(INFO)
    found = read_capture(tmp_path / name)
    assert set(found.tables) == {"steps"}
    assert found.tables["steps"]["step"].to_pylist() == [2, 3, 4, 0, 1]
    assert found.topology is None


def test_verdicts_are_written_as_the_api_shows_them_if_they_were_looked_for(tmp_path: Path) -> None:
    for name, verdicts in (("judged", [verdict("j1")]), ("sound", []), ("raw", None)):
        write_capture(tmp_path / name, whole_capture(), verdicts)
    (written,) = json.loads((tmp_path / "judged" / "verdicts.json").read_text())
    assert (written["class"], written["component"]) == ("comm_slow", "nic:h3/eth1")
    assert read_capture(tmp_path / "judged").info == INFO
    assert json.loads((tmp_path / "sound" / "verdicts.json").read_text()) == []
    assert not (tmp_path / "raw" / "verdicts.json").exists()


def test_archive_depends_on_its_content_only(tmp_path: Path) -> None:
    for name in ("one.tar.zst", "two.tar.zst", "case"):
        write_capture(tmp_path / name, whole_capture())
    assert (tmp_path / "one.tar.zst").read_bytes() == (tmp_path / "two.tar.zst").read_bytes()
    for mode in (0o600, 0o666):
        for file in (tmp_path / "case").iterdir():
            file.chmod(mode)
        pack(tmp_path / "case", tmp_path / f"{mode}.tar.zst")
    whole = read_tar(tmp_path / f"{0o600}.tar.zst")
    assert whole == read_tar(tmp_path / f"{0o666}.tar.zst")
    (tmp_path / "case.tar").write_bytes(whole)
    with tarfile.open(tmp_path / "case.tar") as tar:
        first, *others = tar.getnames()
        assert (first, others) == ("capture.json", sorted(others))
        owners = {(found.uid, found.gid, found.uname, found.mtime, found.mode) for found in tar}
    assert owners == {(0, 0, "", 0, 0o644)}


@both_forms
def test_capture_that_is_not_finished_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    def write(mishap: Exception | None) -> None:
        with CaptureWriter(tmp_path / name) as writer:
            writer.write(STEPS, sample(STEPS))
            assert list(tmp_path.iterdir()) != []
            if mishap:
                raise mishap

    write(None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Mishap):
        write(Mishap())
    with pytest.raises(ValueError, match="schema"), CaptureWriter(tmp_path / name) as writer:
        writer.write(STEPS, sample(TABLE_BY_NAME["events"]))
    assert list(tmp_path.iterdir()) == []


def test_table_or_archive_that_cannot_be_completed_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, mishaps = pq.ParquetWriter.close, [Mishap("no space left")]

    def close_and_fail_once(writer: pq.ParquetWriter) -> None:
        close(writer)
        while mishaps:
            raise mishaps.pop()

    writer = CaptureWriter(tmp_path / "case")
    writer.write(STEPS, sample(STEPS))
    monkeypatch.setattr(pq.ParquetWriter, "close", close_and_fail_once)
    with pytest.raises(Mishap), writer:
        pass
    assert list(tmp_path.iterdir()) == []

    def fail(_: int) -> None:
        raise Mishap("the disk is gone")

    monkeypatch.setattr("lockstep.capture.files.os.fsync", fail)
    with pytest.raises(Mishap):
        write_capture(tmp_path / "case.tar.zst", whole_capture())
    assert list(tmp_path.iterdir()) == []


@both_forms
def test_capture_that_appeared_meanwhile_is_not_overwritten_either(name: str, tmp_path: Path) -> None:
    slow = CaptureWriter(tmp_path / name)
    slow.write(STEPS, sample(STEPS))
    (tmp_path / name).write_text("somebody else's")
    with pytest.raises(BadInput, match="exists already"), slow:
        slow.finish(INFO)
    assert (tmp_path / name).read_text() == "somebody else's"
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
