"""Captures to test with: rows of every table, files on disk, and archives that nobody should trust."""

import io
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.arrow import schema_of
from lockstep.capture.files import INFO_FILE, Capture, CaptureInfo, CaptureWriter, dump_info
from lockstep.fabrics import leaf_spine
from lockstep.tables import TABLE_BY_NAME, TABLES, Column, Table, columns_of
from lockstep.verdict import Verdict
from tests.builders import SECOND, T0

INFO = CaptureInfo(job="j1", start_ns=T0, end_ns=T0 + 10 * SECOND, hosts=("h0", "h1"))
TOPOLOGY = leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1)


def sample(table: Table, count: int = 5) -> pa.Table:
    """Return rows of any table that differ in every column; what may be null is null in every third row."""
    columns = columns_of(table).values()
    values = {
        column.name: [_value(column, row, place) for row in range(count)] for place, column in enumerate(columns)
    }
    return pa.table(values, schema=schema_of(table))


def whole_capture() -> Capture:
    return Capture(INFO, TOPOLOGY, {table.name: sample(table) for table in TABLES})


def write_capture(path: Path, capture: Capture, verdicts: Sequence[Verdict] | None = None) -> None:
    with CaptureWriter(path) as writer:
        for name, rows in capture.tables.items():
            writer.write(TABLE_BY_NAME[name], rows)
        writer.finish(capture.info, capture.topology, verdicts)


def _value(column: Column, row: int, place: int) -> Any:  # Any: each kind has its own type
    if column.name in ("job", "attempt"):
        return "j1" if column.name == "job" else 0
    if column.nullable and (row + place) % 3 == 0:
        return None
    match column.kind:
        case "i32":
            return row - 1  # -1 is no peer, which makes the row one of a collective
        case "str":
            return f"h{row}" if column.name == "host" else f"{column.name} {row} ü"
        case "choice":
            return column.choices[row % len(column.choices)]
        case "bool":
            return row % 2 == 0
        case "f64":
            return row / 3
        case "timestamp":
            return T0 + row * SECOND + place
        case "texts":
            return [f"leaf{row}"] * row
        case "counters":
            return {f"counter{number}": 2**63 + number for number in range(row)}
        case _:
            return row


def write_directory(directory: Path, tables: Mapping[str, pa.Table], info: str = dump_info(INFO)) -> Path:
    """Write a capture directory as a foreign program might: any columns, any file."""
    directory.mkdir(exist_ok=True)
    (directory / INFO_FILE).write_text(info, encoding="utf-8")
    for name, rows in tables.items():
        pq.write_table(rows, directory / f"{name}.parquet")
    return directory


def member(name: str, content: bytes = b"", **header: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of an archive; `header` sets whatever tarfile lets one set."""
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for key, value in header.items():
        setattr(made, key, value)
    return made, content


INFO_MEMBER = member(INFO_FILE, dump_info(INFO).encode())


def tar_of(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for header, content in members:
            tar.addfile(header, io.BytesIO(content))
    return sink.getvalue()


def write_archive(file: Path, tar: bytes) -> Path:
    with pa.output_stream(str(file), compression="zstd") as sink:
        sink.write(tar)
    return file


def read_tar(archive: Path) -> bytes:
    with pa.input_stream(str(archive), compression="zstd") as source:
        return bytes(source.read())
