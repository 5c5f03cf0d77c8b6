"""Is a foreign file safe to read here? Pickles that may only hold plain data, and the guard for all that are read.

A pickle of 149 bytes can name one tuple in another sixty times over and ask for its hash, which takes for ever; one
that nests deeply overflows the stack. Neither can be caught in a process that has other work to do, so a child with
little memory, time and stack reads each file first.

Plain data are numbers, texts, lists, tuples and dictionaries, never code; planner.checkpoints reads torch's with the
same guard. What would reserve memory beyond a file's length is refused before anything is unpickled.

A job of a thousand ranks leaves millions of values, so that hardly anything here is done for each of them: a regular
expression walks through the bytes, and the garbage collector tells what all containers of one depth hold together.
"""

import gc
import io
import os
import pickle  # noqa: TID251  # here every class is refused
import pickletools
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from lockstep.errors import BadInput

# Of a child that reads whatever file.
_LONGEST_S = 600.0  # by the wall clock, on whatever machine
_STACK_BYTES = 1 << 20  # an eighth of what threads of ours have, so that what passes the child passes here
_MOST_TEXT = 500

_CHILD_BYTES, _CHILD_CPU_S = 1 << 30, 5  # to begin with: Python alone takes 50 MiB and a tenth of a second
_BYTES_PER_BYTE = 64  # an empty dictionary is one byte in a file; torch's `.metadata` takes 16
_BYTES_PER_CPU_S = 2 << 20  # a seventh of what is read in a second

MOST_BYTES = 256 << 20  # of one pickle: a DCP `.metadata` of 1,800 tensors on 1,000 ranks, 143 bytes a piece
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
_CONTAINERS = frozenset((dict, list, tuple, set, frozenset))  # all that the unpickler makes without a class

# Texts below this length are stepped over without leaving the regular expression: nearly all names are.
_SHORT = 48
_SHORT_TEXTS = b"|".join(re.escape(length.to_bytes(4, "little")) + b".{%d}" % length for length in range(_SHORT))
# As many opcodes in a row as possible whose length the pattern tells; what common dumps are full of comes first. The
# memo reserves 16 bytes for each place up to the highest, so that one of two bytes (1 MiB) is harmless in any file.
_HARMLESS = re.compile(
    rb"(?s:"
    rb"[hqK]."  # BINGET, BINPUT, BININT1
    rb"|[]})(Nuesat\x85-\x89\x94]++"  # containers, None, True, False, MEMOIZE: these are one byte
    rb"|X(?:" + _SHORT_TEXTS + rb")"  # BINUNICODE
    rb"|M..|J....|\x8a\x08.{8}"  # BININT2, BININT, LONG1 of eight bytes, as times are
    rb"|r..\0\0|j...."  # LONG_BINPUT, LONG_BINGET
    rb"|G.{8}|\x80.|\x95.{8}"  # BINFLOAT, PROTO, FRAME
    rb")*+"
)
# The others that are common in plain data, and how many bytes tell a length; for LONG_BINPUT they tell a place.
_NUMBER_BYTES = {
    pickle.BINUNICODE: 4,
    pickle.SHORT_BINUNICODE: 1,
    pickle.BINBYTES: 4,
    pickle.SHORT_BINBYTES: 1,
    pickle.LONG1: 1,
    pickle.LONG_BINPUT: 4,
}


@dataclass(frozen=True)
class ReadLimits:
    """What a child may use to read a file."""

    memory_bytes: int  # of address space, with Python's own
    cpu_s: int


def check_apart(name: str, module: str, arguments: Sequence[str], limits: ReadLimits, data: bytes = b"") -> None:
    """Raise BadInput where a child cannot read the file of this name: with its own sentence, or with how it ended."""
    command = [sys.executable, "-m", module, *arguments, str(limits.memory_bytes), str(limits.cpu_s)]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise BadInput(f"{name}: reading it took more than {_LONGEST_S:.0f} s and was given up") from None
    if done.returncode > 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BadInput((lines[-1] if lines else f"{name}: reading it ended with {done.returncode}")[:_MOST_TEXT])
    if done.returncode < 0:
        endings = {
            signal.SIGXCPU: f"reading it takes more than {limits.cpu_s} s of CPU",
            signal.SIGSEGV: "it is nested too deeply",
        }
        ended = signal.Signals(-done.returncode)
        raise BadInput(f"{name}: {endings.get(ended, f'reading it ended by {ended.name}')}")


