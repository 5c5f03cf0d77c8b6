"""Pickles that may only hold plain data: numbers, texts, lists, tuples and dictionaries, and never code."""

import io
import pickle  # noqa: TID251  # here every class is refused
import pickletools
from typing import NoReturn

from lockstep.errors import BadInput

_MOST_BYTES = 256 << 20
_MOST_VALUES_PER_BYTE = 4  # a byte brings one value, unless lists are named again and again inside of lists
# What Python's unpickler raises on broken bytes; it promises nothing narrower.
_BROKEN = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)
_MEMO_WRITES = ("PUT", "BINPUT", "LONG_BINPUT")


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every class and function: finding one is how a pickle runs code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"asks for {module}.{name}, and only plain data is read")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("asks for an object kept elsewhere, and only plain data is read")


def load_plain(name: str, data: bytes) -> object:
    """Return what a pickle holds, or raise BadInput with one sentence about the file of this name."""
    if len(data) > _MOST_BYTES:
        raise BadInput(f"{name}: is longer than {_MOST_BYTES >> 20} MiB")
    try:
        _check_memo(data)
        value: object = _PlainUnpickler(io.BytesIO(data)).load()
        _check_amount(value, _MOST_VALUES_PER_BYTE * len(data))
    except _BROKEN as error:
        reason = str(error).strip().splitlines()
        raise BadInput(
            f"{name}: cannot be read as a pickle: {reason[0] if reason else type(error).__name__}"
        ) from None
    return value


def _check_memo(data: bytes) -> None:
    """Refuse a place in the memo beyond the length of the data: the unpickler would reserve memory up to it."""
    for opcode, argument, position in pickletools.genops(data):
        if opcode.name in _MEMO_WRITES and not (isinstance(argument, int) and argument <= len(data)):
            raise pickle.UnpicklingError(f"byte {position} names place {argument} in a memo of {len(data)} bytes")


def _check_amount(value: object, most: int) -> None:
    """Refuse what is small as a file and endless to walk through, such as a list that holds itself."""
    waiting, count = [value], 0
    while waiting:
        part = waiting.pop()
        inner = [*part, *part.values()] if isinstance(part, dict) else part
        if isinstance(inner, list | tuple | set | frozenset):
            count += len(inner)
            if count > most:
                raise pickle.UnpicklingError(f"unfolds to more than {most} values")
            waiting.extend(inner)
