"""What a capture is made of: its description, an optional topology and verdicts, and tables."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pydantic import Field, ValidationError
from pydantic_core import from_json

from lockstep.errors import BadCapture
from lockstep.tables import TABLES
from lockstep.topology import Topology
from lockstep.verdict import Frozen

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
        place = ".".join(map(str, first["loc"]))
        raise BadCapture(f"{place or 'the file'}: {first['msg']}", file=INFO_FILE) from None
    if info.end_ns < info.start_ns:
        raise BadCapture(f"ends at {info.end_ns}, before it starts at {info.start_ns}", file=INFO_FILE)
    return info


def dump_info(info: CaptureInfo) -> str:
    """Return capture.json."""
    return json.dumps(info.model_dump(exclude_none=True), indent=2) + "\n"
