"""Pickles of torch, read without torch and without running anything: each class in them is an inert stand-in.

Nothing is ever imported by a name in the file. A first walk over the bytes refuses opcodes that torch does not write
and places in the memo that would reserve memory; the unpickler then gets stand-ins, made anew for each file, so that
what one file does to them is not seen by the next. Cost: linear; a second of CPU for 13 MB of `.metadata`, and 16
bytes of memory for each of its bytes.
"""

import gc
import pickle  # noqa: TID251  # no class of a file is ever looked up
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from lockstep.plain_pickle import OpenBook, find_unsafe_opcode, load_in_child, read_guarded

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
    return read_guarded(name, data, partial(_load, kind), "planner.checkpoints.inert_pickle", kind)


def _load(kind: str, data: bytes) -> object:
    if (position := find_unsafe_opcode(data, _FIXED, _COUNTED)) is not None:
        raise pickle.UnpicklingError(f"byte {position} of {len(data)} is not what torch writes")
    with _no_collection():
        return _InertUnpickler(OpenBook(data), _ALLOWS[kind]).load()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from walking over millions of new objects again and again: it doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


if __name__ == "__main__":
    load_in_child(partial(_load, sys.argv[1]))
