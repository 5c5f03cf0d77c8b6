"""Captures come from anywhere: any subset of tables is one, and every fault is named by file, column and row."""

import base64
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
from lockstep.capture.files import TOPOLOGY_FILE, dump_info, read_capture, write_capture
from lockstep.errors import BadCapture
from lockstep.records import Collective, Comm, NicCounter, Transfer
from lockstep.tables import TABLE_BY_NAME, TABLES
from lockstep.topology import dump_topology
from tests.builders import make, rows
from tests.lockstep.capture.build import (
    INFO,
    INFO_MEMBER,
    TOPOLOGY,
    member,
    sample,
    tar_of,
    whole_capture,
    write_archive,
    write_directory,
)

COLLECTIVES = rows(*(make(Collective, seq=seq) for seq in range(3)))


def refusal(path: Path) -> BadCapture:
    with pytest.raises(BadCapture) as caught:
        read_capture(path)
    return caught.value


def place(error: BadCapture) -> tuple[str, str | None, int | None]:
    return error.file, error.column, error.row


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


# What is a capture.


@settings(max_examples=15, deadline=None)
@given(st.sets(st.sampled_from(sorted(TABLE_BY_NAME))))
def test_any_subset_of_tables_is_a_capture(tmp_path_factory: pytest.TempPathFactory, names: set[str]) -> None:
    tables = {name: sample(TABLE_BY_NAME[name], 2) for name in names}
    found = read_capture(write_directory(tmp_path_factory.mktemp("case"), tables))
    assert found.tables == tables
    assert (found.info, found.topology) == (INFO, None)


def test_column_that_may_be_null_may_be_missing(tmp_path: Path) -> None:
    old = COLLECTIVES.drop_columns(["start_ns", "end_ns"])
    found = read_capture(write_directory(tmp_path / "case", {"collectives": old})).tables["collectives"]
    assert found["end_ns"].to_pylist() == [None] * 3
    assert found["seq"].to_pylist() == [0, 1, 2]


def test_column_of_a_newer_release_is_left_out(tmp_path: Path) -> None:
    newer = COLLECTIVES.append_column("mood", pa.array(["fine"] * 3))
    assert (
        read_capture(write_directory(tmp_path / "case", {"collectives": newer})).tables["collectives"] == COLLECTIVES
    )


def test_foreign_widths_and_dictionaries_are_taken(tmp_path: Path) -> None:
    foreign = with_column(COLLECTIVES, "seq", pa.array([0, 1, 2], pa.int16()))
    foreign = with_column(foreign, "func", foreign["func"].dictionary_encode())
    found = read_capture(write_directory(tmp_path / "case", {"collectives": foreign}))
    assert found.tables["collectives"] == COLLECTIVES


def test_table_without_rows_is_a_table(tmp_path: Path) -> None:
    found = read_capture(write_directory(tmp_path / "case", {"steps": sample(TABLE_BY_NAME["steps"], 0)}))
    assert found.tables["steps"].num_rows == 0


def test_what_we_do_not_know_is_left_alone(tmp_path: Path) -> None:
    case = write_directory(tmp_path / "case", {"collectives": COLLECTIVES})
    (case / "notes.txt").write_text("hello")
    (case / "mood.parquet").write_text("not even Parquet")
    (case / "attachments").mkdir()
    assert set(read_capture(case).tables) == {"collectives"}


@pytest.mark.parametrize("name", ["case", "case.tar.zst"])
def test_nothing_is_left_in_the_temporary_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_capture(tmp_path / name, whole_capture())
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert len(read_capture(tmp_path / name).tables) == len(TABLES)
    assert list((tmp_path / "temporary").iterdir()) == []


# What is none.


def test_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert str(refusal(tmp_path / "gone")) == f"{tmp_path}/gone: there is no such file or directory"


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "case.zip").write_bytes(b"PK")
    assert refusal(tmp_path / "case.zip").problem == "a capture is a directory or a .tar.zst"


