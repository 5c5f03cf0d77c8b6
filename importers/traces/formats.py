"""Which recordings of other tools `lockstep import` reads, and how their files become a capture."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from lockstep.capture.files import CaptureInfo, CaptureWriter
from lockstep.errors import BadInput
from lockstep.tables import TABLE_BY_NAME

_MOST_DUMP_BYTES = 256 << 20  # 100,000 operations with their stacks stay below it
_PIECE_BYTES = 1 << 20
_MOST_LINE_BYTES = 2 << 20  # parsers refuse earlier; this bounds what they are handed

Report = Callable[[int], None]  # hears how many bytes were read since it last heard
Reader = Callable[[Sequence[Path], str, Report], Reading]


def read_inspector(files: Sequence[Path], job: str, report: Report) -> Reading:
    """Read what NCCL Inspector wrote, a file per process."""
    return parse_inspector(((str(path), _lines(path, report)) for path in files), job)


def read_flight_recorder(files: Sequence[Path], job: str, report: Report) -> Reading:
    """Read dumps of PyTorch's Flight Recorder, a file per rank."""
    return parse_flight_recorder({str(path): _content(path, report) for path in files}, job)


def read_ras(files: Sequence[Path], job: str, report: Report) -> Reading:
    """Read saved answers of NCCL's RAS, an answer per file, given when the file was last written."""
    return parse_ras([Answer(str(path), _content(path, report), path.stat().st_mtime_ns) for path in files], job)


def read_nccl_tests(files: Sequence[Path], job: str, report: Report) -> Reading:
    """Read logs of nccl-tests, written when the file was last written."""
    return parse_nccl_tests((Log(str(path), _lines(path, report), path.stat().st_mtime_ns) for path in files), job)


def read_kineto(files: Sequence[Path], job: str, report: Report) -> Reading:
    """Read traces of PyTorch's profiler, a file per rank, perhaps packed with gzip."""
    return parse_kineto(((str(path), _pieces(path, report)) for path in files), job)


def read_alertmanager(files: Sequence[Path], job: str, report: Report) -> Reading:
    """Read saved notifications of Alertmanager, one a file or one a line."""
    return parse_alertmanager([Saved(str(path), _content(path, report)) for path in files])


def read_gpud(files: Sequence[Path], job: str, report: Report) -> Reading:
    """Read saved answers of gpud; a file is named after its host: `h3.json`, `h3.states.json`."""
    return parse_gpud([GpudAnswer(str(path), path.name.partition(".")[0], _content(path, report)) for path in files])


FORMATS: Mapping[str, Reader] = {
    "alertmanager": read_alertmanager,
    "flight-recorder": read_flight_recorder,
    "gpud": read_gpud,
    "inspector": read_inspector,
    "kineto": read_kineto,
    "nccl-tests": read_nccl_tests,
    "ras": read_ras,
}


def _nobody(_: int) -> None:
    """Hear nothing."""


def import_recordings(
    read: Reader, files: Sequence[Path], target: Path, job: str, report: Report = _nobody
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
    timestamps = [timestamp for name, rows in tables.items() for timestamp in _bounds(name, rows)]
    if not timestamps:
        raise BadInput("these files tell nothing that a capture could hold")
    hosts = sorted({host for rows in tables.values() for host in pc.unique(rows["host"]).to_pylist()})
    by_number = sorted(hosts, key=lambda host: (len(host), host))
    return CaptureInfo(job=job, start_ns=min(timestamps), end_ns=max(timestamps), hosts=tuple(by_number))


def _bounds(name: str, rows: pa.Table) -> list[int]:
    columns = [column for column in (TABLE_BY_NAME[name].time, "end_ns") if column in rows.column_names]
    bounds = [pc.min_max(rows[column]).as_py() for column in columns]
    return [timestamp for bound in bounds for timestamp in bound.values() if timestamp is not None]


def _lines(path: Path, report: Report) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while line := file.readline(_MOST_LINE_BYTES):
            yield line
            report(len(line))


def _pieces(path: Path, report: Report) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
            report(len(piece))


def _content(path: Path, report: Report) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_MOST_DUMP_BYTES + 1)
    if len(data) > _MOST_DUMP_BYTES:
        raise BadInput(f"{path}: is longer than {_MOST_DUMP_BYTES >> 20} MiB")
    report(len(data))
    return data
