"""What of a Kineto trace concerns NCCL: its kernels, the calls they come from, and who the process is.

Read event by event: in memory stay NCCL's kernels and calls, and three numbers of every launch on the host, 24 bytes.
"""

import codecs
import json
import re
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, Field

from importers.traces.readings import Loose, Text, validated
from lockstep.errors import BadInput

_MOST_VALUE_CHARS = 64 << 20  # of one event, or of one value beside them
_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
_DELIMITERS = tuple(_SPACE + ",]}")
_EVENTS = "traceEvents"


def read_trace(name: str, pieces: Iterable[bytes]) -> Iterator[tuple[str, object]]:
    """Yield ("traceEvents", event) for each event and (key, value) for all else; whatever is wrong is a BadInput."""
    text = _Text(name, _decoded(name, _unpacked(name, pieces)))
    text.expect("{", "is no JSON object, as traces of PyTorch are")
    while not text.skips("}"):
        key = text.value("a key")
        text.expect(":", "is not JSON: ':' is missing")
        if key == _EVENTS:
            yield from ((_EVENTS, event) for event in _events(text))
        else:
            yield str(key), text.value(f"the value of {str(key)[:40]!r}")
        if not text.skips(","):
            text.expect("}", "is not JSON: ',' or '}' is missing")
            break
    text.expect_end()


def _events(text: "_Text") -> Iterator[object]:
    text.expect("[", f"{_EVENTS} is no list")
    number = 0
    while not text.skips("]"):
        number += 1
        yield text.value(f"{_EVENTS}, event {number}")
        if not text.skips(","):
            text.expect("]", f"{_EVENTS}, event {number}: is not JSON: ',' or ']' is missing behind it")
            return


class _Text:
    """The characters that are still to be read, as far as they are in memory."""

    def __init__(self, name: str, pieces: Iterator[str]) -> None:
        self._name, self._pieces = name, pieces
        self._text, self._position = "", 0
        self._is_whole = False  # nothing comes behind what is in memory

    def skips(self, sign: str) -> bool:
        """Go over white space, and over the sign where it is next; return whether it was."""
        self._skip_space()
        if not self._text.startswith(sign, self._position):
            return False
        self._position += 1
        return True

    def expect(self, sign: str, problem: str) -> None:
        if not self.skips(sign):
            ends = self._position >= len(self._text)
            raise BadInput(f"{self._name}: {'ends too early' if ends else problem}")

    def expect_end(self) -> None:
        self._skip_space()
        if self._position < len(self._text):
            raise BadInput(f"{self._name}: goes on behind its end")

    def value(self, what: str) -> object:
        """Return the next value; `what` says which it is, should it be none."""
        self._skip_space()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._position)
            except (ValueError, RecursionError) as error:
                if not self._grow():
                    is_deep = isinstance(error, RecursionError)
                    problem = "it nests too deeply" if is_deep else str(error).partition(":")[0]
                    raise BadInput(f"{self._name}: {what}: is not JSON: {problem}") from None
                continue
            # The next piece may hold more of a number: all other values tell where they end.
            may_go_on = isinstance(value, int | float) and self._text[end : end + 1] not in _DELIMITERS
            if not may_go_on or not self._grow():
                self._position = end
                return value

    def _skip_space(self) -> None:
        while True:
            while self._position < len(self._text) and self._text[self._position] in _SPACE:
                self._position += 1
            if self._position < len(self._text) or not self._grow():
                return

    def _grow(self) -> bool:
        """Read on, as much again as is in memory, so that retries cost no more than reading; False at the end."""
        rest = self._text[self._position :]
        grown, wanted = [rest], max(len(rest), 1)
        if len(rest) > _MOST_VALUE_CHARS:
            return False
        while wanted > 0 and not self._is_whole:
            piece = next(self._pieces, None)
            self._is_whole = piece is None
            grown.append(piece or "")
            wanted -= len(grown[-1])
        self._text, self._position = "".join(grown), 0
        return len(self._text) > len(rest)


