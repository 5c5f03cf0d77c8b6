"""Captures come from anywhere: any subset of tables is one, and every fault is named by file, column and row."""

import base64
import json
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.capture import files
from lockstep.capture.files import TOPOLOGY_FILE, CaptureInfo, JobLayout, dump_info, parse_info, read_capture
from lockstep.errors import BadCapture
from lockstep.records import Collective, Comm, Transfer
from lockstep.tables import TABLE_BY_NAME, TABLES
from lockstep.topology import dump_topology
from tests.builders import make, rows
from tests.lockstep.capture import build

COLLECTIVES = rows(*(make(Collective, seq=seq) for seq in range(3)))
SOUND = {"version": 1, "job": "j1", "start_ns": 5, "end_ns": 9}


def refusal(path: Path) -> BadCapture:
    with pytest.raises(BadCapture) as caught:
        read_capture(path)
    return caught.value


def place(error: BadCapture) -> tuple[str, str | None, int | None]:
    return error.file, error.column, error.row


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


@settings(max_examples=10)
@given(st.dictionaries(st.sampled_from(sorted(TABLE_BY_NAME)), st.integers(0, 2)))
def test_any_subset_of_tables_is_a_capture(tmp_path_factory: pytest.TempPathFactory, counts: dict[str, int]) -> None:
    tables = {name: build.sample(TABLE_BY_NAME[name], count) for name, count in counts.items()}
    case = build.write_directory(tmp_path_factory.mktemp("case"), tables)
    (case / "notes.txt").write_text("hello")  # what we do not know is left alone
    (case / "mood.parquet").write_text("not even Parquet")
    (case / "attachments").mkdir()
    found = read_capture(case)
    assert found.tables == tables
    assert (found.info, found.topology) == (build.INFO, None)


def test_columns_of_other_releases_and_programs_are_taken(tmp_path: Path) -> None:
    newer = COLLECTIVES.append_column("mood", pa.array(["fine"] * 3))
    foreign = with_column(newer, "seq", pa.array([0, 1, 2], pa.int16()))
    foreign = with_column(foreign, "func", foreign["func"].dictionary_encode())
    older = COLLECTIVES.drop_columns(["end_ns"])  # which may be null
    without = with_column(COLLECTIVES, "end_ns", pa.nulls(3, pa.int64()))
    for told, meant in ((foreign, COLLECTIVES), (older, without)):
        case = build.write_directory(tmp_path / "case", {"collectives": told})
        assert read_capture(case).tables["collectives"].to_pylist() == meant.to_pylist()


@pytest.mark.parametrize("name", ["case", "case.tar.zst"])
def test_nothing_is_left_in_the_temporary_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.write_capture(tmp_path / name, build.whole_capture())
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert len(read_capture(tmp_path / name).tables) == len(TABLES)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    assert str(refusal(tmp_path / "gone")) == f"{tmp_path}/gone: there is no such file or directory"
    (tmp_path / "case.zip").write_bytes(b"PK")
    assert refusal(tmp_path / "case.zip").problem == "a capture is a directory or a .tar.zst"
    (build.write_directory(tmp_path / "case", {"collectives": COLLECTIVES}) / "capture.json").unlink()
    assert str(refusal(tmp_path / "case")).startswith("capture.json: the capture lacks this file")


