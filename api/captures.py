"""Captures that were brought in: kept as archives to be judged anew, their jobs to be looked at like any other.

Rows about a job go into the store under the name that the job is given here. Rows about hosts stay in the archive: in
the store they would look like news of the cluster's own hosts, which may even have the same names.

`python -m api.captures ARCHIVE` judges one anew and prints a Replay as JSON: the embedded engine has one directory
per process, and what a capture holds is not trusted with the web process.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from analyzer.diagnosis import diagnose
from analyzer.pipeline import FollowOptions
from api.capture_check import check_capture
from api.dependencies import show_timestamp
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import TABLE_FILES, VERDICTS_FILE, Capture, read_capture, unpack
from lockstep.clock import NS_PER_S, SystemClock
from lockstep.errors import BadCapture, BadInput, LockstepError, NotPresent
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from lockstep.verdict import Frozen, Verdict

MOST_BYTES = 4 << 30  # of all tables in memory: what the web process can spare
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}")
_KNOWN = "SELECT count() AS rows FROM {table} WHERE job = {{job:String}}"
_ALIVE_NS = 600 * NS_PER_S  # the analyzer follows jobs that gave a sign of life in the last two minutes
_TIMESTAMPS = ("ts_ns", "start_ns", "end_ns", "enqueue_ns", "first_ns", "last_ns")
_JOB_TABLES = ("attempts", "wire_minutes", "progress")
LONGEST_S = 1800.0  # the largest captures that can be brought in are judged in a few minutes
_MOST_VERDICTS = 4 << 20  # bytes: they are kept in the web process, for two hundred operations
_MOST_TEXT = 500  # characters of a failure that are told


class Replay(Frozen):
    """What a capture is judged to be now, and what it was when it was made."""

    verdicts: tuple[Verdict, ...]
    before: tuple[Verdict, ...] | None = Field(None, description="as the capture came with; None: without any")
    rows: int = Field(ge=0, description="that were looked at")


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


def replay_apart(
    archive: Path, started: Callable[["subprocess.Popen[bytes]"], None], limit_s: float = LONGEST_S
) -> Replay:
    """Return how a capture is judged, by a child process; BadInput with its sentence where it cannot be judged."""
    command = [sys.executable, "-m", "api.captures", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        started(child)
        try:
            out, errors = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            raise BadInput(f"judging the capture took more than {limit_s:.0f} s and was given up") from None
    if child.returncode != 0:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise BadInput(
            (lines[-1] if lines else f"judging the capture ended with code {child.returncode}")[:_MOST_TEXT]
        )
    return Replay.model_validate_json(out)


def replay(archive: Path) -> Replay:
    """Return how a capture is judged, in this process, which must have no other store open."""
    with tempfile.TemporaryDirectory(prefix="lockstep-replay-") as folder:
        unpacked = Path(folder, "capture")
        unpacked.mkdir()
        unpack(archive, unpacked)
        capture = read_capture(unpacked)
        before = _read_verdicts(unpacked / VERDICTS_FILE)
        with open_store(f"chdb://{Path(folder, 'store')}") as store:
            migrate(store, Layout(store.database), SystemClock().now_ns())
            rows = load_capture(store, capture)
            topology = TopologyIndex(capture.topology) if capture.topology else None
            incidents = diagnose(store, topology, FollowOptions(), capture.info.job)
    return Replay(verdicts=tuple(incident.verdict for incident in incidents), before=before, rows=rows)


def _read_verdicts(file: Path) -> tuple[Verdict, ...] | None:
    if not file.is_file():
        return None
    if file.stat().st_size > _MOST_VERDICTS:
        raise BadInput(f"{VERDICTS_FILE} in the capture has more than {_MOST_VERDICTS >> 20} MiB")
    try:
        return tuple(Verdict.model_validate(each) for each in json.loads(file.read_bytes()))
    except (ValueError, TypeError, RecursionError, ValidationError) as error:
        raise BadInput(f"{VERDICTS_FILE} in the capture cannot be read: {str(error)[:200]}") from None


def main(archive: Path) -> int:
    """Print how a capture is judged, or one sentence on standard error."""
    try:
        sys.stdout.write(replay(archive).model_dump_json(by_alias=True))
    except LockstepError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
