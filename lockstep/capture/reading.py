"""Captures from disk: every file checked, every fault named by file, column and row."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.arrow import conform, find_duplicate
from lockstep.capture.archive import MAX_UNPACKED_BYTES, is_archive, unpack
from lockstep.capture.contents import INFO_FILE, TABLE_FILES, TOPOLOGY_FILE, Capture, CaptureInfo, parse_info
from lockstep.errors import BadCapture, BadRows, BadTopology
from lockstep.tables import Table
from lockstep.topology import Topology, parse_topology

MAX_TEXT_BYTES = 256 << 20  # the topology of the largest clusters has tens of MiB


def read_capture(path: Path) -> Capture:
    """Return a capture from a directory or a .tar.zst, or raise BadCapture with the first fault found."""
    if path.is_dir():
        return _read_directory(path)
    if not path.exists():
        raise BadCapture("there is no such file or directory", file=str(path))
    if not is_archive(path):
        raise BadCapture("a capture is a directory or a .tar.zst", file=str(path))
    with tempfile.TemporaryDirectory(prefix="lockstep-capture-") as unpacked:
        unpack(path, Path(unpacked))
        return _read_directory(Path(unpacked))


def _read_directory(directory: Path) -> Capture:
    info = _read_info(directory)
    tables = {
        table.name: _read_table(directory / name, table)
        for name, table in TABLE_FILES.items()
        if _is_there(directory / name)
    }
    return Capture(info=info, topology=_read_topology(directory), tables=tables)


def _read_info(directory: Path) -> CaptureInfo:
    file = directory / INFO_FILE
    if not _is_there(file):
        raise BadCapture("the capture lacks this file, which says whose telemetry it is", file=INFO_FILE)
    return parse_info(_text(file))


def _read_topology(directory: Path) -> Topology | None:
    file = directory / TOPOLOGY_FILE
    if not _is_there(file):
        return None
    try:
        return parse_topology(_text(file))
    except BadTopology as error:
        raise BadCapture("; ".join(error.complaints), file=TOPOLOGY_FILE) from None


def _read_table(file: Path, table: Table) -> pa.Table:
    rows = _read_parquet(file)
    try:
        rows = conform(table, rows)
    except BadRows as error:
        raise BadCapture(error.problem, file=file.name, column=error.column, row=error.row) from None
    twice = find_duplicate(table, rows)
    if twice:
        problem = f"has the same {', '.join(table.key)} as row {twice[0]}"
        raise BadCapture(problem, file=file.name, row=twice[1])
    return rows


def _read_parquet(file: Path) -> pa.Table:
    try:
        with pq.ParquetFile(file) as parquet:
            metadata = parquet.metadata
            size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
            if size > MAX_UNPACKED_BYTES:
                raise BadCapture(f"unpacks to {size >> 30} GiB", file=file.name)
            return parquet.read(use_pandas_metadata=False)
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        raise BadCapture(f"is not a whole Parquet file: {_short(error)}", file=file.name) from None


def _is_there(file: Path) -> bool:
    """Return whether a plain file is there; links and devices are refused, whatever they lead to."""
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise BadCapture("is not a plain file", file=file.name)
    return file.exists()


def _text(file: Path) -> str:
    if file.stat().st_size > MAX_TEXT_BYTES:
        raise BadCapture(f"has more than {MAX_TEXT_BYTES >> 20} MiB", file=file.name)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadCapture(f"cannot be read: {_short(error)}", file=file.name) from None


def _short(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:300]