def test_description_survives_its_text() -> None:
    info = CaptureInfo(job="j1", start_ns=5, end_ns=9, layout=JobLayout(tp=8, dp=2), hosts=("h0", "h1"))
    assert parse_info(dump_info(info)) == info
    assert json.loads(dump_info(info))["layout"] == {"tp": 8, "dp": 2}
    timestamp = CaptureInfo(job="j1", start_ns=5, end_ns=5)
    assert "layout" not in json.loads(dump_info(timestamp))
    assert parse_info('{"job": "j1", "start_ns": 5, "end_ns": 5}') == timestamp


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        *((text, "is not JSON: ") for text in ("", "[" * 100_000, "1" * 5_000, "\ufeff{}", '{"job": "\\ud800"}')),
        ("null", "the file: Input should be an object"),
        ('{"version": 2, "jobs": ["j1", "j2"]}', "is version 2, newer than the 1 this code reads"),
        *(
            (json.dumps({name: value for name, value in SOUND.items() if name != field}), f"{field}: Field required")
            for field in ("job", "start_ns", "end_ns")
        ),
        *(
            (json.dumps(SOUND | field), complaint)
            for field, complaint in (
                ({"end_ns": 4}, "ends at 4, before it starts at 5"),
                ({"version": "9"}, "version: "),
                ({"version": 0}, "version: "),
                ({"job": 7}, "job: "),
                ({"start_ns": 5.0}, "start_ns: "),
                ({"start_ns": -1}, "start_ns: "),
                ({"end_ns": 2**63}, "end_ns: "),
                ({"hosts": ["h0", 1]}, "hosts.1: "),
                ({"layout": {"tp": 0}}, "layout.tp: "),
                ({"mood": "fine"}, "mood: "),
            )
        ),
    ],
)
def test_bad_description_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    error = refusal(build.write_directory(tmp_path / "case", {}, info=text))
    assert place(error) == ("capture.json", None, None)
    assert error.problem.startswith(complaint)


@pytest.mark.parametrize("name", ["capture.json", TOPOLOGY_FILE])
def test_text_that_is_not_utf8_or_too_large_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = build.write_directory(tmp_path / "case", {}) / name
    file.write_bytes(b'{"job": "\xff"}')
    error = refusal(tmp_path / "case")
    assert (error.file, error.problem.split(":")[0]) == (name, "cannot be read")
    file.write_text(" " * 2_000 + dump_info(build.INFO))
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 1_000)
    assert (refusal(tmp_path / "case").file, refusal(tmp_path / "case").problem) == (name, "has more than 0 MiB")


def test_topology_at_fault_is_refused_with_all_complaints(tmp_path: Path) -> None:
    links = tuple(link.model_copy(update={"a": "h9/eth0"}) for link in build.TOPOLOGY.links[:2])
    file = build.write_directory(tmp_path / "case", {}) / TOPOLOGY_FILE
    file.write_text(dump_topology(build.TOPOLOGY.model_copy(update={"links": links})))
    error = refusal(tmp_path / "case")
    assert (error.file, error.problem.count("there is no node 'h9'")) == (TOPOLOGY_FILE, 2)
    for text in ("", "{}", '{"version": 1, "routing": "ecmp", "nodes": 7, "links": []}'):
        file.write_text(text)
        assert refusal(tmp_path / "case").file == TOPOLOGY_FILE


SAME_KEYS = rows(make(Comm, rank=0), make(Comm, rank=1), make(Comm, rank=0, pid=9))
NEGATIVE = with_column(COLLECTIVES, "end_ns", pa.array([5, None, -7]))
FRACTIONS = with_column(COLLECTIVES, "rank", pa.array([0.0, 1.0, float("nan")]))
TEXTS = with_column(COLLECTIVES, "seq", pa.array(["0", "1", "2"]))
EXTENSION = with_column(COLLECTIVES, "captured", pa.array([1, 0, 1], pa.int8()).cast(pa.bool8()))


@pytest.mark.parametrize(
    ("name", "table", "column", "row", "complaint"),
    [
        ("collectives", NEGATIVE, "end_ns", 2, "negative time (-7)"),
        ("collectives", FRACTIONS, "rank", 2, "is double, not uint32"),
        ("collectives", TEXTS, "seq", None, "is string, not uint64"),
        ("collectives", COLLECTIVES.drop_columns(["rank"]), "rank", None, "the column is missing"),
        ("collectives", EXTENSION, "captured", None, "is extension<arrow.bool8>"),
        ("comms", SAME_KEYS, None, 2, "has the same job, attempt, comm, rank as row 0"),
    ],
    ids=["negative time", "not a number", "wrong type", "missing", "extension type", "same key"],
)
def test_fault_is_named_by_file_column_and_row(
    name: str, table: pa.Table, column: str | None, row: int | None, complaint: str, tmp_path: Path
) -> None:
    case = build.write_directory(tmp_path / "case", {name: table})
    content = (case / f"{name}.parquet").read_bytes()
    packed = build.write_archive(
        tmp_path / "x.tar.zst", build.tar_of([build.INFO_MEMBER, build.member(f"{name}.parquet", content)])
    )
    for error in (refusal(case), refusal(packed)):
        assert place(error) == (f"{name}.parquet", column, row)
        assert error.problem.startswith(complaint)


