"""Is a file that torch.save wrote whole, and what does it say? Without torch, and without reading its numbers.

Such a file is a zip whose directory stands at its end: a file that was cut short has lost it.
"""

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lockstep.errors import BadInput
from planner.recovery.checkpoints.inert_pickle import read_state

_BEGIN, _ENTRY = b"PK\x03\x04", b"PK\x01\x02"
_END = struct.Struct("<4s4H2LH")  # end of central directory, APPNOTE 4.3.16
_LOCATOR = struct.Struct("<4sLQL")  # of the 64-bit end, 4.3.15
_END_64 = struct.Struct("<4sQ2H2L4Q")  # 4.3.14
_TAIL = _END_64.size + _LOCATOR.size + _END.size  # torch writes no comment after them
_MOST_DIRECTORY_BYTES = 64 << 20  # some 100 bytes for each tensor
_MOST_PICKLE_BYTES = 256 << 20


def find_damage(path: Path, size: int) -> str | None:
    """Return what is wrong with a file of that size, or None where its begin, its end and its directory are there."""
    if size == 0:
        return "is empty"
    try:
        with path.open("rb") as file:
            return None if _find_directory(file, size) else "is cut short or no file of torch: its zip has no end"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def read_saved(path: Path, size: int) -> Mapping[Any, Any]:  # Any: what a job saved
    """Return the dictionary that torch.save wrote, its tensors left out, or raise BadInput with a sentence."""
    try:
        with path.open("rb") as file:
            directory = _find_directory(file, size)
            if not directory or directory[1] > _MOST_DIRECTORY_BYTES:
                raise BadInput(f"{path.name} has no zip directory of a size that torch writes")
            saved = read_state(path.name, _read_pickle(path.name, file))
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, struct.error) as error:
        raise BadInput(f"{path.name} cannot be read: {error}") from None
    if not isinstance(saved, dict):
        raise BadInput(f"{path.name} does not hold a dictionary")
    return saved


def _find_directory(file: BinaryIO, size: int) -> tuple[int, int] | None:
    """Return where the directory of a zip begins and how long it is; None where it is not where it should be."""
    if size < _END.size or file.read(4) != _BEGIN:
        return None
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    if len(tail) < _END.size:
        return None
    mark, *_, length, begin, _ = _END.unpack(tail[-_END.size :])
    if mark != b"PK\x05\x06":
        return None
    if 0xFFFFFFFF in (length, begin):  # both stand in the 64-bit end
        if len(tail) < _TAIL or tail[:4] != b"PK\x06\x06":
            return None
        *_, length, begin = _END_64.unpack(tail[: _END_64.size])
    file.seek(begin if begin + length <= size else size)
    return (begin, length) if file.read(4) == _ENTRY else None


def _read_pickle(name: str, file: BinaryIO) -> bytes:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.filename.endswith("/data.pkl"):
                # torch never compresses, and what is compressed may unfold to anything.
                if member.compress_type != zipfile.ZIP_STORED or member.file_size > _MOST_PICKLE_BYTES:
                    break
                return archive.read(member)
    raise BadInput(f"{name} has no data.pkl as torch writes it")
