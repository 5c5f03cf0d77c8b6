"""Transfers and their steps as rows, and what a transfer moved where nobody counted its steps.

Ticks become times process by process; from then on the transfers of all processes are handled together.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.rings.clock import TickClock
from lockstep.rings.grouping import pick
from lockstep.rings.operations import key_columns, names_of
from lockstep.rings.origin import Origins
from lockstep.rings.span import Span
from lockstep.tables import TABLE_BY_NAME

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

_GPU, _PEER, _WIRE, _FLUSH = range(4)  # order of the waits in a record
_MOST_BYTES = 2.0**62  # nobody moves that much; a forged size may say so
_RECV_ARRIVED, _SEND_WIRE, _DONE = range(3)  # order of the marks of a step; the first two mean other things otherwise
_DIRECTIONS = ("recv", "send")
_DETAILS = ("ops", "steps")

_OF_OPERATION = (("comm", "u8"), ("seq", "u8"), ("rank", "u4"), ("replay", "u4"), ("epoch", "u2"), ("func", "u1"))
_OF_BOTH = (("peer", "i4"), ("origin", "u2"), ("channel", "u1"), ("sends", "?"), ("kept", "?"), ("bytes", "u8"))

# A closed transfer: what is needed of it and of its operation, with times.
MOVED = np.dtype(
    [
        *(*_OF_OPERATION, *_OF_BOTH),
        *(("of_bytes", "u8"), ("first_ns", "i8"), ("end_ns", "i8"), ("waits", ("i8", 4))),
        *(("nranks", "u4"), ("steps", "u4"), ("algo", "u1"), ("proto", "u1"), ("channels", "u1"), ("has_steps", "?")),
    ],
    align=True,
)
STEPPED = np.dtype(
    [*_OF_OPERATION, *_OF_BOTH, ("posted_ns", "i8"), ("wire_ns", "i8"), ("done_ns", "i8"), ("step", "u4")], align=True
)
_KEY = tuple(name for name, _ in _OF_OPERATION)

# How much of an operation one rank sends, by algorithm and function; 0: in ways that the callbacks do not tell.
_RING_BOTH_WAYS, _RING_PARTS, _WHOLE = 1, 2, 3
_PATTERNS = np.zeros((len(wire.ALGOS), len(wire.FUNCS)), np.uint8)
_PATTERNS[wire.ALGO_RING, wire.ALL_REDUCE] = _RING_BOTH_WAYS
_PATTERNS[wire.ALGO_RING, [wire.ALL_GATHER, wire.REDUCE_SCATTER]] = _RING_PARTS
_PATTERNS[wire.ALGO_RING, [wire.BROADCAST, wire.REDUCE]] = _WHOLE
_PATTERNS[wire.TREE, wire.ALL_REDUCE] = _WHOLE
_PATTERNS[:, [wire.SEND, wire.RECV]] = _WHOLE
_SWELLING = np.ones(len(wire.PROTOS))
_SWELLING[wire.LL], _SWELLING[wire.LL128] = 2, 128 / 120


def span_of(closed: Array, clock: TickClock) -> Span:
    """Return when transfers began and ended."""
    first = clock.to_unix_ns(closed["first_ticks"])
    return Span(first, first + _lengths(closed["duration"], clock))


def time_transfers(closed: Array, operations: Array, clock: TickClock, origin: int) -> Array:
    """Return closed transfers as MOVED, with the bytes that were counted; `operations` has the operation of each."""
    moved = _with_operations(MOVED, closed, operations, origin)
    for name in ("nranks", "algo", "proto", "channels"):
        moved[name] = operations[name]
    moved["first_ns"], moved["end_ns"] = span_of(closed, clock)
    moved["channel"], moved["steps"] = closed["channel_steps"] >> 24, closed["channel_steps"] & 0xFFFFFF
    moved["of_bytes"], moved["has_steps"] = operations["bytes"], (closed["flags"] & wire.FLAG_STEPS) != 0
    if moved["has_steps"].any():
        moved["waits"] = _lengths(closed["waits"], clock) * moved["has_steps"][:, None]
    return moved


def settle_bytes(moved: Array) -> Array:
    """Set how many bytes each transfer moved, and return for which of them that is known.

    Where steps were recorded their sizes were added up; NCCL before 2.24 told sizes of 0, which are no sizes.
    Elsewhere the algorithm says it: an equal part per channel of what one rank sends (`expected_bytes`).
    """
    counted = moved["has_steps"] & ((moved["bytes"] > 0) | (moved["of_bytes"] == 0))
    expected, predictable = expected_bytes(moved, moved["of_bytes"])
    moved["bytes"] = np.where(counted, moved["bytes"], expected)
    settled: Array = counted | predictable
    return settled


def expected_bytes(operations: Array, sizes: Array) -> tuple[Array, Array]:
    """Return what one transfer of each operation moves, and whether its algorithm is one of which we can say.

    A ring of n ranks sends 2 (n-1)/n of the buffer for AllReduce and n-1 parts of it for AllGather and ReduceScatter
    (whose size NCCL gives for one rank); a chain and a tree send the whole to each neighbour. Channels share equally.
    LL sends a flag of 4 bytes with every 4 bytes of data, LL128 one of 8 with every 120. CollNet, NVLS and PAT share
    the work in ways that the callbacks do not tell.
    """
    ranks, channels = operations["nranks"].astype(np.float64), operations["channels"].astype(np.float64)
    pattern = _PATTERNS[operations["algo"], operations["func"]]
    parts = np.maximum(ranks, 1)
    times = np.where(pattern == _RING_BOTH_WAYS, 2 * (parts - 1) / parts, 1.0)
    times = np.where(pattern == _RING_PARTS, parts - 1, times)
    share = sizes * times * _SWELLING[operations["proto"]] / np.maximum(channels, 1)
    predictable = ((pattern == _WHOLE) | ((pattern > 0) & (ranks > 1))) & (channels > 0)
    return np.rint(np.minimum(share, _MOST_BYTES)).astype(np.uint64), predictable


def transfer_rows(moved: Array, origins: Origins) -> pa.Table:
    """Return rows of transfers whose bytes are settled.

    Waits are known where steps were recorded: a wire time is the sender's, a flush the receiver's.
    """
    sends, unknown = moved["sends"], ~moved["has_steps"]
    hidden = (unknown, unknown, unknown | ~sends, unknown | sends)
    waits = {
        name: pa.array(moved["waits"][:, number], pa.int64(), mask=hidden[number])
        for number, name in enumerate(("gpu_wait_ns", "peer_wait_ns", "wire_ns", "flush_ns"))
    }
    columns = origins.columns(moved["origin"]) | waits | _edge_columns(moved)
    columns |= {name: moved[name] for name in ("steps", "first_ns")}
    columns |= {"last_ns": moved["end_ns"], "detail": names_of(_DETAILS, moved["has_steps"].view(np.uint8))}
    return fill_rows(TABLE_BY_NAME["transfers"], len(moved), columns)


def time_steps(closed: Array, operations: Array, clock: TickClock, origin: int) -> tuple[Array, Array]:
    """Return closed steps as STEPPED, and which of all were seen to reach the network: only those are there."""
    sends = (closed["flags"] & wire.FLAG_SEND) != 0
    reached = np.where(sends, closed["marks"][:, _SEND_WIRE], closed["marks"][:, _RECV_ARRIVED])
    whole = (reached != wire.BUSY) & (closed["marks"][:, _DONE] != wire.BUSY)
    closed, operations, reached = pick(closed, whole), pick(operations, whole), reached[whole]
    stepped = _with_operations(STEPPED, closed, operations, origin)
    posted = clock.to_unix_ns(closed["posted_ticks"])
    stepped["posted_ns"], stepped["wire_ns"] = posted, posted + _lengths(reached, clock)
    stepped["done_ns"] = posted + _lengths(closed["marks"][:, _DONE], clock)
    stepped["channel"], stepped["step"] = closed["channel"] & 0xFF, closed["step"]
    return stepped, whole


def step_rows(stepped: Array, origins: Origins) -> pa.Table:
    """Return rows of steps."""
    columns = origins.columns(stepped["origin"]) | _edge_columns(stepped)
    columns |= {name: stepped[name] for name in ("step", "posted_ns", "wire_ns", "done_ns")}
    return fill_rows(TABLE_BY_NAME["step_samples"], len(stepped), columns)


def _with_operations(kind: np.dtype[Any], closed: Array, operations: Array, origin: int) -> Array:
    """Return parts with what they and their operations have alike in both kinds."""
    made = np.zeros(len(closed), kind)
    for name in (*_KEY, "kept"):
        made[name] = operations[name]
    made["peer"], made["bytes"], made["origin"] = closed["peer"], closed["bytes"], origin
    made["sends"] = (closed["flags"] & wire.FLAG_SEND) != 0
    return made


def _lengths(packed: Array, clock: TickClock) -> Array:
    return clock.duration_ns(wire.unpack_duration(packed))


def _edge_columns(parts: Array) -> dict[str, object]:
    direction = names_of(_DIRECTIONS, parts["sends"].view(np.uint8))
    return (
        key_columns(parts) | {name: parts[name] for name in ("peer", "channel", "bytes")} | {"direction": direction}
    )
