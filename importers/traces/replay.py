"""Plays the recorded callbacks of one rank through the real plugin, as NCCL would, with the recorded clock.

    python -m importers.traces.replay PLUGIN FILE

FILE is a line with the rank's header, then a line per callback. Runs as a process of its own, because a plugin serves
one process. After every 2,000 callbacks and at the end it prints a line with the recorded time and waits for a line
of answer, so that whoever reads the ring loses nothing. Callbacks are made on a thread per recorded thread.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import Any

from importers.traces.callback_trace import ALGOS, DTYPES, PROTOS, STATES, TYPES
from importers.traces.nccl_abi import arguments_layout, layout

Event = dict[str, Any]  # Any: JSON, checked by importers.traces.nccl_callbacks

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
        given = {name: value for name, value in event.items() if name not in _ELSEWHERE} if struct else {}
        for name, value in ({"comm_id": int(comm["id"], 16)} | given | numbers).items():
            self._put(f"{struct}.{_FIELDS.get(name, name)}", value)
        return ctypes.addressof(self._buffer)

    def _put(self, name: str, value: object) -> None:
        """Write a field where this version has it; what it lacks was recorded from another version."""
        field = self._layout.get(name)
        if field is None or value is None:
            return
        word = name.partition(".")[2]
        if word in _V1_WORDS:
            number = self._word(word, field.size, value)
        else:
            number = value if isinstance(value, int) else int(str(value), 16)  # a CUDA stream
        data = (number % (1 << 8 * field.size)).to_bytes(field.size, sys.byteorder)
        ctypes.memmove(ctypes.addressof(self._buffer) + field.offset, data, field.size)

    def _word(self, name: str, size: int, value: object) -> int:
        """Return a pointer to a word, or its number in the one byte that it has in v1."""
        if size > 1:
            if not isinstance(value, str):
                return 0
            return ctypes.addressof(self._texts.setdefault(value, ctypes.create_string_buffer(value.encode())))
        numbers = _V1_WORDS[name]
        return value if isinstance(value, int) else numbers.index(value) if value in numbers else _V1_UNKNOWN


CALLBACKS_PER_ANSWER = 2_000  # a ring holds 8,192 records, and a callback makes one at most


# Whoever asks for a child is told of its ancestors too; only these come when asked for and not otherwise.
_ANCESTORS = ("Group", "Coll", "P2p", "GroupApi", "CollApi", "P2pApi")
_DESCENDANTS = ("Coll", "P2p", "ProxyOp", "ProxyStep", "KernelCh", "NetPlugin")
_WITHOUT_ARGUMENTS = ("GroupStartApiStop", "GroupEndApiStart")  # from v6 on NCCL passes NULL with these


class Plugin:
    """The functions that NCCL finds in a plugin."""

    def __init__(self, library: Path, api: int) -> None:
        self._library = ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        table = (ctypes.c_void_p * 6).in_dll(self._library, f"ncclProfiler_v{api}")
        pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
        tail = (text, number, number, number, pointer)
        init = {4: (pointer, pointer, text, ctypes.c_uint64, number, number, number, pointer)}
        late = (pointer, ctypes.c_uint64, pointer, *tail)
        self._init = _function(table[1], *init.get(api, (pointer, pointer) if api < 4 else late))
        self._api = api
        self.start = _function(table[2], pointer, pointer, pointer)
        self.stop = _function(table[3], pointer)
        self.record = _function(table[4], pointer, number, pointer)
        self.finalize = _function(table[5], pointer)
        self.mask = ctypes.c_int(0)

    def set_clock(self, now: ctypes.c_uint64, unix_minus_now_ns: int) -> None:
        """Let the plugin read its time from `now`."""
        clock = self._library.lockstep_replay_clock
        clock.argtypes, clock.restype = [ctypes.c_void_p, ctypes.c_uint64], None
        clock(ctypes.addressof(now), unix_minus_now_ns % (1 << 64))

    def open(self, comm: Event) -> int:
        """Tell of a communicator and return the plugin's word for it."""
        context = ctypes.c_void_p()
        ours, mask = ctypes.addressof(context), ctypes.addressof(self.mask)
        identity, name = int(comm["id"], 16), comm["name"].encode()
        size = (max(comm["nnodes"], 0), max(comm["nranks"], 0), max(comm["rank"], 0), None)
        arguments: tuple[object, ...] = (ours, mask)
        if self._api == 4:
            arguments = (ours, mask, name, identity, *size)
        elif self._api > 4:
            arguments = (ours, identity, mask, name, *size)
        self._init(*arguments)
        return context.value or 0


def _function(address: int | None, *arguments: type) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(address or 0)


