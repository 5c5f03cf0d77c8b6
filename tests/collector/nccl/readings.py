"""Short constructors for what a ring file holds, so that a test of the folding names only what it is about.

Ticks are nanoseconds since T0, and every process is one of rank 0 in communicator 7 at place 0.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from collector.nccl.arrays import stack
from collector.nccl.clock import HostClocks, TickClock
from collector.nccl.communicators import Origin
from collector.nccl.draining import KINDS, Records
from collector.nccl.header import Identity
from collector.nccl.operations import learn_operations
from collector.nccl.ringfile import INDEXED_COMM, INDEXED_ROW, Live
from collector.nccl.snapshot import Reading
from collector.nccl.transfers import add_part_bytes
from lockstep import wire
from tests.builders import T0

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

MS = 1_000_000
TAG = 0xAB
ORIGIN = Origin(host="h0", job="j1")
IDENTITY = Identity(
    pid=42,
    created_ns=T0,
    tag=TAG,
    host="claimed",
    job="claimed",
    attempt=0,
    world_rank=0,
    world_size=4,
    local_rank=0,
    plugin_version="test",
    nccl_version="2.32.3",
    api_version=7,
    kernel_channels=True,
    clock_kind=wire.CLOCK_REPLAY,
)
CLOCK = TickClock(np.array([0], np.uint64), np.array([T0]), np.array([1.0]), 1.0)
CLOCKS = HostClocks([CLOCK])
NUMBER = np.zeros(1, np.uint16)  # of the only origin


def element(struct: np.dtype[np.void], /, **fields: Any) -> Array:
    """Return an array of one element."""
    made = np.zeros(1, struct)
    for name, value in fields.items():
        made[name] = value
    return made


def handle(number: int, tag: int = TAG) -> int:
    return tag << wire.TAG_SHIFT | wire.HANDLE_OPERATION << wire.KIND_SHIFT | number


def enqueued(number: int = 1, **fields: Any) -> Array:
    usual = {"operation": handle(number), "seq": number, "bytes": 1 << 20, "ticks": MS, "peer": -1, "epoch": 1}
    usual |= {"func": wire.ALL_REDUCE, "dtype": wire.FLOAT32, "algo": wire.ALGO_RING, "proto": wire.SIMPLE}
    usual |= {"channels": 2, "flags": wire.FLAG_SEQ_VALID | wire.FLAG_SAMPLED, "root": -1}
    return element(wire.ENQUEUED, **usual | fields)


def transfer(number: int = 1, channel: int = 0, **fields: Any) -> Array:
    usual: dict[str, Any] = {"operation": handle(number), "first_ticks": 2 * MS, "duration": 3 * MS, "bytes": 786_432}
    usual |= {"flags": wire.FLAG_SEND | wire.FLAG_STEPS, "channel_steps": channel << 24 | 12}
    usual |= {"waits": [10, 20, 30, 40], "peer": 1}
    return element(wire.TRANSFER_CLOSED, **usual | fields)


def step(number: int = 1, **fields: Any) -> Array:
    usual: dict[str, Any] = {"operation": handle(number), "posted_ticks": 2 * MS, "bytes": 65_536, "step": 3}
    usual |= {"marks": [100, 200, 300], "peer": 1, "channel": 1, "flags": wire.FLAG_SEND | wire.FLAG_STEPS}
    return element(wire.STEP_CLOSED, **usual | fields)


def kernel(number: int = 1, start: int = 2 * MS, stop: int = 6 * MS, **fields: Any) -> Array:
    """Return a kernel that the host heard of 1 us after each event; the GPU's clock is 5 s behind."""
    gpu = {"gpu_start_ns": start + T0 - 5_000 * MS, "gpu_stop_ns": stop + T0 - 5_000 * MS}
    seen = {"start_ticks": start + 1_000, "stop_ticks": stop + 1_000, "channel": 0}
    return element(wire.KERNEL_CLOSED, operation=handle(number), **gpu | seen | fields)


def communicator(**fields: Any) -> Array:
    usual = {"incarnation": 1, "id": 7, "rank": 0, "nranks": 4, "nnodes": 4, "name": b"world", "index": 0}
    return element(INDEXED_COMM, **usual | fields)


def running(number: int = 1, **fields: Any) -> Array:
    """Return an operation as the live table shows it."""
    usual = {"handle": handle(number), "seq": number, "open": 1, "began": 1, "func": wire.ALL_REDUCE, "peer": -1}
    usual |= {"bytes": 1 << 20, "dtype": wire.FLOAT32, "algo": wire.ALGO_RING, "enqueue_ticks": MS, "epoch": 1}
    return element(wire.OPERATION, **usual | fields)


def moving(number: int = 1, wait: int = wire.WAIT_WIRE, since: int = 2 * MS, **fields: Any) -> Array:
    """Return a transfer as the live table shows it."""
    usual = {"handle": 5, "operation": handle(number), "wait": wait << 56 | since, "peer": 1, "channel": 1}
    return element(wire.TRANSFER, **usual | fields)


def row(func: int = wire.ALL_REDUCE, peer: int = -1, **fields: Any) -> Array:
    key = 1 << 40 | func << 32 | (peer & 0xFFFFFFFF)
    return element(INDEXED_ROW, **{"key": key, "enqueued": 2, "started": 2, "done": 1, "epoch": 1} | fields)


def known(records: Array, **fields: Any) -> Array:
    """Return what was enqueued in one communicator as known operations."""
    members = np.repeat(communicator(**fields), len(records))
    enqueue_ns = CLOCKS.to_unix_ns(records["ticks"], [len(records)])
    return add_part_bytes(learn_operations(records, members, enqueue_ns, 0))


def stacked(kind: np.dtype[np.void], given: list[Array]) -> Array:
    return np.concatenate([np.empty(0, kind), *given])


def slots_of(*records: Array) -> Array:
    """Return records as a file holds them, with the number of their kind, kind by kind."""
    slots = [np.empty((0, wire.RECORD.itemsize), np.uint8)]
    for number, kind in KINDS.values():
        found = stack(kind, [np.empty(0, kind), *(one for one in records if one.dtype == kind)])
        found["kind"] = number
        slots.append(found.view(np.uint8).reshape(len(found), wire.RECORD.itemsize))
    return np.concatenate(slots)


def reading(
    *records: Array, live: list[Array] | None = None, comms: list[Array] | None = None, **changes: Any
) -> Reading:
    """Return a reading of these records, whatever their kinds; of one communicator unless told otherwise."""
    shown = [
        stacked(kind, [one for one in live or [] if one.dtype == kind])
        for kind in (INDEXED_ROW, wire.OPERATION, wire.TRANSFER)
    ]
    usual: dict[str, Any] = {"identity": IDENTITY, "clock": CLOCK, "level": wire.STEPS}
    usual |= {"communicators": stacked(INDEXED_COMM, [communicator()] if comms is None else comms)}
    usual |= {"live": Live(*shown), "records": Records(slots_of(*records), changes.pop("lost", 0))}
    return Reading(**usual | changes)
