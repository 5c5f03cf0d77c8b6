"""What a capture is made of: its description, an optional topology and verdicts, and tables."""

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError
from pydantic_core import from_json

from lockstep.arrow import conform, find_duplicate, schema_of
from lockstep.errors import BadCapture, BadInput, BadRows, BadTopology
from lockstep.tables import TABLES, Table
from lockstep.topology import Topology, dump_topology, parse_topology
from lockstep.verdict import Frozen, Verdict

CAPTURE_VERSION = 1
INFO_FILE = "capture.json"
TOPOLOGY_FILE = "topology.json"
VERDICTS_FILE = "verdicts.json"
TABLE_FILES = {f"{table.name}.parquet": table for table in TABLES}
KNOWN_FILES = frozenset({INFO_FILE, TOPOLOGY_FILE, VERDICTS_FILE, *TABLE_FILES})
_LAST_NS = 2**63 - 1  # what the times in the tables can hold


class JobLayout(Frozen):
    """The parallel layout as somebody told it: a hint, never a premise."""

    tp: int | None = Field(None, ge=1)
    pp: int | None = Field(None, ge=1)
    dp: int | None = Field(None, ge=1)
    cp: int | None = Field(None, ge=1)
    ep: int | None = Field(None, ge=1)


class CaptureInfo(Frozen):
    """Whose telemetry this is and from when to when."""

    version: int = Field(CAPTURE_VERSION, ge=1)
    job: str
    start_ns: int = Field(ge=0, le=_LAST_NS)
    end_ns: int = Field(ge=0, le=_LAST_NS)
    layout: JobLayout | None = None
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Capture:
    """A capture in memory; every table in it has passed all checks."""

    info: CaptureInfo
    topology: Topology | None = None
    tables: Mapping[str, pa.Table] = field(default_factory=dict)


def parse_info(text: str) -> CaptureInfo:
    """Return the description of a capture, or raise BadCapture with what is wrong in it."""
    try:
        given = from_json(text)  # not json: that lets other errors out, at numbers and nestings beyond its limits
    except ValueError as error:
        raise BadCapture(f"is not JSON: {error}", file=INFO_FILE) from None
    version = given.get("version") if isinstance(given, dict) else None
    if isinstance(version, int) and version > CAPTURE_VERSION:
        problem = f"is version {version}, newer than the {CAPTURE_VERSION} this code reads"
        raise BadCapture(problem, file=INFO_FILE)
    try:
        info = CaptureInfo.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        raise BadCapture(f"{location or 'the file'}: {first['msg']}", file=INFO_FILE) from None
    if info.end_ns < info.start_ns:
        raise BadCapture(f"ends at {info.end_ns}, before it starts at {info.start_ns}", file=INFO_FILE)
    return info


def dump_info(info: CaptureInfo) -> str:
    """Return capture.json."""
    return json.dumps(info.model_dump(exclude_none=True), indent=2) + "\n"


MAX_UNPACKED_BYTES = 32 << 30  # a day of 4,096 ranks; more than that is a mistake or an attack
_SMALL_BYTES, _MOST_RATIO = 64 << 20, 50  # Parquet is packed already: our own archives unpack to less than thrice
MAX_MEMBERS = 1_000  # a capture has two dozen files; tarfile remembers each member it has met
_MAX_EXTENSION_BYTES = 64 << 10  # of a header that goes on in a block of its own, which is read in one piece
_EXTENSIONS = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)


def is_archive(path: Path) -> bool:
    return path.name.endswith((".tar.zst", ".tzst"))


def pack(directory: Path, archive: Path) -> None:
    """Write the files of a capture directory into an archive, whole or not at all."""
    partial = archive.with_name(archive.name + ".partial")
    try:
        with (
            pa.output_stream(str(partial), compression="zstd") as sink,
            tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            for file in sorted(directory.iterdir(), key=lambda file: (file.name != INFO_FILE, file.name)):
                tar.add(file, arcname=file.name, filter=_anonymous)
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)


def unpack(archive: Path, directory: Path) -> None:
    """Write the known files of an archive into a directory; anything odd in it raises BadCapture.

    Names come from a list of ours, so no name in the archive is ever used as a path. What says whose telemetry it is
    stands first in archives of ours, and is checked before anything behind it is unpacked.
    """
    most = find_room(archive.stat().st_size, shutil.disk_usage(directory).free)
    with _reading(archive) as tar:
        seen: set[str] = set()
        room = most
        for number, member in enumerate(tar):
            name = _checked_name(member, archive)
            room -= member.size  # also of what we skip: skipping reads it
            if room < 0:
                raise BadCapture(f"unpacks to more than {most >> 20} MiB", file=archive.name)
            if number >= MAX_MEMBERS:
                raise BadCapture(f"holds more than {MAX_MEMBERS} files", file=archive.name)
            if name in seen:
                raise BadCapture(f"holds {name} twice", file=archive.name)
            if name is not None:
                seen.add(name)
                _copy(tar, member, directory / name)
            if name == INFO_FILE:
                parse_info(_text(directory / name))


def find_room(archive_bytes: int, free_bytes: int) -> int:
    """Return to how many bytes an archive may unpack, by its own size and by half of what the disk has free.

    >>> find_room(1_000, 1 << 40) >> 20, find_room(1 << 30, 1 << 40) >> 30, find_room(1 << 30, 1 << 30) >> 20
    (64, 32, 512)
    """
    return min(MAX_UNPACKED_BYTES, _SMALL_BYTES + _MOST_RATIO * archive_bytes, free_bytes // 2)


class _Member(tarfile.TarInfo):
    """A member whose header is whole; tarfile itself takes a broken one for the end and says nothing."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # public, yet unknown to typeshed
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None
        if member.type in _EXTENSIONS and member.size > _MAX_EXTENSION_BYTES:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made it and when, so that the same capture gives the same archive."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


@contextmanager
def _reading(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with (
            pa.input_stream(str(archive), compression="zstd") as source,
            tarfile.open(fileobj=source, mode="r|", tarinfo=_Member) as tar,
        ):
            yield tar
    # tarfile lets ValueError and RecursionError out of headers that nobody would write by accident.
    except (tarfile.TarError, OSError, EOFError, pa.ArrowException, ValueError, RecursionError) as error:
        raise BadCapture(f"is not a whole .tar.zst: {error}", file=archive.name) from None


def _checked_name(member: tarfile.TarInfo, archive: Path) -> str | None:
    """Return which of our files a member is, None for one we do not know, or refuse it."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise BadCapture(f"holds {member.name!r}, which points outside of it", file=archive.name)
    if not (member.isfile() or member.isdir()) or member.issparse() or member.size < 0:
        raise BadCapture(f"holds {member.name!r}, which is not a plain file", file=archive.name)
    if member.isdir() or len(path.parts) > 2:  # files lie at the top, or in one folder
        return None
    return path.name if path.name in KNOWN_FILES else None


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None, "isfile() was checked"
    with open(target, "wb") as sink:
        shutil.copyfileobj(source, sink)
    if target.stat().st_size != member.size:
        raise BadCapture("ends in the middle of the file", file=member.name)


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
    if not _is_there(directory / INFO_FILE):
        raise BadCapture("the capture lacks this file, which says whose telemetry it is", file=INFO_FILE)
    info = parse_info(_text(directory / INFO_FILE))
    tables = {
        table.name: _read_table(directory / name, table)
        for name, table in TABLE_FILES.items()
        if _is_there(directory / name)
    }
    return Capture(info=info, topology=_read_topology(directory), tables=tables)


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


def _refuse_to_overwrite(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise BadInput(f"{path} exists already; captures are never overwritten")
