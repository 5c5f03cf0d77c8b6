"""Captures that were brought in: kept as archives to be judged anew, their jobs to be looked at like any other.

Rows about a job go into the store under the name that the job is given here. Rows about hosts stay in the archive: in
the store they would look like news of the cluster's own hosts, which may even have the same names.
"""

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from api.capture_check import check_capture
from api.query import show_timestamp
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import TABLE_FILES, Capture, read_capture, unpack
from lockstep.clock import NS_PER_S
from lockstep.errors import BadCapture, BadInput, NotPresent
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.verdict import Frozen

MOST_BYTES = 4 << 30  # of all tables in memory: what the web process can spare
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}")
_KNOWN = "SELECT count() AS rows FROM {table} WHERE job = {{job:String}}"
_ALIVE_NS = 600 * NS_PER_S  # the analyzer follows jobs that gave a sign of life in the last two minutes
_TIMESTAMPS = ("ts_ns", "start_ns", "end_ns", "enqueue_ns", "first_ns", "last_ns")
_JOB_TABLES = ("attempts", "wire_minutes", "progress")


class StoredCapture(Frozen):
    """A capture that was brought in."""

    job: str = Field(description="as it is called here")
    original_job: str = Field(description="as it was called where it was made")
    bytes: int = Field(ge=0, description="of the archive")
    start_ns: int
    end_ns: int
    start_at: str | None = None
    imported_ns: int
    imported_at: str | None = None
    hosts: int = Field(ge=0)
    rows: dict[str, int] = Field(description="by table; those about hosts are only in the archive")
    has_topology: bool


@dataclass(frozen=True)
class CaptureFolder:
    """Archives by the name of their job, each with a description beside it."""

    folder: Path

    def new_file(self) -> Path:
        """Return a name for an upload, in the same file system as the archives."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".upload-", suffix=".tar.zst", delete=False) as file:
            return Path(file.name)

    def take(self, store: Store, upload: Path, job: str, now_ns: int) -> StoredCapture:
        """Keep an upload as the capture of a new job and put the job's rows into the store; raise what is wrong."""
        if not _JOB.fullmatch(job):
            raise BadInput(f"{job[:100]!r} is no name for an imported job: up to 100 letters, digits and . _ : @ -")
        rows = (store.query(_KNOWN.format(table=table), {"job": job})["rows"][0].as_py() for table in _JOB_TABLES)
        if self._archive(job).exists() or any(rows):
            raise BadInput(f"there is a job {job!r} already, and a capture must not mix with it: choose another name")
        capture = _read(upload)
        _check_past(capture, now_ns)
        described = _describe(capture, upload, job, now_ns)
        load_capture(store, _renamed(capture, job))
        upload.replace(self._archive(job))
        self._facts(job).write_text(described.model_dump_json(), encoding="utf-8")
        return described

    def list(self) -> list[StoredCapture]:
        """Return all captures that were brought in, by job."""
        files = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        found = [StoredCapture.model_validate_json(file.read_text(encoding="utf-8")) for file in files]
        return sorted(found, key=lambda each: each.job)

    def find(self, job: str) -> Path:
        """Return the archive of a job, or raise NotPresent."""
        archive = self._archive(job)
        if not _JOB.fullmatch(job) or not archive.is_file():
            raise NotPresent(f"no capture was brought in as job {job!r}")
        return archive

    def delete(self, job: str) -> None:
        """Forget an archive; the job's rows in the store end by their retention."""
        archive = self.find(job)
        self._facts(job).unlink(missing_ok=True)
        archive.unlink()

    def _archive(self, job: str) -> Path:
        return self.folder / f"{quote(job, safe='')}.tar.zst"

    def _facts(self, job: str) -> Path:
        return self.folder / f"{quote(job, safe='')}.json"


def _read(upload: Path) -> Capture:
    """Return a capture from an archive whose tables fit into memory."""
    check_capture(upload, MOST_BYTES)
    with tempfile.TemporaryDirectory(prefix="lockstep-import-") as folder:
        unpack(upload, Path(folder))
        size = sum(_size(Path(folder, name)) for name in TABLE_FILES if Path(folder, name).is_file())
        if size > MOST_BYTES:
            raise BadInput(f"its tables take {size >> 20} MiB in memory, and {MOST_BYTES >> 20} are the most")
        return read_capture(Path(folder))


def _check_past(capture: Capture, now_ns: int) -> None:
    """Raise BadInput for a job that would look alive: nodes of ours could be taken out for what is told of theirs."""
    for name, rows in capture.tables.items():
        timestamps = [column for column in _TIMESTAMPS if TABLE_BY_NAME[name].has_job and column in rows.column_names]
        last_ns = max((pc.max(rows[column]).as_py() or 0 for column in timestamps), default=0)
        if last_ns > now_ns - _ALIVE_NS:
            raise BadInput(
                f"{name} reaches to {show_timestamp(last_ns)}, and a capture is taken once it is ten minutes old"
            )


def _size(file: Path) -> int:
    try:
        with pq.ParquetFile(file) as parquet:
            groups = range(parquet.metadata.num_row_groups)
            return sum(parquet.metadata.row_group(number).total_byte_size for number in groups)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadCapture(f"is not a whole Parquet file: {str(error)[:300]}", file=file.name) from None


def _renamed(capture: Capture, job: str) -> Capture:
    """Return what is told of the job alone, under its new name."""
    tables = {}
    for name, rows in capture.tables.items():
        if TABLE_BY_NAME[name].has_job:
            position = rows.column_names.index("job")
            tables[name] = rows.set_column(
                position, rows.schema.field(position), pa.array([job] * rows.num_rows, pa.string())
            )
    return replace(capture, tables=tables)


def _describe(capture: Capture, upload: Path, job: str, now_ns: int) -> StoredCapture:
    info = capture.info
    return StoredCapture(
        job=job,
        original_job=info.job,
        bytes=upload.stat().st_size,
        start_ns=info.start_ns,
        end_ns=info.end_ns,
        start_at=show_timestamp(info.start_ns),
        imported_ns=now_ns,
        imported_at=show_timestamp(now_ns),
        hosts=len(info.hosts),
        rows={name: rows.num_rows for name, rows in capture.tables.items()},
        has_topology=capture.topology is not None,
    )
