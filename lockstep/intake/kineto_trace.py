"""What of a Kineto trace concerns NCCL: its kernels, the calls they come from, and who the process is.

Read event by event: in memory stay NCCL's kernels and calls, and three numbers of every launch on the host, 24 bytes.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError

from lockstep.errors import BadInput
from lockstep.intake.kineto_json import read_trace
from lockstep.intake.readings import Loose, Text, place_of

Kind = TypeVar("Kind", bound=Loose)
_RANK = Field(ge=0, lt=1 << 31)
_LONGEST_NS = 1 << 62
_ON_THE_HOST = ("user_annotation", "cpu_op")  # the same calls stand on the GPU's side as gpu_user_annotation
_CALL = re.compile("nccl:|record_param_comms$")
_MOST_ENCLOSING = 8  # calls that may stand inside one another


def _listed(config: object) -> object:
    return config if isinstance(config, list) else ()


class GroupConfig(Loose):
    """A process group; no ranks means all of them, which is how PyTorch shortens it."""

    pg_name: Annotated[Text, BeforeValidator(str)]
    pg_desc: Text = ""
    ranks: tuple[Annotated[int, _RANK], ...] = ()


class ProcessInfo(Loose):
    """Who wrote the trace (`distributedInfo`)."""

    rank: int = _RANK
    world_size: int = Field(ge=1, lt=1 << 31)
    nccl_version: Annotated[Text | None, BeforeValidator(lambda told: told if isinstance(told, str) else None)] = None
    pg_config: Annotated[tuple[GroupConfig, ...], BeforeValidator(_listed)] = ()


class KernelEvent(Loose):
    """One of NCCL's kernels on the GPU, times in microseconds."""

    ts: float = Field(ge=0, lt=1 << 53)
    dur: float = Field(ge=0, lt=1 << 52)
    tid: int | str = 0  # the stream
    args: dict[str, object] = Field({})

    @property
    def correlation(self) -> int:
        told = self.args.get("correlation")
        return told if isinstance(told, int) else -1


class CallEvent(Loose):
    """What the host did: a collective call of PyTorch."""

    ts: float = Field(ge=0, lt=1 << 53)
    dur: float = Field(ge=0, lt=1 << 52)
    tid: int | str = 0
    name: Text
    args: dict[str, object] = Field({})


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
    _moments: "array[float]" = field(default_factory=lambda: array("d"))
    _on_thread: "array[int]" = field(default_factory=lambda: array("q"))

    def unix_ns(self, moment_us: float) -> int:
        """Return a time of the trace as UNIX time; old traces count from there, newer ones from their own base."""
        whole = int(moment_us)  # apart from the rest: together they have more digits than a float
        return self.base_ns + whole * 1000 + round((moment_us - whole) * 1000)

    def thread(self, tid: object) -> int:
        return self._threads.setdefault(tid, len(self._threads))

    def note_launch(self, event: Mapping[str, object], correlation: int) -> None:
        moment = event.get("ts")
        if isinstance(moment, int | float) and abs(correlation) < 1 << 62:
            self._correlations.append(correlation)
            self._moments.append(float(moment))
            self._on_thread.append(self.thread(event.get("tid")))

    def launches(self) -> dict[int, Launch]:
        """Return the launches of NCCL's kernels by their correlation."""
        wanted = np.array([kernel.correlation for kernel in self.kernels], dtype=np.int64)
        correlations = np.frombuffer(self._correlations, dtype=np.int64)
        places = np.flatnonzero(np.isin(correlations, wanted)).tolist()
        return {self._correlations[n]: Launch(self._moments[n], self._on_thread[n]) for n in places}

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
            trace.info = _checked(ProcessInfo, value, f"{name}: distributedInfo")
        elif key == "baseTimeNanoseconds" and isinstance(value, int) and 0 <= value < _LONGEST_NS:
            trace.base_ns = value
    for calls in trace.calls.values():
        calls.sort(key=lambda call: call.ts)
    return trace


def _take_event(trace: Trace, event: object, number: int) -> None:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return
    category, name, args = event.get("cat"), event.get("name"), event.get("args")
    place = f"{trace.file}: traceEvents, event {number}"
    if category == "kernel" and isinstance(name, str) and name.startswith("nccl"):
        trace.kernels.append(_checked(KernelEvent, event, place))
    elif category in ("cuda_runtime", "cuda_driver") and isinstance(args, dict):
        if isinstance(args.get("correlation"), int):
            trace.note_launch(event, args["correlation"])
    elif category in _ON_THE_HOST and isinstance(name, str) and _CALL.match(name):
        call = _checked(CallEvent, event, place)
        trace.calls.setdefault(trace.thread(call.tid), []).append(call)


def _checked(kind: type[Kind], told: object, place: str) -> Kind:
    try:
        return kind.model_validate(told)
    except ValidationError as error:
        raise BadInput(f"{place}: {place_of(error)}") from None