class Player:
    """Calls the plugin at the recorded times, with the plugin's own handles where NCCL would pass them."""

    def __init__(self, plugin: Plugin, header: Event) -> None:
        self._plugin, self._header = plugin, header
        self._now = ctypes.c_uint64(0)
        self._descriptors = Descriptors(header["api"])
        self._arguments = ctypes.create_string_buffer(arguments_layout(header["api"]).size)
        self._contexts: dict[int, int] = {}
        self._handles: dict[int, int] = {}  # by recorded number: the plugin's, 0 when it wants none
        self._operation_of: dict[int, int] = {}  # by recorded number of a step: that of its transfer
        plugin.set_clock(self._now, header["real0"] - header["mono0"])

    def play(self, event: Event) -> None:
        """Make one callback, if NCCL would make it."""
        self._now.value = event["ts"]
        _ACTIONS[event["ev"]](self, event)

    def _open(self, event: Event) -> None:
        self._contexts[event["comm"]] = self._plugin.open(self._header["comms"][event["comm"]])
        if self._plugin.mask.value == 0:
            raise SystemExit("the plugin asks for no callbacks")

    def _close(self, event: Event) -> None:
        self._plugin.finalize(self._contexts[event["comm"]])

    def _start(self, event: Event) -> None:
        if not _is_asked_for(event["type"], self._plugin.mask.value):
            return
        number = event.get("comm", 0)
        comm = self._header["comms"][max(number, 0)]
        replaced = {name: self._handles.get(event[name], 0) for name in ("group",) if name in event}
        if event.get("pid") == self._header["pid"]:
            replaced["pid"] = os.getpid()
        parent = self._handles.get(event.get("parent", -1), 0)
        handle = ctypes.c_void_p()
        descriptor = self._descriptors.build(event, parent, comm, replaced)
        self._plugin.start(self._contexts.get(number, 0), ctypes.addressof(handle), descriptor)
        self._handles[event["h"]] = handle.value or 0
        if event["type"] == "ProxyStep":
            self._operation_of[event["h"]] = parent

    def _state(self, event: Event) -> None:
        """Report a state; NCCL leaves it out when a step or its transfer has no handle."""
        handle = self._handles.get(event["h"], 0)
        if handle == 0 or self._operation_of.get(event["h"], 1) == 0:
            return
        state = event["state"]
        arguments = None
        if self._header["api"] < 6 or state not in _WITHOUT_ARGUMENTS:
            arguments = ctypes.addressof(self._arguments)
            ctypes.memmove(arguments, (event.get("arg", 0) % (1 << 64)).to_bytes(8, sys.byteorder), 8)
        self._plugin.record(handle, STATES.index(state) if isinstance(state, str) else state, arguments)

    def _stop(self, event: Event) -> None:
        handle = self._handles.get(event["h"], 0)
        if handle != 0:
            self._plugin.stop(handle)


_ACTIONS: dict[str, Callable[[Player, Event], None]] = {
    "open": Player._open,
    "close": Player._close,
    "start": Player._start,
    "state": Player._state,
    "stop": Player._stop,
}


def _is_asked_for(kind: str, mask: int) -> bool:
    wanted = mask
    if any(mask & EVENT_BITS[name] for name in _DESCENDANTS):
        wanted |= sum(EVENT_BITS[name] for name in _ANCESTORS)
    if mask & (EVENT_BITS["ProxyStep"] | EVENT_BITS["NetPlugin"]):
        wanted |= EVENT_BITS["ProxyOp"]
    return bool(wanted & EVENT_BITS[kind])


def lifetimes(header: Event, live: bool) -> list[Event]:
    """Return when communicators are made and, unless the recording ends before, destroyed; in order of time."""
    events = [
        {"ev": kind, "ts": comm[field], "comm": number, "tid": comm["tid_init"]}
        for number, comm in enumerate(header["comms"])
        for kind, field in (("open", "ts_init"), ("close", "ts_fini"))
        if kind == "open" or (comm[field] and not live)
    ]
    return sorted(events, key=lambda event: (event["ts"], event["ev"] != "open"))


def play_all(player: Player, events: Iterable[Event], answer: Callable[[int], None]) -> None:
    """Play events in order, each on the thread that stands for its recorded one; wait for answers now and then."""
    threads: dict[int, ThreadPoolExecutor] = {}
    now_ns = 0

    def play_batch(batch: list[Event]) -> None:
        for event in batch:
            player.play(event)

    try:
        for batch in _batches(events):
            if batch[0]["tid"] not in threads:
                threads[batch[0]["tid"]] = ThreadPoolExecutor(1)
            threads[batch[0]["tid"]].submit(play_batch, batch).result()
            now_ns = batch[-1]["ts"]
            if batch[-1]["number"] % CALLBACKS_PER_ANSWER == 0:
                answer(now_ns)
    finally:
        for thread in threads.values():
            thread.shutdown()
    answer(now_ns)


def _batches(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield events of one thread that follow one another; none goes beyond a wait for an answer."""
    numbered = ({"tid": 0} | event | {"number": number} for number, event in enumerate(events, 1))

    def position(event: Event) -> tuple[int, int]:
        return event["tid"], (event["number"] - 1) // CALLBACKS_PER_ANSWER

    for _, batch in groupby(numbered, key=position):
        yield list(batch)


def main(library: Path, recording: Path) -> None:
    """Play a recording; talk to whoever reads the ring through standard input and output."""

    def answer(now_ns: int) -> None:
        sys.stdout.write(f"{now_ns}\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            raise SystemExit("nobody reads the ring any more")

    with open(recording, encoding="utf-8") as lines:
        header = json.loads(next(lines))
        player = Player(Plugin(library, header["api"]), header)
        timestamps = lifetimes(header, live=header["live"])
        play_all(player, merge(timestamps, map(json.loads, lines), key=lambda event: event["ts"]), answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
