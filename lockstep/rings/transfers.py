"""Transfers and their steps as rows, and what a transfer moved where nobody counted its steps."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.rings.clock import TickClock
from lockstep.rings.operations import key_columns
from lockstep.rings.origin import Origin
from lockstep.rings.span import Span
from lockstep.tables import TABLE_BY_NAME

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

_GPU, _PEER, _WIRE, _FLUSH = range(4)  # order of the waits in a record
_MOST_BYTES = 2.0**62  # nobody moves that much; a forged size may say so
_RECV_ARRIVED, _SEND_WIRE, _DONE = range(3)  # order of the marks of a step; the first two mean other things otherwise


def span_of(closed: Array, clock: TickClock) -> Span:
    """Return when transfers began and ended."""
    first = clock.to_unix_ns(closed["first_ticks"])
    return Span(first, first + _lengths(closed["duration"], clock))


def transfer_rows(closed: Array, operations: Array, clock: TickClock, origin: Origin) -> tuple[pa.Table, Array]:
    """Return rows of closed transfers, and which of them have one; `operations` holds the operation of each.

    A transfer without a row is one of which nobody can say how much it moved.
    """
    moved, known = moved_bytes(closed, operations)
    closed, operations, moved = closed[known], operations[known], moved[known]
    span = span_of(closed, clock)
    columns: dict[str, object] = {
        "channel": closed["channel_steps"] >> 24,
        "steps": closed["channel_steps"] & 0xFFFFFF,
        "bytes": moved,
        "detail": pa.array(np.where(has_steps(closed), "steps", "ops")),
        "first_ns": span.first_ns,
        "last_ns": span.last_ns,
        "transport": origin.transport,
    }
    columns |= _edge_columns(closed, origin) | _wait_columns(closed, clock) | key_columns(operations)
    return fill_rows(TABLE_BY_NAME["transfers"], len(closed), columns | origin.columns()), known


def step_rows(closed: Array, operations: Array, clock: TickClock, origin: Origin) -> tuple[pa.Table, Array]:
    """Return rows of closed steps, and which of them have one: those that were seen to reach the network."""
    reached = np.where(is_send(closed), closed["marks"][:, _SEND_WIRE], closed["marks"][:, _RECV_ARRIVED])
    whole = (reached != wire.BUSY) & (closed["marks"][:, _DONE] != wire.BUSY)
    closed, operations, reached = closed[whole], operations[whole], reached[whole]
    posted = clock.to_unix_ns(closed["posted_ticks"])
    columns: dict[str, object] = {
        "channel": closed["channel"] & 0xFF,
        "step": closed["step"],
        "bytes": closed["bytes"],
        "posted_ns": posted,
        "wire_ns": posted + _lengths(reached, clock),
        "done_ns": posted + _lengths(closed["marks"][:, _DONE], clock),
    }
    columns |= _edge_columns(closed, origin) | key_columns(operations)
    return fill_rows(TABLE_BY_NAME["step_samples"], len(closed), columns | origin.columns()), whole


def moved_bytes(closed: Array, operations: Array) -> tuple[Array, Array]:
    """Return how many bytes each transfer moved, and whether that is known.

    Where steps were recorded their sizes were added up; NCCL before 2.24 told sizes of 0, which are no sizes.
    Elsewhere the algorithm says it: an equal part per channel of what one rank sends (`expected_bytes`).
    """
    counted = has_steps(closed) & ((closed["bytes"] > 0) | (operations["bytes"] == 0))
    expected, predictable = expected_bytes(operations)
    return np.where(counted, closed["bytes"], expected), counted | predictable


def expected_bytes(operations: Array) -> tuple[Array, Array]:
    """Return what one transfer of each operation moves, and whether its algorithm is one of which we can say.

    A ring of n ranks sends 2 (n-1)/n of the buffer for AllReduce and n-1 parts of it for AllGather and ReduceScatter
    (whose size NCCL gives for one rank); a chain and a tree send the whole to each neighbour. Channels share equally.
    LL sends a flag of 4 bytes with every 4 bytes of data, LL128 one of 8 with every 120. CollNet, NVLS and PAT share
    the work in ways that the callbacks do not tell.
    """
    func, ranks = operations["func"], operations["nranks"].astype(np.int64)
    ring, tree = operations["algo"] == wire.ALGO_RING, operations["algo"] == wire.TREE
    parts = np.maximum(ranks, 1)
    size = operations["bytes"].astype(np.float64)
    total = np.select(
        [ring & (func == wire.ALL_REDUCE), ring & np.isin(func, [wire.ALL_GATHER, wire.REDUCE_SCATTER])],
        [size * 2 * (parts - 1) / parts, size * (parts - 1)],
        size,
    )
    ring_funcs = [wire.ALL_REDUCE, wire.ALL_GATHER, wire.REDUCE_SCATTER]
    predictable = ring & np.isin(func, ring_funcs) & (ranks > 1)
    predictable |= ring & np.isin(func, [wire.BROADCAST, wire.REDUCE])
    predictable |= (tree & (func == wire.ALL_REDUCE)) | np.isin(func, [wire.SEND, wire.RECV])
    channels = operations["channels"].astype(np.int64)
    swollen = total * np.select(
        [operations["proto"] == wire.LL, operations["proto"] == wire.LL128], [2, 128 / 120], 1
    )
    share = np.minimum(swollen / np.maximum(channels, 1), _MOST_BYTES)
    return np.rint(share).astype(np.uint64), predictable & (channels > 0)


def has_steps(closed: Array) -> Array:
    """Return whose waits are real."""
    return _has(closed, wire.FLAG_STEPS)


def is_send(closed: Array) -> Array:
    return _has(closed, wire.FLAG_SEND)


def _has(closed: Array, flag: int) -> Array:
    has: Array = (closed["flags"] & flag) != 0
    return has


def _lengths(packed: Array, clock: TickClock) -> Array:
    return clock.duration_ns(wire.unpack_duration(packed))


def _edge_columns(closed: Array, origin: Origin) -> dict[str, object]:
    direction = pa.array(np.where(is_send(closed), "send", "recv"))
    return {"peer": closed["peer"], "direction": direction, "nic": origin.nic}


def _wait_columns(closed: Array, clock: TickClock) -> dict[str, object]:
    """Return waits where steps were recorded: a wire time is the sender's, a flush the receiver's."""
    sends, unknown = is_send(closed), ~has_steps(closed)
    hidden = {
        "gpu_wait_ns": unknown,
        "peer_wait_ns": unknown,
        "wire_ns": unknown | ~sends,
        "flush_ns": unknown | sends,
    }
    waits = zip(hidden.items(), (_GPU, _PEER, _WIRE, _FLUSH), strict=True)
    return {
        name: pa.array(_lengths(closed["waits"][:, number], clock), pa.int64(), mask=mask)
        for (name, mask), number in waits
    }