def test_parquet_in_many_row_groups_cut_short_or_too_large_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = build.write_directory(tmp_path / "case", {})
    late = with_column(COLLECTIVES, "end_ns", pa.array([1, 2, -3]))
    pq.write_table(late, case / "collectives.parquet", row_group_size=1)
    assert place(refusal(case)) == ("collectives.parquet", "end_ns", 2)
    case = build.write_directory(tmp_path / "case", {"collectives": COLLECTIVES})
    whole = (case / "collectives.parquet").read_bytes()
    for length in range(0, len(whole), 397):
        (case / "collectives.parquet").write_bytes(whole[:length])
        error = refusal(case)
        assert place(error) == ("collectives.parquet", None, None)
        assert error.problem.startswith("is not a whole Parquet file: ")
    case = build.write_directory(tmp_path / "case", {"collectives": COLLECTIVES})
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 100)
    assert refusal(case).problem.startswith("unpacks to ")


def in_parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


TRANSFERS = in_parquet(rows(make(Transfer), make(Transfer, seq=1)))


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_parquet_gives_sound_rows_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    case = build.write_directory(tmp_path_factory.mktemp("case"), {})
    damaged = bytearray(TRANSFERS)
    for where, value in changes:
        damaged[where % len(damaged)] = value
    (case / "transfers.parquet").write_bytes(damaged)
    try:
        found = read_capture(case).tables["transfers"]
    except BadCapture as error:
        name = error.file
    else:
        name = "transfers.parquet"
        found.validate(full=True)
    assert name == "transfers.parquet"


@pytest.mark.parametrize("name", ["capture.json", TOPOLOGY_FILE, "collectives.parquet"])
@pytest.mark.parametrize(
    "put",
    [lambda file: file.symlink_to("/etc/passwd"), lambda file: file.symlink_to("nowhere"), os.mkfifo, Path.mkdir],
    ids=["symlink", "link to nowhere", "fifo", "folder"],
)
def test_what_is_no_plain_file_is_refused_unopened(name: str, put: Callable[[Path], None], tmp_path: Path) -> None:
    case = build.write_directory(tmp_path / "case", {})
    (case / name).unlink(missing_ok=True)
    put(case / name)
    error = refusal(case)
    assert (error.file, error.problem) == (name, "is not a plain file")


class Trap:
    """What an attacker would pickle: unpickling it makes a directory."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:  # Any: whatever the called function takes
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", [b"arrow.py_extension_type", b"pandas.extension"])
def test_pickle_in_the_metadata_of_a_table_is_never_opened(name: bytes, tmp_path: Path) -> None:
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    case = build.write_directory(tmp_path / "case", {})
    field = COLLECTIVES.schema.field("func").with_metadata(
        {b"ARROW:extension:name": name, b"ARROW:extension:metadata": trap}
    )
    trapped = COLLECTIVES.set_column(4, field, COLLECTIVES["func"]).replace_schema_metadata({"pandas": trap})
    pq.write_table(trapped, case / "collectives.parquet")
    kept = pq.read_metadata(case / "collectives.parquet").metadata
    assert kept[b"pandas"] == trap
    assert trap in base64.b64decode(kept[b"ARROW:schema"])
    assert read_capture(case).tables["collectives"].equals(COLLECTIVES)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(trap)
    assert (tmp_path / "sprung").exists(), "the trap itself must work, or this test proves nothing"
