"""Operations as their parts come in: what was enqueued, what is known of it by now, and its row when it is over.

Everything is kept in one numpy array, an element per operation, so that a second of a busy process costs a few
array operations and no loop over records.
"""

from functools import cache

import numpy as np
import pyarrow as pa

from collector.nccl.arrays import Array
from collector.nccl.clock import NEVER_NS, Interval, JudgedKernels
from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.tables import TABLE_BY_NAME

_UNSEEN_NS = -NEVER_NS
_WITHOUT_TAG = np.uint64((1 << wire.TAG_SHIFT) - 1)
_CLOCKS = ("none", "gpu", "proxy")
# A proxy thread looks at a buffer some time after the GPU has read it; less than this says nothing about its end.
_SEEN_LATE_NS = 100_000

KNOWN = np.dtype(
    [
        ("handle", "u8"),
        ("comm", "u8"),
        ("seq", "u8"),
        ("bytes", "u8"),
        ("enqueue_ns", "i8"),
        ("first_ns", "i8"),  # of its transfers; _UNSEEN_NS until there is one
        ("last_ns", "i8"),  # NEVER_NS until there is one
        ("received_ns", "i8"),  # when the last one that came in had been read; NEVER_NS until there is one
        ("gpu_start_ns", "i8"),  # UNIX time
        ("gpu_stop_ns", "i8"),
        ("active_ns", "i8"),  # when the newest thing happened that we know of
        ("written_ns", "i8"),  # NEVER_NS until its row was written
        ("transfers", "u4"),  # parts that have closed
        ("kernels", "u4"),
        ("bad_kernels", "u4"),  # of these, those whose times cannot be true
        ("rank", "u4"),
        ("nranks", "u4"),  # 0: unknown
        ("replay", "u4"),
        ("peer", "i4"),
        ("index", "u2"),  # of the communicator in its table
        ("origin", "u2"),  # number of its process's origin
        ("epoch", "u2"),
        ("func", "u1"),
        ("dtype", "u1"),
        ("algo", "u1"),
        ("proto", "u1"),
        ("channels", "u1"),
        ("flags", "u1"),
        ("kept", "?"),  # whether it has complete rows
        ("has_part_bytes", "?"),
        ("part_bytes", "u8"),  # what one of its transfers moves by its algorithm, where that is known
    ],
    align=True,
)
_AS_ENQUEUED = ("seq", "bytes", "replay", "peer", "epoch", "func", "dtype", "algo", "proto", "channels", "flags")


def no_operations() -> Array:
    return np.empty(0, KNOWN)


def learn_operations(enqueued: Array, members: Array, enqueue_ns: Array, origin: Array | int) -> Array:
    """Return what was enqueued as known operations; `members` has the communicator of each."""
    known = np.zeros(len(enqueued), KNOWN)
    known["handle"], known["index"], known["origin"] = enqueued["operation"], enqueued["comm"], origin
    known["comm"], known["rank"], known["nranks"] = members["id"], members["rank"], members["nranks"]
    for name in _AS_ENQUEUED:
        known[name] = enqueued[name]
    known["enqueue_ns"] = known["active_ns"] = enqueue_ns
    for name in ("first_ns", "gpu_start_ns"):
        known[name] = _UNSEEN_NS
    for name in ("last_ns", "received_ns", "gpu_stop_ns", "written_ns"):
        known[name] = NEVER_NS
    return known


def keys_of(handles: Array, origins: Array | int) -> Array:
    """Return handles with the number of the process's origin in place of its tag, which may be forged."""
    keys: Array = handles & _WITHOUT_TAG | np.asarray(origins).astype(np.uint64) << np.uint64(wire.TAG_SHIFT)
    return keys


class OperationIndex:
    """Finds operations by their key (`keys_of`); good for as long as the array is the same."""

    def __init__(self, known: Array) -> None:
        keys = keys_of(known["handle"], known["origin"])
        self._order = np.argsort(keys)  # each is there once, unless it was forged
        self._keys = keys[self._order]

    def find(self, keys: Array) -> tuple[Array, Array]:
        """Return for each key where its operation stands, and whether it is there at all."""
        if len(self._keys) == 0 or len(keys) == 0:
            return np.zeros(len(keys), np.intp), np.zeros(len(keys), bool)
        indices = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return self._order[indices], self._keys[indices] == keys

    def among(self, keys: Array) -> Array:
        """Return which of the operations have one of these keys."""
        indices, found = self.find(keys)
        named = np.zeros(len(self._keys), bool)
        named[indices[found]] = True
        return named


