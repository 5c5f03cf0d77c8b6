"""Records every callback of the jobs on this host for a while: what a bug report needs, and what a replay can play.

The processes are asked for level `trace` through their control page and get back what was in force before, also when
something fails on the way. What they record is kept in memory up to a limit.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from collector.nccl.budget import WHOLE_SHARE
from collector.nccl.ringfile import RingFile, open_ring
from importers.traces.callback_trace import RankRecording, RecordedComm, events_of, trace_lines
from lockstep import wire
from lockstep.clock import Clock
from lockstep.errors import BadInput, BadRing
from lockstep.wire import Table

POLL_S = 0.05  # a ring holds 8,192 records; a proxy thread under load writes about that many in 100 ms


@dataclass(frozen=True)
class Limits:
    """How long, and how much memory."""

    seconds: float
    bytes: int


@dataclass
class Recorded:
    """What one process has said so far."""

    ring: RingFile
    pieces: list[Table] = field(default_factory=list)
    lost: int = 0

    @property
    def bytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    def drain(self) -> None:
        records = self.ring.read_records()
        self.lost += records.lost
        if len(records.callbacks):
            self.pieces.append(records.callbacks)


@contextmanager
def living_processes(directory: Path) -> Iterator[list[Recorded]]:
    """Open the ring files of all processes of this directory that live."""
    with ExitStack() as stack:
        rings = [stack.enter_context(ring) for ring in _living(directory)]
        if not rings:
            raise BadInput(f"no process on this host records into {directory}")
        yield [Recorded(ring) for ring in rings]


@contextmanager
def traced(processes: Sequence[Recorded]) -> Iterator[None]:
    """Have every callback recorded until the end of the block."""
    with ExitStack() as stack:
        for process in processes:
            before = process.ring.status()
            stack.callback(process.ring.request, int(before["level"]), int(before["share"]), 0)
            process.ring.request(wire.TRACE, WHOLE_SHARE, 0)
        yield


def record(
    processes: Sequence[Recorded],
    limits: Limits,
    clock: Clock,
    stop: threading.Event,
    advance: Callable[[float], None] = lambda _: None,
) -> bool:
    """Drain until the time is over or `stop` is set; False when the limit on memory came first."""
    for process in processes:
        process.drain()  # what was recorded before is not ours
        process.pieces, process.lost = [], 0
    end_ns = clock.monotonic_ns() + int(limits.seconds * 1e9)
    while clock.monotonic_ns() < end_ns and not clock.wait(stop, POLL_S):
        advance(POLL_S)
        for process in processes:
            process.drain()
        if sum(process.bytes for process in processes) > limits.bytes:
            return False
    return True


def lines_of(processes: Sequence[Recorded], run: str) -> Iterator[str]:
    """Return the trace of one job's processes on this host, line by line."""
    recordings = [_recording(process, number) for number, process in enumerate(processes)]
    epoch_ns = min(process.ring.identity.created_ns for process in processes)
    events = (event for recording in recordings for event in events_of(recording, epoch_ns))
    return trace_lines(_about(processes, recordings, run), recordings, events, epoch_ns)


def _living(directory: Path) -> Iterator[RingFile]:
    for path in sorted(directory.glob("*.ring")):
        try:
            ring = open_ring(path)
        except (BadRing, FileNotFoundError):
            continue  # somebody's else, or gone meanwhile
        if ring.owner() is None:
            ring.close()
        else:
            yield ring


def _recording(process: Recorded, number: int) -> RankRecording:
    """One rank's callbacks, with UNIX times instead of ticks."""
    ring, clock = process.ring, process.ring.clock()
    # Joined as bytes: numpy would lay the overlapping readings of a callback out one after another.
    records = np.frombuffer(bytearray().join(piece.tobytes() for piece in process.pieces), wire.CALLBACK)
    records["ticks"] = clock.to_unix_ns(records["ticks"]).astype(np.uint64)
    identity = ring.identity
    return RankRecording(
        rank=number if identity.world_rank is None else identity.world_rank,
        pid=identity.pid,
        host=identity.host,
        api=identity.api_version,
        comms=_communicators(ring),
        records=records.tobytes(),
        unix_ns=int,
    )


def _communicators(ring: RingFile) -> list[RecordedComm]:
    table, clock = ring.communicators(), ring.clock()
    init_ns = clock.to_unix_ns(table["init_ticks"]).tolist()
    destroy_ns = clock.to_unix_ns(table["destroy_ticks"]).tolist()
    return [
        RecordedComm(
            index=int(comm["index"]),
            id=int(comm["id"]),
            rank=int(comm["rank"]),
            nranks=int(comm["nranks"]),
            nnodes=int(comm["nnodes"]),
            init_ns=init,
            destroy_ns=destroy if comm["destroy_ticks"] else 0,
            name=bytes(comm["name"]).partition(b"\0")[0].decode(errors="replace"),
        )
        for comm, init, destroy in zip(table, init_ns, destroy_ns, strict=True)
    ]


def _about(processes: Sequence[Recorded], recordings: Sequence[RankRecording], run: str) -> dict[str, object]:
    first = processes[0].ring.identity
    return {
        "run": run,
        "nccl": first.nccl_version,
        "ranks": len(recordings),
        "op": "recorded from a live job on one host",
        "fault": "unknown",
        "hosts": {str(recording.rank): recording.host for recording in recordings},
        "live": True,
        "lost": sum(process.lost for process in processes),
        "clock": "UNIX time of this host",
    }
