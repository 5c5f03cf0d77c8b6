"""Event descriptors as NCCL would build them, in the layout of any version of its profiler interface."""

import ctypes
import sys
from typing import Any

from lockstep.intake.callback_trace import ALGOS, DTYPES, PROTOS, TYPES
from lockstep.intake.nccl_abi import layout

Event = dict[str, Any]  # Any: JSON, checked by lockstep.intake.nccl_callbacks

EVENT_BITS = {name: 1 << number for number, name in enumerate(TYPES)}
_WITH_RANK = ("Coll", "P2p", "ProxyOp", "ProxyStep", "NetPlugin")

_STRUCTS = {
    "Coll": "coll",
    "P2p": "p2p",
    "ProxyOp": "proxy_op",
    "ProxyStep": "proxy_step",
    "KernelCh": "kernel_channel",
    "GroupApi": "group_api",
    "CollApi": "coll_api",
    "P2pApi": "p2p_api",
    "KernelLaunch": "kernel_launch",
}
_FIELDS = {"nCh": "channels", "nWarps": "warps", "ch": "channel", "nSteps": "steps", "ptimer": "gpu_ns"}
_ELSEWHERE = frozenset({"ts", "ev", "type", "h", "tid", "comm", "parent", "ptype", "r"})  # not in the structure

# NCCL's own numbers, which v1 has instead of names.
_V1_WORDS: dict[str, tuple[object, ...]] = {
    "func": ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"),
    "dtype": DTYPES[1:],
    "algo": ALGOS[1:],
    "proto": PROTOS[1:],
}
_V1_UNKNOWN = 255


class Descriptors:
    """Builds event descriptors of one version of the interface."""

    def __init__(self, api: int) -> None:
        self._layout = layout(api)
        self._buffer = ctypes.create_string_buffer(self._layout.size)
        self._texts: dict[str, ctypes.Array[ctypes.c_char]] = {}

    def build(self, event: Event, parent: int, comm: Event, numbers: dict[str, int]) -> int:
        """Return the address of a descriptor, good until the next one; `numbers` replace what was recorded."""
        ctypes.memset(self._buffer, 0, len(self._buffer))
        self._put("type", EVENT_BITS[event["type"]])
        self._put("parent", parent)
        self._put("rank", max(comm["rank"], 0) if event["type"] in _WITH_RANK else 0)
        struct = _STRUCTS.get(event["type"])
        told = {name: value for name, value in event.items() if name not in _ELSEWHERE} if struct else {}
        for name, value in ({"comm_id": int(comm["id"], 16)} | told | numbers).items():
            self._put(f"{struct}.{_FIELDS.get(name, name)}", value)
        return ctypes.addressof(self._buffer)

    def _put(self, name: str, value: object) -> None:
        """Write a field where this version has it; what it lacks was recorded from another version."""
        place = self._layout.get(name)
        if place is None or value is None:
            return
        word = name.partition(".")[2]
        number = (self._word(word, place.size, value) if word in _V1_WORDS else _integer(value)) % (
            1 << 8 * place.size
        )
        ctypes.memmove(
            ctypes.addressof(self._buffer) + place.offset, number.to_bytes(place.size, sys.byteorder), place.size
        )

    def _word(self, name: str, size: int, value: object) -> int:
        """Return a pointer to a word, or its number in the one byte that it has in v1."""
        if size > 1:
            return self._address(value) if isinstance(value, str) else 0
        numbers = _V1_WORDS[name]
        return value if isinstance(value, int) else numbers.index(value) if value in numbers else _V1_UNKNOWN

    def _address(self, text: str) -> int:
        return ctypes.addressof(self._texts.setdefault(text, ctypes.create_string_buffer(text.encode())))


def _integer(value: object) -> int:
    return value if isinstance(value, int) else int(str(value), 16)  # a CUDA stream