def test_capture_without_a_description_is_refused(tmp_path: Path) -> None:
    (write_directory(tmp_path / "case", {"collectives": COLLECTIVES}) / "capture.json").unlink()
    assert str(refusal(tmp_path / "case")).startswith("capture.json: the capture lacks this file")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not JSON"),
        ("[]", "the file: Input should be an object"),
        ('{"version": 2}', "is version 2, newer"),
        ('{"job": "j", "start_ns": 9, "end_ns": 5}', "ends at 5, before it starts at 9"),
        ('{"job": "j", "start_ns": "0", "end_ns": 5}', "start_ns: "),
    ],
)
def test_bad_description_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    error = refusal(write_directory(tmp_path / "case", {}, info=text))
    assert place(error) == ("capture.json", None, None)
    assert error.problem.startswith(complaint)


@pytest.mark.parametrize("name", ["capture.json", TOPOLOGY_FILE])
def test_text_that_is_not_utf8_is_refused(name: str, tmp_path: Path) -> None:
    (write_directory(tmp_path / "case", {}) / name).write_bytes(b'{"job": "\xff"}')
    error = refusal(tmp_path / "case")
    assert (error.file, error.problem.split(":")[0]) == (name, "cannot be read")


@pytest.mark.parametrize("name", ["capture.json", TOPOLOGY_FILE])
def test_text_that_would_fill_the_memory_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (write_directory(tmp_path / "case", {}) / name).write_text(" " * 2_000 + dump_info(INFO))
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 1_000)
    assert (refusal(tmp_path / "case").file, refusal(tmp_path / "case").problem) == (name, "has more than 0 MiB")


def test_topology_that_contradicts_itself_is_refused_with_all_complaints(tmp_path: Path) -> None:
    links = tuple(link.model_copy(update={"a": "h9/eth0"}) for link in TOPOLOGY.links[:2])
    odd = TOPOLOGY.model_copy(update={"links": links})
    (write_directory(tmp_path / "case", {}) / TOPOLOGY_FILE).write_text(dump_topology(odd))
    error = refusal(tmp_path / "case")
    assert error.file == TOPOLOGY_FILE
    assert error.problem.count("there is no node 'h9'") == 2


@pytest.mark.parametrize("text", ["", "{}", '{"version": 1, "routing": "ecmp", "nodes": 7, "links": []}'])
def test_topology_of_the_wrong_shape_is_refused(text: str, tmp_path: Path) -> None:
    (write_directory(tmp_path / "case", {}) / TOPOLOGY_FILE).write_text(text)
    assert refusal(tmp_path / "case").file == TOPOLOGY_FILE


# Rows at fault.


@pytest.mark.parametrize(
    ("column", "values", "row", "complaint"),
    [
        ("end_ns", pa.array([5, None, -7]), 2, "negative time (-7)"),
        ("seq", pa.array(["0", "1", "2"]), None, "is string, not uint64"),
        ("channels", pa.array([1, 999, 2]), 1, "999 does not fit into uint8"),
        ("clock", pa.array(["gpu", "gpu", "sun"]), 2, "'sun' is none of gpu, proxy, none"),
        ("func", pa.array(["Send", None, "Recv"]), 1, "is null, and must not be"),
        ("func", pa.array([b"Send", b"\xff", b"Recv"]).view(pa.string()), 1, "is broken"),
        ("rank", pa.array([0.0, 1.0, float("nan")]), 2, "is double, not uint32"),
    ],
    ids=["negative time", "wrong type", "overflow", "choice", "null", "not utf8", "nan"],
)
@pytest.mark.parametrize("form", ["directory", "archive"])
def test_fault_is_named_by_file_column_and_row(
    form: str, column: str, values: pa.Array, row: int | None, complaint: str, tmp_path: Path
) -> None:
    case = write_directory(tmp_path / "case", {"collectives": with_column(COLLECTIVES, column, values)})
    if form == "archive":
        content = (case / "collectives.parquet").read_bytes()
        case = write_archive(tmp_path / "x.tar.zst", tar_of([INFO_MEMBER, member("collectives.parquet", content)]))
    error = refusal(case)
    assert place(error) == ("collectives.parquet", column, row)
    assert error.problem.startswith(complaint)


def test_missing_column_is_named(tmp_path: Path) -> None:
    error = refusal(write_directory(tmp_path / "case", {"collectives": COLLECTIVES.drop_columns(["rank"])}))
    assert str(error) == "collectives.parquet, column rank: the column is missing"


