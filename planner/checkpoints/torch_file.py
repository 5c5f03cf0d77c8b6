"""Files that hold tensors: a zip as torch.save writes it, and safetensors. What says that one is whole is read here.

Nothing in such a file is believed: a directory, a header and every length in them are checked against the file. All
steps of a scan read a little and yield how many bytes that were, so that whoever asks may stop between two of them.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from lockstep.errors import BadInput
from planner.checkpoints.inert_pickle import read_state

_BEGIN, _ENTRY = b"PK\x03\x04", b"PK\x01\x02"
_END = struct.Struct("<4s4H2LH")  # end of central directory, APPNOTE 4.3.16
_LOCATOR = struct.Struct("<4sLQL")  # of the 64-bit end, 4.3.15
_END_64 = struct.Struct("<4sQ2H2L4Q")  # 4.3.14
_TAIL = _END_64.size + _LOCATOR.size + _END.size  # torch writes no comment after them
_CENTRAL = struct.Struct("<4s6H3L5H2L")  # an entry of the directory, 4.3.12
_LOCAL = struct.Struct("<4s5H3L2H")  # what stands before a record, 4.3.7
_EXTRA, _ZIP64, _IN_EXTRA = struct.Struct("<2H"), 1, 0xFFFFFFFF  # 4.5.3: numbers that do not fit stand in an extra
_STORED = 0  # torch never compresses, and what is compressed may unfold to anything
_MOST_DIRECTORY_BYTES = 64 << 20  # some 100 bytes for each tensor
_MOST_PICKLE_BYTES = 256 << 20
_CHUNK = 1 << 20


class Readable(Protocol):
    """What is read of an open file."""

    def seek(self, offset: int, /) -> int: ...

    def read(self, length: int, /) -> bytes: ...


def find_damage(path: Path, size: int) -> str | None:
    """Return what is wrong with a file of that size, or None where its begin, its end and its directory are there."""
    if size == 0:
        return "is empty"
    try:
        with path.open("rb") as file:
            return None if _find_directory(file, 0, size) else "is cut short or no file of torch: its zip has no end"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def read_saved(path: Path, size: int) -> Mapping[Any, Any]:  # Any: what a job saved
    """Return the dictionary that torch.save wrote, its tensors left out, or raise BadInput with a sentence.

    Such a file is a zip whose directory stands at its end: a file that was cut short has lost it.
    """
    try:
        with path.open("rb") as file:
            directory = _find_directory(file, 0, size)
            if not directory or directory[1] > _MOST_DIRECTORY_BYTES:
                raise BadInput(f"{path.name} has no zip directory of a size that torch writes")
            saved = read_state(path.name, _read_pickle(path.name, file))
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, struct.error) as error:
        raise BadInput(f"{path.name} cannot be read: {error}") from None
    if not isinstance(saved, dict):
        raise BadInput(f"{path.name} does not hold a dictionary")
    return saved


def _read_pickle(name: str, file: BinaryIO) -> bytes:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.filename.endswith("/data.pkl"):
                if member.compress_type != _STORED or member.file_size > _MOST_PICKLE_BYTES:
                    break
                return archive.read(member)
    raise BadInput(f"{name} has no data.pkl as torch writes it")


def _find_directory(file: Readable, base: int, size: int) -> tuple[int, int] | None:
    """Return where in a zip of that size its directory begins and how long it is; None where it is not there."""
    if size < _END.size or _read_at(file, base, 4) != _BEGIN:
        return None
    tail = _read_at(file, base + max(0, size - _TAIL), min(size, _TAIL))
    if len(tail) < _END.size:
        return None
    mark, *_, length, begin, _ = _END.unpack(tail[-_END.size :])
    if mark != b"PK\x05\x06":
        return None
    if _IN_EXTRA in (length, begin):  # both stand in the 64-bit end
        if len(tail) < _TAIL or tail[:4] != b"PK\x06\x06":
            return None
        *_, length, begin = _END_64.unpack(tail[: _END_64.size])
    is_there = begin + length <= size and _read_at(file, base + begin, 4) == _ENTRY
    return (begin, length) if is_there else None


def _read_at(file: Readable, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


@dataclass(frozen=True, slots=True)
class _Record:
    """A member of a zip: its header begins at `begin`, counted from the begin of the zip."""

    name: str
    begin: int
    length: int
    crc: int  # 0: none was written, as torch may be told (set_crc32_options), or it is compressed


def is_torch_record(file: Readable, offset: int, length: int) -> bool:
    """Tell whether torch.save wrote a piece of a file, from its begin and its end; it may be of the older form."""
    return _read_at(file, offset, 1) == b"\x80" or _find_directory(file, offset, length) is not None


def scan_zip(file: Readable, base: int, size: int) -> Iterator[int]:
    """Read a zip of torch within a file and yield bytes as they are read; raise BadInput where a checksum fails."""
    if _read_at(file, base, 1) == b"\x80":  # a pickle without a zip, which has no checksum
        return
    directory = _find_directory(file, base, size)
    if directory is None:
        raise BadInput(f"holds no record of torch at byte {base}")
    if directory[1] > _MOST_DIRECTORY_BYTES:
        raise BadInput(f"has a zip directory of {directory[1]} bytes, which torch does not write")
    left = directory[0]
    for record in _list_records(_read_at(file, base + directory[0], directory[1])):
        left -= record.length
        if left < 0:
            raise BadInput("has records that lie over one another")
        yield from _scan_record(file, base, record, directory[0])


def _list_records(directory: bytes) -> Iterator[_Record]:
    at = 0
    while at < len(directory):
        if len(directory) - at < _CENTRAL.size or directory[at : at + 4] != _ENTRY:
            raise BadInput("has a broken zip directory")
        fields = _CENTRAL.unpack_from(directory, at)
        method, crc, packed, length, begin = fields[4], *fields[7:10], fields[16]
        name_end = at + _CENTRAL.size + fields[10]
        name = directory[at + _CENTRAL.size : name_end].decode("ascii", "backslashreplace")[:100]
        at = name_end + fields[11] + fields[12]
        length, packed, begin = _widen(directory[name_end : name_end + fields[11]], length, packed, begin)
        yield _Record(name, begin, packed, crc if method == _STORED and packed == length else 0)


def _widen(extra: bytes, *numbers: int) -> list[int]:
    """Return numbers of an entry, each that did not fit into it from its extra field, where they stand in order."""
    while len(extra) >= _EXTRA.size:
        kind, length = _EXTRA.unpack_from(extra)
        body, extra = extra[_EXTRA.size : _EXTRA.size + length], extra[_EXTRA.size + length :]
        if kind == _ZIP64:
            wide = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
            return [next(wide, number) if number == _IN_EXTRA else number for number in numbers]
    return list(numbers)


def _scan_record(file: Readable, base: int, record: _Record, most: int) -> Iterator[int]:
    header = _read_at(file, base + record.begin, _LOCAL.size) if record.begin < most else b""
    if len(header) < _LOCAL.size or header[:4] != _BEGIN:
        raise BadInput(f"has no header before {record.name}")
    *_, name_length, extra_length = _LOCAL.unpack(header)
    begin = record.begin + _LOCAL.size + name_length + extra_length
    if begin + record.length > most:
        raise BadInput(f"has no room for the {record.length} bytes of {record.name}")
    yield _LOCAL.size
    if record.crc == 0:
        return
    crc = 0
    for at in range(begin, begin + record.length, _CHUNK):
        data = _read_at(file, base + at, min(_CHUNK, begin + record.length - at))
        crc = zlib.crc32(data, crc)
        yield len(data)
    if crc != record.crc:
        raise BadInput(f"has other bytes in {record.name} than were written: its checksum does not hold")


_LENGTH = struct.Struct("<Q")
_MOST_HEADER_BYTES = 16 << 20  # some 100 bytes for each tensor; what is longer is not parsed here
_MOST_DIMENSIONS, _MOST_SIZE = 64, 1 << 62
# Bits of a number; a kind that is not known here takes the length that the header says.
_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "C64": 64}
_BITS |= {f"{kind}{bits}": bits for kind in "IUF" for bits in (16, 32, 64)} | {"BF16": 16}


def is_safetensors(file: Readable) -> bool:
    """Tell whether a file begins as safetensors do: a length, and JSON."""
    begin = _read_at(file, 0, _LENGTH.size + 1)
    return begin[_LENGTH.size :] == b"{" and _LENGTH.unpack_from(begin)[0] <= _MOST_HEADER_BYTES


def scan_safetensors(file: Readable, size: int) -> Iterator[int]:
    """Check a safetensors header: tensors of the bytes that their shapes take, one after the other to the end."""
    begin = _read_at(file, 0, _LENGTH.size)
    length = _LENGTH.unpack(begin)[0] if len(begin) == _LENGTH.size else 0
    if not 2 <= length <= size - _LENGTH.size:
        raise BadInput(f"has no header of safetensors: its length would be {length} in {size} bytes")
    if length > _MOST_HEADER_BYTES:
        return
    try:
        header = json.loads(_read_at(file, _LENGTH.size, length))
        spans = sorted(_span(name, entry) for name, entry in header.items() if name != "__metadata__")
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError, ArithmeticError) as error:
        raise BadInput(f"has a header that is none of safetensors: {str(error)[:100]}") from None
    end = 0
    for start, stop in spans:
        if start != end:
            raise BadInput(f"says that a tensor begins at byte {start} where the one before ends at {end}")
        end = stop
    if end != size - _LENGTH.size - length:
        raise BadInput(f"says {end} bytes of tensors and holds {size - _LENGTH.size - length}")
    yield _LENGTH.size + length


def _span(name: str, entry: Mapping[str, Any]) -> tuple[int, int]:  # Any: what a file says
    begin, end = (int(each) for each in entry["data_offsets"])
    shape, bits = [int(each) for each in entry["shape"][:_MOST_DIMENSIONS]], _BITS.get(entry["dtype"])
    takes = prod(min(each, _MOST_SIZE) for each in shape) * (bits or 0)
    if not 0 <= begin <= end or (bits and end - begin != (takes + 7) // 8):
        raise ValueError(f"{end - begin} bytes cannot hold {name[:40]!r} of shape {shape[:8]}")
    return begin, end