def read_limited(read: Callable[[], object], memory_bytes: str, cpu_s: str) -> None:
    """In the child: read within the limits, and end with 1 and a sentence on standard error where that fails."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory_bytes), int(memory_bytes)))
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 1))
    problems: list[str] = []

    def run() -> None:
        try:
            read()
        except MemoryError:
            problems.append("it does not fit into memory")
        except Exception as error:  # noqa: BLE001  # whoever asked raises it as what it is, or reads this
            problems.append(str(error))

    threading.stack_size(_STACK_BYTES)
    reader = threading.Thread(target=run)
    reader.start()
    reader.join()
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    sys.stderr.flush()
    os._exit(1 if problems else 0)  # freeing what was read would take as long again


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every class and function: finding one is how a pickle runs code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"asks for {module}.{name}, and only plain data is read")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("asks for an object kept elsewhere, and only plain data is read")


class OpenBook(io.BytesIO):
    """Bytes that the unpickler may look ahead in, to the end.

    Else it asks for each opcode, which takes thrice as long, and where a frame ends inside of an argument it would
    lose bytes and read something else than what was checked.
    """

    def peek(self, _: int) -> bytes:
        return self.getvalue()[self.tell() :]


def load_plain(name: str, data: bytes) -> object:
    """Return what a pickle holds, or raise BadInput with one sentence about the file of this name."""
    return load_plain_all({name: data})[name]


def load_plain_all(files: Mapping[str, bytes]) -> dict[str, object]:
    """Return what each of some pickles holds; one child tries all of them: a job leaves a thousand."""
    if files:
        _check_pickles_apart(files, "lockstep.hostile_files")
    return {name: _load_guarded(name, data, _load_plain) for name, data in files.items()}


def read_guarded(name: str, data: bytes, load: Callable[[bytes], object], module: str, *arguments: str) -> object:
    """Return what `load` makes of the data; what is too long or breaks the unpickler is a BadInput.

    The module is one that does the same in a child, before it is done here.
    """
    _check_pickles_apart({name: data}, module, *arguments)
    return _load_guarded(name, data, load)


def _check_pickles_apart(files: Mapping[str, bytes], module: str, *arguments: str) -> None:
    """Raise BadInput about the file that a child cannot read, or that is too long."""
    for name, data in files.items():
        if len(data) > MOST_BYTES:
            raise BadInput(f"{name}: is longer than {MOST_BYTES >> 20} MiB")
    lengths = [len(data) for data in files.values()]
    most_bytes = _CHILD_BYTES + _BYTES_PER_BYTE * max(lengths)
    limits = ReadLimits(most_bytes, _CHILD_CPU_S + sum(lengths) // _BYTES_PER_CPU_S)
    sent = b"".join([" ".join(map(str, lengths)).encode() + b"\n", *files.values()])
    try:
        check_apart(next(iter(files)), module, arguments, limits, sent)
    except BadInput:
        if len(files) == 1:
            raise
        for name, data in files.items():
            _check_pickles_apart({name: data}, module, *arguments)


def _load_guarded(name: str, data: bytes, load: Callable[[bytes], object]) -> object:
    try:
        return load(data)
    except _BROKEN as error:
        reason = str(error).strip().splitlines()
        raise BadInput(
            f"{name}: cannot be read as a pickle: {reason[0] if reason else type(error).__name__}"
        ) from None


def find_unsafe_opcode(data: bytes, harmless: re.Pattern[bytes], number_bytes: Mapping[bytes, int]) -> int | None:
    """Return where the first opcode stands that is neither harmless nor of a known length, or None up to the end.

    `harmless` matches any number of opcodes in a row; `number_bytes` has those whose argument begins with its length.
    A place in the memo beyond the length of the data is unsafe, because the unpickler reserves memory up to it;
    likewise a length beyond the end.
    """
    position = 0
    while True:
        if run := harmless.match(data, position):
            position = run.end()
        opcode = data[position : position + 1]
        if opcode not in number_bytes:
            return None if opcode == pickle.STOP else position
        begin = position + 1 + number_bytes[opcode]
        number = int.from_bytes(data[position + 1 : begin], "little")
        end = begin if opcode == pickle.LONG_BINPUT else begin + number
        if max(number, end) > len(data):
            return position
        position = end


def _load_plain(data: bytes) -> object:
    if (unsafe := find_unsafe_opcode(data, _HARMLESS, _NUMBER_BYTES)) is not None:
        _check_memo(data, unsafe)
    value: object = _PlainUnpickler(OpenBook(data)).load()
    _check_amount(value, _MOST_VALUES_PER_BYTE * len(data))
    return value


def _check_memo(data: bytes, begin: int) -> None:
    """Check the memo from here on, opcode by opcode: all of them are known here, broken and rare ones too."""
    rest = io.BytesIO(data)
    rest.seek(begin)
    for opcode, argument, position in pickletools.genops(rest):
        if opcode.name in _MEMO_WRITES and not (isinstance(argument, int) and argument <= len(data)):
            raise pickle.UnpicklingError(f"byte {position} names place {argument} in a memo of {len(data)} bytes")


def _check_amount(value: object, most: int) -> None:
    """Refuse what is small as a file and endless to walk through, such as a list that holds itself.

    A container counts as often as it is named; a key counts together with its value.
    """
    level: list[Any] = [value]  # Any: what a pickle holds
    count = 0
    while containers := [part for part in level if type(part) in _CONTAINERS]:
        count += sum(map(len, containers))  # before they are opened: what they hold may not fit into memory
        if count > most:
            raise pickle.UnpicklingError(f"unfolds to more than {most} values")
        level = gc.get_referents(*containers)


def load_in_child(load: Callable[[bytes], object]) -> None:
    """In the child: load what comes on standard input; what is broken is told by whoever asked."""
    source = sys.stdin.buffer
    lengths = [int(length) for length in source.readline().split()]

    def read() -> None:
        for length in lengths:
            with suppress(*(error for error in _BROKEN if error is not MemoryError)):
                load(source.read(length))

    read_limited(read, *sys.argv[-2:])


if __name__ == "__main__":
    load_in_child(_load_plain)