def test_row_is_counted_over_all_row_groups(tmp_path: Path) -> None:
    case = write_directory(tmp_path / "case", {})
    late = with_column(COLLECTIVES, "end_ns", pa.array([1, 2, -3]))
    pq.write_table(late, case / "collectives.parquet", row_group_size=1)
    assert place(refusal(case)) == ("collectives.parquet", "end_ns", 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_named(value: float, tmp_path: Path) -> None:
    paths = sample(TABLE_BY_NAME["paths"], 2)
    odd = with_column(paths, "confidence", pa.array([1.0, value]))
    assert place(refusal(write_directory(tmp_path / "case", {"paths": odd}))) == ("paths.parquet", "confidence", 1)


def test_same_key_twice_is_refused_with_both_rows(tmp_path: Path) -> None:
    comms = rows(make(Comm, rank=0), make(Comm, rank=1), make(Comm, rank=0, pid=9))
    error = refusal(write_directory(tmp_path / "case", {"comms": comms}))
    assert place(error) == ("comms.parquet", None, 2)
    assert error.problem == "has the same job, attempt, comm, rank as row 0"


def test_null_inside_a_map_is_named(tmp_path: Path) -> None:
    counters = rows(make(NicCounter, nic="eth0"), make(NicCounter, nic="eth1"))
    maps = pa.array([[("rx", 1)], [("rx", None)]], pa.map_(pa.string(), pa.uint64()))
    odd = with_column(counters, "extra", maps)
    error = refusal(write_directory(tmp_path / "case", {"nic_counters": odd}))
    assert place(error) == ("nic_counters.parquet", "extra", 1)


# Files at fault.


def test_parquet_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    case = write_directory(tmp_path / "case", {"collectives": COLLECTIVES})
    whole = (case / "collectives.parquet").read_bytes()
    for length in range(0, len(whole), 397):
        (case / "collectives.parquet").write_bytes(whole[:length])
        error = refusal(case)
        assert place(error) == ("collectives.parquet", None, None)
        assert error.problem.startswith("is not a whole Parquet file: ")


def test_parquet_larger_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = write_directory(tmp_path / "case", {"collectives": COLLECTIVES})
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 100)
    assert refusal(case).problem.startswith("unpacks to ")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_parquet_gives_sound_rows_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    case = write_directory(
        tmp_path_factory.mktemp("case"), {"transfers": rows(make(Transfer), make(Transfer, seq=1))}
    )
    damaged = bytearray((case / "transfers.parquet").read_bytes())
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
    "put", [lambda file: file.symlink_to("/etc/passwd"), os.mkfifo, Path.mkdir], ids=["symlink", "fifo", "folder"]
)
def test_what_is_no_plain_file_is_refused_unopened(name: str, put: Callable[[Path], None], tmp_path: Path) -> None:
    case = write_directory(tmp_path / "case", {})
    (case / name).unlink(missing_ok=True)
    put(case / name)
    error = refusal(case)
    assert (error.file, error.problem) == (name, "is not a plain file")


def test_link_to_nowhere_is_refused_too(tmp_path: Path) -> None:
    case = write_directory(tmp_path / "case", {})
    (case / "steps.parquet").symlink_to(tmp_path / "nowhere")
    assert refusal(case).file == "steps.parquet"


class Trap:
    """What an attacker would pickle: unpickling it makes a directory."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:  # Any: whatever the called function takes
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", [b"arrow.py_extension_type", b"pandas.extension"])
def test_pickle_in_the_metadata_of_a_table_is_never_opened(name: bytes, tmp_path: Path) -> None:
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    case = write_directory(tmp_path / "case", {})
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


def test_extension_type_of_arrow_is_refused_by_its_name(tmp_path: Path) -> None:
    odd = with_column(COLLECTIVES, "captured", pa.array([1, 0, 1], pa.int8()).cast(pa.bool8()))
    error = refusal(write_directory(tmp_path / "case", {"collectives": odd}))
    assert place(error) == ("collectives.parquet", "captured", None)
    assert "arrow.bool8" in error.problem
