"""The recorded traces and what their lines say, worked out the plain way.

Nothing here knows the plugin, the ring or the folding: dictionaries, loops and sums over the lines of a trace.
"""

import json
import lzma
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.conftest import REPO

TRACES = REPO / "tests" / "data" / "nccl_callbacks"
ALL_TRACES = sorted(path.name for path in TRACES.iterdir() if ".jsonl" in path.name)

Event = dict[str, Any]  # Any: a line of JSON

REACHED = {"SendWait", "RecvFlushWait"}  # with these NCCL tells the size of a step
CHARGED_TO = {
    "SendGPUWait": "gpu_wait_ns",
    "SendPeerWait": "peer_wait_ns",
    "SendWait": "wire_ns",
    "RecvWait": "peer_wait_ns",
    "RecvFlushWait": "flush_ns",
    "RecvGPUWait": "gpu_wait_ns",
}
SIZES = {"ncclInt8": 1, "ncclUint8": 1, "ncclInt32": 4, "ncclInt64": 8, "ncclFloat16": 2, "ncclFloat32": 4, 7: 4}


def read_lines(path: Path) -> list[Event]:
    packed = path.read_bytes()
    text = lzma.decompress(packed) if path.suffix == ".xz" else packed
    return [json.loads(line) for line in text.splitlines()]


def write_lines(path: Path, lines: list[Event]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@dataclass
class PlainStep:
    """A step: its start, its states and its stop."""

    start: Event
    states: list[Event] = field(default_factory=list)
    stop: Event | None = None

    def first(self, names: set[str]) -> Event:
        return next(state for state in self.states if state["state"] in names)


@dataclass
class PlainTransfer:
    """A proxy operation with its steps, in the order of their callbacks."""

    start: Event
    callbacks: list[Event] = field(default_factory=list)
    steps: dict[int, PlainStep] = field(default_factory=dict)  # by number of the event
    stop: Event | None = None

    def waits(self) -> dict[str, int]:
        """Return the time for which the oldest open step was in each state."""
        total: dict[str, int] = defaultdict(int)
        state_of: dict[int, str | None] = {}  # of open steps, by number of the step
        before = self.start["ts"]
        for event in [*self.callbacks, self.stop]:
            assert event is not None
            head = state_of[min(state_of)] if state_of else None
            if head:
                total[CHARGED_TO[head]] += event["ts"] - before
            before = event["ts"]
            if event is self.stop:
                break
            step = self.steps[event["h"]].start["step"]
            if event["ev"] == "stop":
                state_of.pop(step, None)
            else:
                state_of[step] = event.get("state")
        return total

    def bytes(self) -> int:
        return sum(step.first(REACHED).get("arg", 0) for step in self.steps.values() if step.stop)


@dataclass
class PlainOperation:
    """A Coll or P2p with everything that belongs to it."""

    start: Event
    seq: int
    captured: bool
    transfers: list[PlainTransfer] = field(default_factory=list)
    kernels: list[Event] = field(default_factory=list)
    open_kernels: int = 0

    @property
    def is_over(self) -> bool:
        return self.open_kernels == 0 and all(transfer.stop for transfer in self.transfers)

    @property
    def bytes(self) -> int:
        return int(self.start["count"]) * SIZES[self.start["dtype"]]


@dataclass
class PlainRank:
    """One rank of a trace: its header, and its operations in the order in which they were enqueued."""

    header: Event
    operations: dict[int, PlainOperation] = field(default_factory=dict)
    transfers: dict[int, PlainTransfer] = field(default_factory=dict)
    steps: dict[int, PlainTransfer] = field(default_factory=dict)
    kernels: dict[int, PlainOperation] = field(default_factory=dict)
    calls: dict[int, Event] = field(default_factory=dict)
    sends: dict[tuple[int, str, int], int] = field(default_factory=lambda: defaultdict(int))

    def unix_ns(self, ts: int) -> int:
        return int(ts - self.header["mono0"] + self.header["real0"])

    def take(self, event: Event) -> None:
        kind, number = event["type"], event["h"]
        if event["ev"] == "start":
            self._start(kind, number, event)
        elif number in self.steps:
            transfer = self.steps[number]
            transfer.callbacks.append(event)
            if event["ev"] == "stop":
                transfer.steps[number].stop = event
            else:
                transfer.steps[number].states.append(event)
        elif number in self.transfers and event["ev"] == "stop":
            self.transfers[number].stop = event
        elif number in self.kernels and event["ev"] == "stop":
            self.kernels[number].open_kernels -= 1

    def _start(self, kind: str, number: int, event: Event) -> None:
        parent = event.get("parent", -1)
        if kind in ("Coll", "P2p"):
            self.operations[number] = self._operation(event)
        elif kind == "ProxyOp" and parent in self.operations:
            self.transfers[number] = PlainTransfer(event)
            self.operations[parent].transfers.append(self.transfers[number])
        elif kind == "ProxyStep" and parent in self.transfers:
            self.steps[number] = self.transfers[parent]
            self.transfers[parent].steps[number] = PlainStep(event)
            self.transfers[parent].callbacks.append(event)
        elif kind == "KernelCh" and parent in self.operations:
            self.kernels[number] = self.operations[parent]
            self.operations[parent].kernels.append(event)
            self.operations[parent].open_kernels += 1
        elif kind in ("CollApi", "P2pApi"):
            self.calls[number] = event

    def _operation(self, event: Event) -> PlainOperation:
        captured = bool(self.calls.get(event.get("parent", -1), {}).get("captured", 0))
        seq = event.get("seq")
        if seq is None:
            key = (event["comm"], event["func"], event["peer"])
            seq = self.sends[key]
            self.sends[key] += 1
        return PlainOperation(event, seq, captured)


@dataclass
class PlainTrace:
    """A trace, worked out rank by rank."""

    about: Event
    ranks: dict[int, PlainRank]

    @cached_property
    def operations(self) -> list[tuple[int, PlainOperation]]:
        return [(number, one) for number, rank in self.ranks.items() for one in rank.operations.values()]

    def transfers(self) -> Iterator[tuple[int, PlainOperation, PlainTransfer]]:
        for rank, operation in self.operations:
            for transfer in operation.transfers:
                yield rank, operation, transfer


def work_out(path: Path) -> PlainTrace:
    """Return what a trace says."""
    lines = read_lines(path)
    about = lines[0] if "run" in lines[0] else {"run": path.name.partition(".jsonl")[0]}
    ranks = {line.get("rank", 0): PlainRank(line["header"]) for line in lines if "header" in line}
    for line in lines:
        if "ev" in line:
            ranks[line.get("r", 0)].take(line)
    return PlainTrace(about, ranks)
