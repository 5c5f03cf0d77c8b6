"""Which recordings of other tools `lockstep import` reads, how they are recognized, and how they become a capture.

A file is recognized by its beginning: names are whatever somebody saved it under.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from importers.traces.alertmanager import Saved, parse_alertmanager
from importers.traces.flight_recorder import parse_flight_recorder
from importers.traces.gpud import Answer as GpudAnswer
from importers.traces.gpud import parse_gpud
from importers.traces.inspector import parse_inspector
from importers.traces.kineto import parse_kineto
from importers.traces.nccl_tests import Log, parse_nccl_tests
from importers.traces.ras import Answer, parse_ras
from importers.traces.readings import Reading
from importers.traces.step_logs import parse_megatron, parse_mlperf
from lockstep.capture.files import CaptureInfo, CaptureWriter
from lockstep.errors import BadInput
from lockstep.tables import TABLE_BY_NAME

_MOST_DUMP_BYTES = 256 << 20  # 100,000 operations with their stacks stay below it
_PIECE_BYTES = 1 << 20
_MOST_LINE_BYTES = 2 << 20  # parsers refuse earlier; this bounds what they are handed

Report = Callable[[int], None]  # hears how many bytes were read since it last heard
Reader = Callable[[Sequence[Path], str, Report], Reading]


def _stamped(path: Path) -> int:
    return path.stat().st_mtime_ns  # recordings that tell no time have that of their file


def _logs(files: Sequence[Path], report: Report) -> Iterator[Log]:
    return (Log(str(path), _pieces(path, report, is_lines=True), _stamped(path)) for path in files)


FORMATS: Mapping[str, Reader] = {
    # One notification a file or one a line.
    "alertmanager": lambda files, job, report: parse_alertmanager(
        [Saved(str(path), _content(path, report)) for path in files]
    ),
    # A file per rank.
    "flight-recorder": lambda files, job, report: parse_flight_recorder(
        {str(path): _content(path, report) for path in files}, job
    ),
    # A file is named after its host: `h3.json`, `h3.states.json`.
    "gpud": lambda files, job, report: parse_gpud(
        [GpudAnswer(str(path), path.name.partition(".")[0], _content(path, report)) for path in files]
    ),
    # A file per process.
    "inspector": lambda files, job, report: parse_inspector(
        ((str(path), _pieces(path, report, is_lines=True)) for path in files), job
    ),
    # A file per rank, perhaps packed with gzip.
    "kineto": lambda files, job, report: parse_kineto(((str(path), _pieces(path, report)) for path in files), job),
    "megatron": lambda files, job, report: parse_megatron(_logs(files, report), job),
    "mlperf": lambda files, job, report: parse_mlperf(_logs(files, report), job),
    "nccl-tests": lambda files, job, report: parse_nccl_tests(_logs(files, report), job),
    # An answer per file.
    "ras": lambda files, job, report: parse_ras(
        [Answer(str(path), _content(path, report), _stamped(path)) for path in files], job
    ),
}


def import_recordings(
    read: Reader, files: Sequence[Path], target: Path, job: str, report: Report = lambda _: None
) -> Reading:
    """Write a capture of what these files tell, or raise one sentence and leave nothing behind."""
    reading = read(files, job, report)
    tables = reading.tables()
    info = describe(job, tables)
    with CaptureWriter(target) as writer:
        for name, rows in tables.items():
            writer.write(TABLE_BY_NAME[name], rows)
        writer.finish(info)
    return reading


def describe(job: str, tables: Mapping[str, pa.Table]) -> CaptureInfo:
    """Return whose rows these are and from when to when."""
    columns = [
        rows[column]
        for name, rows in tables.items()
        for column in (TABLE_BY_NAME[name].time, "end_ns")
        if column in rows.column_names
    ]
    bounds = [bound for column in columns for bound in pc.min_max(column).as_py().values()]
    timestamps = [bound for bound in bounds if bound is not None]
    if not timestamps:
        raise BadInput("these files tell nothing that a capture could hold")
    hosts = sorted({host for rows in tables.values() for host in pc.unique(rows["host"]).to_pylist()})
    by_number = sorted(hosts, key=lambda host: (len(host), host))
    return CaptureInfo(job=job, start_ns=min(timestamps), end_ns=max(timestamps), hosts=tuple(by_number))


def _pieces(path: Path, report: Report, is_lines: bool = False) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.readline(_MOST_LINE_BYTES) if is_lines else file.read(_PIECE_BYTES):
            yield piece
            report(len(piece))


def _content(path: Path, report: Report) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_MOST_DUMP_BYTES + 1)
    if len(data) > _MOST_DUMP_BYTES:
        raise BadInput(f"{path}: is longer than {_MOST_DUMP_BYTES >> 20} MiB")
    report(len(data))
    return data


_HEAD_BYTES = 1 << 20  # launchers write long preambles before the first step of a log
_MOST_FILES = 100_000
_GZIP, _PICKLE = b"\x1f\x8b", b"\x80"
# The first that fits. Each is what its writer puts into every file of the kind, however old.
_MARKS = {
    name: re.compile(pattern, re.MULTILINE)
    for name, pattern in (
        ("inspector", rb'"inspector_output_format_version"'),
        ("flight-recorder", rb'"pg_config"|"pg_status"'),
        ("kineto", rb'"(?:traceEvents|distributedInfo|deviceProperties)"\s*:'),
        ("alertmanager", rb'"(?:groupKey|groupLabels|startsAt)"\s*:'),
        ("gpud", rb'\A\s*\[\s*\{\s*"component"\s*:'),
        ("ras", rb'"communicators"\s*:|^Job summary$'),
        ("mlperf", rb"^[^\n]{0,200}:::MLLOG "),
        ("megatron", rb"\belapsed time per iteration \(ms\): "),
        ("nccl-tests", rb"# nccl-tests version |# nThread \d+ nGpus "),
    )
}
_Group = tuple[str, Path]  # a format, and the folder of its files: what lies together was recorded together


@dataclass
class Found:
    """Recordings by what made them and where they lie, captures of our own, and what nobody knows."""

    recordings: dict[_Group, list[Path]] = field(default_factory=dict)
    captures: list[Path] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)


def recognize(path: Path) -> str | None:
    """Return the format of a recording, as `lockstep import` calls it; None for what is none that we read."""
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_GZIP):
        return "kineto" if _MARKS["kineto"].search(_unpacked(head)) else None  # no other importer unpacks
    if head.startswith(_PICKLE):
        return "flight-recorder" if b"pg_config" in head or b"entries" in head else None
    return next((name for name, mark in _MARKS.items() if mark.search(head)), None)


def find_recordings(paths: Iterable[Path]) -> Found:
    """Return what lies at these paths and below them."""
    found = Found()
    for number, path in enumerate(_walk(paths)):
        if number >= _MOST_FILES:
            raise BadInput(f"there are more than {_MOST_FILES:,} files: name the folder of one run")
        if path.is_dir() or path.name.endswith(".tar.zst"):
            found.captures.append(path)
        elif name := recognize(path):
            found.recordings.setdefault((name, path.parent), []).append(path)
        else:
            found.unknown.append(path)
    return found


def _walk(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield files, and folders that are captures; links below a folder are not followed, and pipes not read."""
    for path in paths:
        if not path.is_dir() or (path / "capture.json").is_file():
            yield path
        else:
            below = (each for each in path.iterdir() if not each.is_symlink())
            yield from _walk(sorted(each for each in below if each.is_dir() or each.is_file()))


def _unpacked(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""
