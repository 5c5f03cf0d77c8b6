"""Files that hold tensors: a zip as torch.save writes it, its pickle, and safetensors; and whether they are whole.

Nothing in such a file is believed: a directory, a header and every length in them are checked against the file. All
steps of a scan read a little and yield how many bytes that were, so that whoever asks may stop between two of them.

Pickles are read without torch and without running anything: each class in them is an inert stand-in, made anew for
each file. A first walk over the bytes refuses opcodes that torch does not write and places in the memo that would
reserve memory. Cost: linear; a second of CPU for 13 MB of `.metadata`, and 16 bytes of memory for each of its bytes.
"""

import gc
import json
import pickle  # noqa: TID251  # no class of a file is ever looked up
import re
import struct
import sys
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from lockstep.errors import BadInput
from lockstep.hostile_files import OpenBook, find_unsafe_opcode, load_in_child, read_guarded

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


# Opcodes without an argument, with one of known length, and the two names of GLOBAL. LONG_BINPUT is not among them:
# its argument makes the unpickler reserve 16 bytes for every place up to it.
_FIXED = re.compile(
    rb"(?s:[]})(Nldtaesu012RbQ\x81\x85-\x89\x8f-\x91\x93\x94]++"
    rb"|[hqK\x80].|M..|[Jj]....|[G\x95].{8}"
    rb"|c[^\n]*+\n[^\n]*+\n"
    rb")*+"
)
# Opcodes whose argument begins with its length, and of how many bytes that is; for LONG_BINPUT it is a place.
_COUNTED = {
    pickle.SHORT_BINUNICODE: 1,
    pickle.BINUNICODE: 4,
    pickle.BINUNICODE8: 8,
    pickle.SHORT_BINBYTES: 1,
    pickle.BINBYTES: 4,
    pickle.SHORT_BINSTRING: 1,
    pickle.BINSTRING: 4,
    pickle.BINBYTES8: 8,
    pickle.LONG1: 1,
    pickle.LONG4: 4,
    pickle.LONG_BINPUT: 4,
}

# Names that a DCP `.metadata` may hold: torch's of several versions, and Megatron's subclass of them.
_METADATA_MODULES = (
    "torch.distributed.checkpoint.",
    "torch.distributed._shard.",
    "megatron.core.dist_checkpointing.",
)
_METADATA_NAMES = frozenset(
    [("torch.serialization", "_get_layout"), ("collections", "OrderedDict")]
    + [("pathlib", kind) for kind in ("PosixPath", "PurePosixPath", "WindowsPath", "Path")]
    + [("pathlib._local", kind) for kind in ("PosixPath", "PurePosixPath", "Path")]
)
_TORCH_WORD = re.compile(r"Size|strided|(?:u?int|float|b?float|complex|bool|quint|qint)[0-9a-z_]*")


class StandIn:
    """What stands for an object of any class: it holds its state and does nothing."""

    def __init__(self, *args: object) -> None:
        self.args = args

    def __setstate__(self, state: object) -> None:
        self.__dict__.update(state if type(state) is dict else {"state": state})

    def __setitem__(self, key: object, value: object) -> None:
        """Leave out what a foreign mapping holds."""

    def append(self, value: object) -> None:
        """Leave out what a foreign list holds."""

    extend = add = append


class _InertUnpickler(pickle.Unpickler):
    """Hands out stand-ins for the names that are allowed, and refuses the others."""

    def __init__(self, book: OpenBook, allows: Callable[[str, str], bool]) -> None:
        super().__init__(book)
        self._allows = allows
        self._made: dict[tuple[str, str], type] = {
            ("torch", "Size"): tuple,
            ("collections", "OrderedDict"): OrderedDict,
        }

    def find_class(self, module: str, name: str) -> Any:  # Any: what the base class says
        if not self._allows(module, name):
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which such a file does not hold")
        if (module, name) not in self._made:
            self._made[module, name] = type("StandIn", (StandIn,), {})
        return self._made[module, name]

    def persistent_load(self, pid: object) -> None:
        """Leave out the numbers of a tensor, which lie beside the pickle."""


def read_metadata(name: str, data: bytes) -> object:
    """Return what a DCP `.metadata` holds, with stand-ins for torch's classes; any other class is refused."""
    return _read(name, data, "metadata")


def read_state(name: str, data: bytes) -> object:
    """Return what torch.save wrote, with stand-ins for all classes: a job may keep its own beside the numbers."""
    return _read(name, data, "state")


def _is_of_metadata(module: str, name: str) -> bool:
    if module == "torch":
        return bool(_TORCH_WORD.fullmatch(name))
    return (module, name) in _METADATA_NAMES or module.startswith(_METADATA_MODULES)


_ALLOWS: dict[str, Callable[[str, str], bool]] = {"metadata": _is_of_metadata, "state": lambda module, name: True}


def _read(name: str, data: bytes, kind: str) -> object:
    return read_guarded(name, data, partial(_load, kind), "planner.checkpoints.torch_file", kind)


def _load(kind: str, data: bytes) -> object:
    if (position := find_unsafe_opcode(data, _FIXED, _COUNTED)) is not None:
        raise pickle.UnpicklingError(f"byte {position} of {len(data)} is not what torch writes")
    was_on = gc.isenabled()
    gc.disable()  # it would walk over millions of new objects again and again, and take as long as all else
    try:
        return _InertUnpickler(OpenBook(data), _ALLOWS[kind]).load()
    finally:
        if was_on:
            gc.enable()


if __name__ == "__main__":
    load_in_child(partial(_load, sys.argv[1]))
