"""Captures to disk: streamed table by table, visible under their name only when they are whole."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lockstep.arrow import schema_of
from lockstep.capture.archive import is_archive, pack
from lockstep.capture.contents import INFO_FILE, TOPOLOGY_FILE, VERDICTS_FILE, Capture, CaptureInfo, dump_info
from lockstep.errors import BadInput
from lockstep.tables import TABLE_BY_NAME, Table
from lockstep.topology import Topology, dump_topology
from lockstep.verdict import Verdict


class CaptureWriter:
    """Takes rows in any order and writes them as they come; memory stays at one batch per table.

    Use as a context manager: `finish` makes the capture appear; without it nothing is left behind.
    """

    def __init__(self, path: Path) -> None:
        _refuse_to_overwrite(path)
        self._path = path
        self._partial = path.with_name(path.name + ".partial.d")
        self._writers: dict[str, pq.ParquetWriter] = {}
        shutil.rmtree(self._partial, ignore_errors=True)  # left by a writer that was killed
        self._partial.mkdir(parents=True)

    def write(self, table: Table, rows: pa.Table) -> None:
        """Append rows to a table; they must already have the table's schema."""
        if rows.num_rows == 0:
            return
        if table.name not in self._writers:
            file = self._partial / f"{table.name}.parquet"
            self._writers[table.name] = pq.ParquetWriter(file, schema_of(table), compression="zstd")
        self._writers[table.name].write_table(rows)

    def finish(
        self, info: CaptureInfo, topology: Topology | None = None, verdicts: Sequence[Verdict] | None = None
    ) -> None:
        """Complete the capture and give it its name."""
        self._close_tables()
        (self._partial / INFO_FILE).write_text(dump_info(info), encoding="utf-8")
        if topology:
            (self._partial / TOPOLOGY_FILE).write_text(dump_topology(topology), encoding="utf-8")
        if verdicts is not None:
            text = json.dumps([verdict.as_json() for verdict in verdicts], indent=2)
            (self._partial / VERDICTS_FILE).write_text(text + "\n", encoding="utf-8")
        _refuse_to_overwrite(self._path)  # again: writing took a while
        if is_archive(self._path):
            pack(self._partial, self._path)
        else:
            self._partial.rename(self._path)

    def __enter__(self) -> "CaptureWriter":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._close_tables()
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def _close_tables(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def write_capture(path: Path, capture: Capture, verdicts: Sequence[Verdict] | None = None) -> None:
    """Write a capture that is in memory."""
    with CaptureWriter(path) as writer:
        for name, rows in capture.tables.items():
            writer.write(TABLE_BY_NAME[name], rows)
        writer.finish(capture.info, capture.topology, verdicts)


def _refuse_to_overwrite(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise BadInput(f"{path} exists already; captures are never overwritten")
