"""What a file was recorded by, as its beginning shows: names are whatever somebody saved it under."""

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.errors import BadInput

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
