"""Which recordings of other tools `lockstep import` reads, and how their files become a capture."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.capture.contents import CaptureInfo
from lockstep.capture.writing import CaptureWriter
from lockstep.errors import BadInput
from lockstep.intake.flight_recorder import parse_flight_recorder
from lockstep.intake.inspector import parse_inspector
from lockstep.intake.ras import Answer, parse_ras
from lockstep.intake.readings import Reading
from lockstep.tables import TABLE_BY_NAME

_MOST_DUMP_BYTES = 256 << 20  # 100,000 operations with their stacks stay below it
_MOST_LINE_BYTES = 2 << 20  # parsers refuse earlier; this bounds what they are handed

Reader = Callable[[Sequence[Path], str], Reading]


def read_inspector(files: Sequence[Path], job: str) -> Reading:
    """Read what NCCL Inspector wrote, a file per process."""
    return parse_inspector(((str(path), _lines(path)) for path in files), job)


def read_flight_recorder(files: Sequence[Path], job: str) -> Reading:
    """Read dumps of PyTorch's Flight Recorder, a file per rank."""
    return parse_flight_recorder({str(path): _content(path) for path in files}, job)


def read_ras(files: Sequence[Path], job: str) -> Reading:
    """Read saved answers of NCCL's RAS, an answer per file, given when the file was last written."""
    return parse_ras([Answer(str(path), _content(path), path.stat().st_mtime_ns) for path in files], job)


FORMATS: Mapping[str, Reader] = {
    "flight-recorder": read_flight_recorder,
    "inspector": read_inspector,
    "ras": read_ras,
}


def import_recordings(read: Reader, files: Sequence[Path], target: Path, job: str) -> Reading:
    """Write a capture of what these files tell, or raise one sentence and leave nothing behind."""
    reading = read(files, job)
    tables = reading.tables()
    info = describe(job, tables)
    with CaptureWriter(target) as writer:
        for name, rows in tables.items():
            writer.write(TABLE_BY_NAME[name], rows)
        writer.finish(info)
    return reading


def describe(job: str, tables: Mapping[str, pa.Table]) -> CaptureInfo:
    """Return whose rows these are and from when to when."""
    moments = [moment for name, rows in tables.items() for moment in _bounds(name, rows)]
    if not moments:
        raise BadInput("these files tell nothing that a capture could hold")
    hosts = sorted({host for rows in tables.values() for host in pc.unique(rows["host"]).to_pylist()})
    by_number = sorted(hosts, key=lambda host: (len(host), host))
    return CaptureInfo(job=job, start_ns=min(moments), end_ns=max(moments), hosts=tuple(by_number))


def _bounds(name: str, rows: pa.Table) -> list[int]:
    columns = [column for column in (TABLE_BY_NAME[name].time, "end_ns") if column in rows.column_names]
    bounds = [pc.min_max(rows[column]).as_py() for column in columns]
    return [moment for bound in bounds for moment in bound.values() if moment is not None]


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while line := file.readline(_MOST_LINE_BYTES):
            yield line


def _content(path: Path) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_MOST_DUMP_BYTES + 1)
    if len(data) > _MOST_DUMP_BYTES:
        raise BadInput(f"{path}: is longer than {_MOST_DUMP_BYTES >> 20} MiB")
    return data