def add_transfers(known: Array, indices: Array, interval: Interval, sends: Array) -> None:
    """Note that transfers of these operations have closed."""
    firsts, lasts = np.ascontiguousarray(interval.first_ns), np.ascontiguousarray(interval.last_ns)
    # In columns of their own: numpy takes ten times as long where the numbers do not stand beside each other.
    first_ns, last_ns, received_ns = (known[name].copy() for name in ("first_ns", "last_ns", "received_ns"))
    np.minimum.at(first_ns, indices, firsts)
    np.maximum.at(last_ns, indices, lasts)
    np.maximum.at(received_ns, indices[~sends], lasts[~sends])
    known["first_ns"], known["last_ns"], known["received_ns"] = first_ns, last_ns, received_ns
    np.maximum(known["active_ns"], last_ns, out=known["active_ns"])
    known["transfers"] += np.bincount(indices, minlength=len(known)).astype(np.uint32)


def add_kernels(known: Array, indices: Array, kernels: JudgedKernels) -> None:
    """Note that kernel channels of these operations have closed; only good times count as times."""
    good = kernels.is_good
    np.maximum.at(known["active_ns"], indices, kernels.seen_ns)
    np.add.at(known["kernels"], indices, 1)
    np.add.at(known["bad_kernels"], indices, ~good)
    np.minimum.at(known["gpu_start_ns"], indices[good], kernels.interval.first_ns[good])
    np.maximum.at(known["gpu_stop_ns"], indices[good], kernels.interval.last_ns[good])


def collective_rows(known: Array, is_over: Array, whose: dict[str, object]) -> pa.Table:
    """Return the row of each operation; `whose` has the columns of its origin.

    A GPU's times count when all kernel channels that were heard of are good: one that is not could be the last to
    end. An operation that was still open when its process died has begun, and nobody knows when it would have ended.
    """
    by_gpu, by_proxy = _clocks_of(known)
    interval, timed = times_of(known), by_gpu | by_proxy
    columns = {
        "start_ns": pa.array(interval.first_ns, pa.int64(), mask=~timed),
        "end_ns": pa.array(interval.last_ns, pa.int64(), mask=~(timed & is_over)),
        "clock": names_of(_CLOCKS, by_gpu + 2 * by_proxy),
        "seq_valid": (known["flags"] & wire.FLAG_SEQ_VALID) != 0,
        "captured": (known["flags"] & wire.FLAG_CAPTURED) != 0,
        "untimed": ~timed & ((known["flags"] & wire.FLAG_UNTIMED) != 0),
        "dtype": names_of(wire.DTYPES, known["dtype"]),
        "algo": names_of(wire.ALGOS, known["algo"]),
        "proto": names_of(wire.PROTOS, known["proto"]),
    }
    columns |= {name: known[name] for name in ("bytes", "channels", "enqueue_ns", "peer")}
    return fill_rows(TABLE_BY_NAME["collectives"], len(known), columns | key_columns(known) | whose)


def times_of(known: Array) -> Interval:
    """Return when operations began and ended; means nothing where nobody saw it (`is_timed`).

    NCCL stamps a kernel's end when its first warp is done, which in trees and in grouped sends and receives is long
    before the rest has read what comes in.
    """
    by_gpu, _ = _clocks_of(known)
    start = np.where(by_gpu, known["gpu_start_ns"], known["first_ns"])
    is_reading = known["received_ns"] > known["gpu_stop_ns"] + _SEEN_LATE_NS
    gpu_stop_ns = np.where(is_reading, known["received_ns"], known["gpu_stop_ns"])
    return Interval(start, np.where(by_gpu, gpu_stop_ns, known["last_ns"]))


def is_timed(known: Array) -> Array:
    by_gpu, by_proxy = _clocks_of(known)
    return by_gpu | by_proxy


def _clocks_of(known: Array) -> tuple[Array, Array]:
    """Return whose times are the GPU's, and whose are the proxy's."""
    by_gpu = (known["kernels"] > 0) & (known["bad_kernels"] == 0)
    return by_gpu, ~by_gpu & (known["transfers"] > 0)


def key_columns(known: Array) -> dict[str, object]:
    """Return what names the operation of each row, in every table that has rows of operations."""
    copied = {name: known[name] for name in ("comm", "seq", "replay", "epoch", "rank")}
    return copied | {"func": names_of(wire.FUNCS, known["func"])}


def names_of(names: tuple[str, ...], codes: Array) -> pa.Array:
    """Return the names of codes; a code of a newer release that we do not know has none."""
    return _names(names).take(pa.array(np.where(codes < len(names), codes, 0).astype(np.int32)))


@cache
def _names(names: tuple[str, ...]) -> pa.Array:
    return pa.array(names)
