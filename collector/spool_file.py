"""One parcel as a file of the spool: named by its place in the order, checked by its sum, whole or not there."""

import base64
import binascii
import json
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from collector.parcel import Parcel
from lockstep.directories import sync_directory
from lockstep.errors import BadInput

WAITING, SENT = ".batch", ".sent"
_NAME = re.compile(r"([0-9]{8})-([0-9a-f]{32})-([0-9]{12})\.(?:batch|sent)")


@dataclass(frozen=True, order=True)
class Place:
    """Where a parcel stands: which start of the agent it is of, and its number there. No clock has a say in it."""

    start: int
    number: int
    boot: str

    def name(self, ending: str) -> str:
        return f"{self.start:08}-{self.boot}-{self.number:012}{ending}"


def place_of(file: Path) -> Place | None:
    """Return the place that a file's name tells, None when it is not one of ours."""
    match = _NAME.fullmatch(file.name)
    return Place(int(match[1]), int(match[3]), match[2]) if match else None


def write_parcel(directory: Path, place: Place, parcel: Parcel, durable: bool) -> int:
    """Write a parcel and return its size; it is there in whole or not at all, also after a kill.

    `durable`: also after a power cut.
    """
    checkpoints = {source: base64.b64encode(state).decode() for source, state in parcel.checkpoints.items()}
    head = json.dumps({"rows": parcel.rows, "sum": zlib.crc32(parcel.body), "checkpoints": checkpoints})
    content = head.encode() + b"\n" + parcel.body
    unfinished = directory / (place.name(WAITING) + ".tmp")
    try:
        _write(unfinished, content, durable)
        unfinished.rename(directory / place.name(WAITING))
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(directory)
    return len(content)


def read_parcel(file: Path) -> Parcel:
    """Return what a file holds; BadInput when that is not what was written."""
    place = place_of(file)
    try:
        head, _, body = file.read_bytes().partition(b"\n")
        fields = json.loads(head)
        rows, checksum = int(fields["rows"]), int(fields["sum"])
        checkpoints = {name: base64.b64decode(text) for name, text in fields["checkpoints"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise BadInput(f"{file}: not a batch of the spool: {error}") from None
    if place is None or checksum != zlib.crc32(body):
        raise BadInput(f"{file}: the batch is not what was written")
    return Parcel(place.boot, place.number, body, rows, checkpoints)


def _write(file: Path, content: bytes, durable: bool) -> None:
    with open(file, "wb") as out:
        out.write(content)
        if durable:
            out.flush()
            os.fsync(out.fileno())
