"""How far the sources were, on a disk that has no room left: written in place, into space that was taken before."""

import base64
import json
import os
import zlib
from pathlib import Path

from collector.parcel import Checkpoints
from collector.spool_file import Place

_SLOT_BYTES = 1 << 18
_HEAD_BYTES = 16  # length and sum, as text


class CheckpointSlot:
    """A file of two slots, written in turn, so that a kill in mid-write leaves the other one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turn = 0
        self._has_space = _reserve(file)

    def write(self, place: Place, checkpoints: Checkpoints) -> None:
        """Save it; OSError when it does not fit or there never was space."""
        states = {source: base64.b64encode(state).decode() for source, state in checkpoints.items()}
        body = json.dumps([place.start, place.number, place.boot, states]).encode()
        if not self._has_space or len(body) > _SLOT_BYTES - _HEAD_BYTES:
            raise OSError("no space was reserved for the state of the sources")
        content = f"{len(body):7} {zlib.crc32(body):08x}".encode() + body
        with open(self._file, "r+b", buffering=0) as out:
            out.seek(self._turn * _SLOT_BYTES)
            out.write(content)
        self._turn = 1 - self._turn

    def read(self) -> tuple[Place, Checkpoints] | None:
        """Return what was saved last, None when nothing was."""
        try:
            content = self._file.read_bytes()
        except OSError:
            return None
        saved = [slot for turn in (0, 1) if (slot := _parse(content[turn * _SLOT_BYTES :][:_SLOT_BYTES]))]
        return max(saved, key=lambda slot: slot[0], default=None)


def _reserve(file: Path) -> bool:
    """Take the space while there is some; return whether it is ours."""
    size = 2 * _SLOT_BYTES
    try:
        if not file.exists() or file.stat().st_size != size:
            file.write_bytes(bytes(size))
        with open(file, "r+b") as out:
            os.posix_fallocate(out.fileno(), 0, size)
    except OSError:
        return False
    return True


def _parse(slot: bytes) -> tuple[Place, Checkpoints] | None:
    try:
        length, checksum = int(slot[:7]), int(slot[8:_HEAD_BYTES], 16)
        body = slot[_HEAD_BYTES : _HEAD_BYTES + length]
        if zlib.crc32(body) != checksum:
            return None
        start, number, boot, states = json.loads(body)
    except ValueError:
        return None
    return Place(start, number, boot), {name: base64.b64decode(state) for name, state in states.items()}
