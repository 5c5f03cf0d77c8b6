"""Transfers and their steps as rows, and what a transfer moved where nobody counted its steps.

Ticks become times by the clock of their process; the transfers of all processes are handled together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from collector.nccl.arrays import Array
from collector.nccl.clock import HostClocks
from collector.nccl.communicators import Origins
from collector.nccl.header import Identity
from collector.nccl.operations import OperationIndex, key_columns, keys_of, names_of
from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.tables import TABLE_BY_NAME

_MOST_BYTES = 2.0**62  # nobody moves that much; a forged size may say so
_RECV_ARRIVED, _SEND_WIRE, _DONE = range(3)  # order of the marks of a step; the first two mean other things otherwise
_DIRECTIONS = ("recv", "send")
_DETAILS = ("ops", "steps")

_OF_OPERATION = (("comm", "u8"), ("seq", "u8"), ("rank", "u4"), ("replay", "u4"), ("epoch", "u2"), ("func", "u1"))
_OF_BOTH = (
    *(("operation", "u8"), ("bytes", "u8"), ("peer", "i4"), ("origin", "u2"), ("channel", "u1")),
    *(("sends", "?"), ("kept", "?")),
)

# A closed transfer: what is needed of it and, as soon as that is known, of its operation, with times.
MOVED = np.dtype(
    [
        *(*_OF_OPERATION, *_OF_BOTH),
        *(("of_bytes", "u8"), ("first_ns", "i8"), ("end_ns", "i8"), ("waits", ("i8", 4))),
        *(("part_bytes", "u8"), ("pid", "u4"), ("steps", "u4"), ("has_part_bytes", "?"), ("has_steps", "?")),
    ],
    align=True,
)
STEPPED = np.dtype(
    [
        *(*_OF_OPERATION, *_OF_BOTH, ("posted_ns", "i8"), ("wire_ns", "i8"), ("done_ns", "i8"), ("step", "u4")),
        ("reached", "?"),  # the network
    ],
    align=True,
)
_KEY = (*(name for name, _ in _OF_OPERATION), "kept", "origin")
_OF_KNOWN = {MOVED: (*_KEY, "part_bytes", "has_part_bytes"), STEPPED: _KEY}

# How much of an operation one rank sends, by algorithm and function; 0: in ways that the callbacks do not tell.
_RING_ALL_REDUCE, _RING_PARTS, _WHOLE = 1, 2, 3
_PATTERNS = np.zeros((len(wire.ALGOS), len(wire.FUNCS)), np.uint8)
_PATTERNS[wire.ALGO_RING, wire.ALL_REDUCE] = _RING_ALL_REDUCE
_PATTERNS[wire.ALGO_RING, [wire.ALL_GATHER, wire.REDUCE_SCATTER]] = _RING_PARTS
_PATTERNS[wire.ALGO_RING, [wire.BROADCAST, wire.REDUCE]] = _WHOLE
_PATTERNS[wire.TREE, wire.ALL_REDUCE] = _WHOLE
_PATTERNS[:, [wire.SEND, wire.RECV]] = _WHOLE
_SWELLING = np.ones(len(wire.PROTOS))
_SWELLING[wire.LL], _SWELLING[wire.LL128] = 2, 128 / 120


def time_transfers(closed: Array, clocks: HostClocks, counts: Sequence[int], origin: Array) -> Array:
    """Return closed transfers of several processes as MOVED, with the bytes that were counted."""
    moved = _begun(MOVED, closed, origin)
    moved["first_ns"] = clocks.to_unix_ns(closed["first_ticks"], counts)
    moved["end_ns"] = moved["first_ns"] + _lengths(closed["duration"], clocks, counts)
    moved["channel"], moved["steps"] = closed["channel_steps"] >> 24, closed["channel_steps"] & 0xFFFFFF
    moved["pid"], moved["has_steps"] = closed["pid"], (closed["flags"] & wire.FLAG_STEPS) != 0
    timed = np.flatnonzero(moved["has_steps"])  # few: steps are sampled
    theirs = np.diff(np.searchsorted(timed, np.cumsum(counts)), prepend=0).tolist()
    moved["waits"][timed] = _lengths(closed["waits"][timed], clocks, theirs)
    return moved


def time_steps(closed: Array, clocks: HostClocks, counts: Sequence[int], origin: Array) -> Array:
    """Return closed steps as STEPPED; what did not reach the network says so and has no times."""
    stepped, marks = _begun(STEPPED, closed, origin), closed["marks"]
    reached = np.where(stepped["sends"], marks[:, _SEND_WIRE], marks[:, _RECV_ARRIVED])
    stepped["reached"] = (reached != wire.BUSY) & (marks[:, _DONE] != wire.BUSY)
    posted = clocks.to_unix_ns(closed["posted_ticks"], counts)
    stepped["posted_ns"], stepped["wire_ns"] = posted, posted + _lengths(reached, clocks, counts)
    stepped["done_ns"] = posted + _lengths(marks[:, _DONE], clocks, counts)
    stepped["channel"], stepped["step"] = closed["channel"] & 0xFF, closed["step"]
    return stepped


def join_operations(parts: Array, known: Array, indices: Array) -> Array:
    """Return the same array, MOVED or STEPPED, with what its operations say, which stand at these places.

    Field by field: whole operations, once for each of their parts, would be megabytes.
    """
    for name in _OF_KNOWN[parts.dtype]:
        parts[name] = known[name][indices]
    if parts.dtype == MOVED:
        parts["of_bytes"] = known["bytes"][indices]
    return parts


def settle_bytes(moved: Array) -> Array:
    """Set how many bytes each transfer moved, and return for which of them that is known.

    Where steps were recorded their sizes were added up; NCCL before 2.24 told sizes of 0, which are no sizes.
    Elsewhere the algorithm says it: an equal part per channel of what one rank sends (`add_part_bytes`).
    """
    counted = moved["has_steps"] & ((moved["bytes"] > 0) | (moved["of_bytes"] == 0))
    moved["bytes"] = np.where(counted, moved["bytes"], moved["part_bytes"])
    settled: Array = counted | moved["has_part_bytes"]
    return settled


def add_part_bytes(known: Array) -> Array:
    """Return the same operations with what one transfer of each moves, where its algorithm tells that.

    A ring of n ranks sends 2 (n-1)/n of the buffer for AllReduce and n-1 parts of it for AllGather and ReduceScatter
    (whose size NCCL gives for one rank); a chain and a tree send the whole to each neighbour. Channels share equally.
    LL sends a flag of 4 bytes with every 4 bytes of data, LL128 one of 8 with every 120. CollNet, NVLS and PAT share
    the work in ways that the callbacks do not tell.
    """
    ranks, channels = known["nranks"].astype(np.float64), known["channels"].astype(np.float64)
    pattern = _PATTERNS[known["algo"], known["func"]]
    parts = np.maximum(ranks, 1)
    times = np.where(pattern == _RING_ALL_REDUCE, 2 * (parts - 1) / parts, 1.0)
    times = np.where(pattern == _RING_PARTS, parts - 1, times)
    share = known["bytes"] * times * _SWELLING[known["proto"]] / np.maximum(channels, 1)
    known["part_bytes"] = np.rint(np.minimum(share, _MOST_BYTES))
    known["has_part_bytes"] = ((pattern == _WHOLE) | ((pattern > 0) & (ranks > 1))) & (channels > 0)
    return known


def transfer_rows(moved: Array, origins: Origins) -> pa.Table:
    """Return rows of transfers whose bytes are settled.

    Waits are known where steps were recorded: a wire time is the sender's, a flush the receiver's.
    """
    sends, unknown = moved["sends"], ~moved["has_steps"]
    hidden = (unknown, unknown, unknown | ~sends, unknown | sends)
    waits = {
        name: pa.array(moved["waits"][:, number], pa.int64(), mask=hidden[number])
        for number, name in enumerate(("gpu_wait_ns", "peer_wait_ns", "wire_ns", "flush_ns"))  # as in a record
    }
    columns = origins.columns(moved["origin"]) | waits | _edge_columns(moved)
    columns |= {name: moved[name] for name in ("steps", "first_ns")}
    columns |= {"last_ns": moved["end_ns"], "detail": names_of(_DETAILS, moved["has_steps"].view(np.uint8))}
    return fill_rows(TABLE_BY_NAME["transfers"], len(moved), columns)


def step_rows(stepped: Array, origins: Origins) -> pa.Table:
    columns = origins.columns(stepped["origin"]) | _edge_columns(stepped)
    columns |= {name: stepped[name] for name in ("step", "posted_ns", "wire_ns", "done_ns")}
    return fill_rows(TABLE_BY_NAME["step_samples"], len(stepped), columns)


def _begun(kind: np.dtype[Any], closed: Array, origin: Array) -> Array:
    """Return parts with what both kinds have alike."""
    made = np.zeros(len(closed), kind)
    for name in ("operation", "peer", "bytes"):
        made[name] = closed[name]
    made["origin"], made["sends"] = origin, (closed["flags"] & wire.FLAG_SEND) != 0
    return made


def _lengths(packed: Array, clocks: HostClocks, counts: Sequence[int]) -> Array:
    return clocks.duration_ns(wire.unpack_duration(packed), counts)


def _edge_columns(parts: Array) -> dict[str, object]:
    direction = names_of(_DIRECTIONS, parts["sends"].view(np.uint8))
    return (
        key_columns(parts) | {name: parts[name] for name in ("peer", "channel", "bytes")} | {"direction": direction}
    )


@dataclass(frozen=True)
class ForeignParts:
    """Closed transfers (MOVED) and steps (STEPPED) of other processes' operations."""

    transfers: Array = field(default_factory=lambda: np.empty(0, MOVED))
    steps: Array = field(default_factory=lambda: np.empty(0, STEPPED))

    def __len__(self) -> int:
        return len(self.transfers) + len(self.steps)


def claim(parts: Array, identity: Identity, origin: int, index: OperationIndex) -> tuple[Array, Array]:
    """Return for each part where its operation stands, and whether it is one of this process.

    A handle carries the tag of its process, which is 16 bits, so the process id decides where a transfer has one;
    a step has none and goes by tag and handle.
    """
    indices, found = index.find(keys_of(parts["operation"], origin))
    found &= wire.tag_of(parts["operation"]) == identity.tag
    return indices, found & (parts["pid"] == identity.pid) if parts.dtype == MOVED else found