def _decoded(name: str, pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in pieces:
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: is not text: {error.reason}") from None


def _unpacked(name: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack what is packed with gzip, as PyTorch writes traces whose name ends in .gz; the rest is passed on."""
    iterator = iter(pieces)
    first = next(iterator, b"")
    if first[:2] != b"\x1f\x8b":
        yield first
        yield from iterator
        return
    unpacker = zlib.decompressobj(wbits=31)
    piece: bytes | None = first
    try:
        while piece is not None:
            while piece:
                yield unpacker.decompress(piece, 1 << 20)
                piece = unpacker.unconsumed_tail
            piece = next(iterator, None)
        yield unpacker.flush()
    except zlib.error as error:
        raise BadInput(f"{name}: cannot be unpacked: {error}") from None
    if not unpacker.eof:
        raise BadInput(f"{name}: cannot be unpacked: it was cut off")


_RANK = Field(ge=0, lt=1 << 31)
_LONGEST_NS = 1 << 62
_ON_THE_HOST = ("user_annotation", "cpu_op")  # the same calls stand on the GPU's side as gpu_user_annotation
_CALL = re.compile("nccl:|record_param_comms$")
_MOST_ENCLOSING = 8  # calls that may stand inside one another


class GroupConfig(Loose):
    """A process group; no ranks means all of them, which is how PyTorch shortens it."""

    pg_name: Annotated[Text, BeforeValidator(str)]
    pg_desc: Text = ""
    ranks: tuple[Annotated[int, _RANK], ...] = ()


class ProcessInfo(Loose):
    """Who wrote the trace (`distributedInfo`)."""

    rank: int = _RANK
    world_size: int = Field(ge=1, lt=1 << 31)
    nccl_version: Annotated[Text | None, BeforeValidator(lambda given: given if isinstance(given, str) else None)] = (
        None
    )
    pg_config: Annotated[
        tuple[GroupConfig, ...], BeforeValidator(lambda given: given if isinstance(given, list) else ())
    ] = ()


class _Event(Loose):
    """Something that took a while, times in microseconds."""

    ts: float = Field(ge=0, lt=1 << 53)
    dur: float = Field(ge=0, lt=1 << 52)
    tid: int | str = 0  # the thread; of a kernel, the stream
    args: dict[str, object] = Field({})


class KernelEvent(_Event):
    """One of NCCL's kernels on the GPU."""

    @property
    def correlation(self) -> int:
        given = self.args.get("correlation")
        return given if isinstance(given, int) else -1


class CallEvent(_Event):
    """What the host did: a collective call of PyTorch."""

    name: Text


@dataclass(frozen=True)
class Launch:
    """When and on which thread a kernel was launched."""

    ts: float
    thread: int


@dataclass
class Trace:
    """One rank's trace, as far as it concerns NCCL."""

    file: str
    info: ProcessInfo | None = None
    base_ns: int = 0
    kernels: list[KernelEvent] = field(default_factory=list)
    calls: dict[int, list[CallEvent]] = field(default_factory=dict)  # by thread, in order of time once read
    _threads: dict[object, int] = field(default_factory=dict)
    _correlations: "array[int]" = field(default_factory=lambda: array("q"))
    _timestamps: "array[float]" = field(default_factory=lambda: array("d"))
    _on_thread: "array[int]" = field(default_factory=lambda: array("q"))

    def unix_ns(self, timestamp_us: float) -> int:
        """Return a time of the trace as UNIX time; old traces count from there, newer ones from their own base."""
        whole = int(timestamp_us)  # apart from the rest: together they have more digits than a float
        return self.base_ns + whole * 1000 + round((timestamp_us - whole) * 1000)

    def thread(self, tid: object) -> int:
        return self._threads.setdefault(tid, len(self._threads))

    def note_launch(self, event: Mapping[str, object], correlation: int) -> None:
        timestamp = event.get("ts")
        if isinstance(timestamp, int | float) and abs(correlation) < 1 << 62:
            self._correlations.append(correlation)
            self._timestamps.append(float(timestamp))
            self._on_thread.append(self.thread(event.get("tid")))

    def launches(self) -> dict[int, Launch]:
        """Return the launches of NCCL's kernels by their correlation."""
        wanted = np.array([kernel.correlation for kernel in self.kernels], dtype=np.int64)
        correlations = np.frombuffer(self._correlations, dtype=np.int64)
        indices = np.flatnonzero(np.isin(correlations, wanted)).tolist()
        return {self._correlations[n]: Launch(self._timestamps[n], self._on_thread[n]) for n in indices}

    def calls_around(self, launch: Launch) -> list[CallEvent]:
        """Return the calls on the launching thread that were under way, the innermost first."""
        calls = self.calls.get(launch.thread, [])
        begun = bisect_right(calls, launch.ts, key=lambda call: call.ts)
        nearest = reversed(calls[max(0, begun - _MOST_ENCLOSING) : begun])
        return [call for call in nearest if launch.ts <= call.ts + call.dur]


def read_kineto(name: str, pieces: Iterable[bytes]) -> Trace:
    """Read a trace; whatever is wrong with it is a BadInput with the number of the event."""
    trace = Trace(name)
    number = 0
    for key, value in read_trace(name, pieces):
        if key == "traceEvents":
            number += 1
            _take_event(trace, value, number)
        elif key == "distributedInfo":
            trace.info = validated(ProcessInfo, value, f"{name}: distributedInfo")
        elif key == "baseTimeNanoseconds" and isinstance(value, int) and 0 <= value < _LONGEST_NS:
            trace.base_ns = value
    for calls in trace.calls.values():
        calls.sort(key=lambda call: call.ts)
    return trace


def _take_event(trace: Trace, event: object, number: int) -> None:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return
    category, name, args = event.get("cat"), event.get("name"), event.get("args")
    location = f"{trace.file}: traceEvents, event {number}"
    if category == "kernel" and isinstance(name, str) and name.startswith("nccl"):
        trace.kernels.append(validated(KernelEvent, event, location))
    elif category in ("cuda_runtime", "cuda_driver") and isinstance(args, dict):
        if isinstance(args.get("correlation"), int):
            trace.note_launch(event, args["correlation"])
    elif category in _ON_THE_HOST and isinstance(name, str) and _CALL.match(name):
        call = validated(CallEvent, event, location)
        trace.calls.setdefault(trace.thread(call.tid), []).append(call)
