"""Operations as their parts come in: what was enqueued, what is known of it by now, and its row when it is over.

Everything is kept in one numpy array, an element per operation, so that a second of a busy process costs a few
array operations and no loop over records.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep import wire
from lockstep.arrow import fill_rows
from lockstep.rings.clock import TickClock
from lockstep.rings.communicators import CommunicatorHistory
from lockstep.rings.kernels import JudgedKernels
from lockstep.rings.origin import Origin
from lockstep.rings.span import NEVER_NS, Span
from lockstep.tables import TABLE_BY_NAME

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

_UNSEEN_NS = -NEVER_NS

KNOWN = np.dtype(
    [
        ("handle", "u8"),
        ("comm", "u8"),
        ("seq", "u8"),
        ("bytes", "u8"),
        ("enqueue_ns", "i8"),
        ("first_ns", "i8"),  # of its transfers; _UNSEEN_NS until there is one
        ("last_ns", "i8"),  # NEVER_NS until there is one
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
        ("place", "u2"),  # of the communicator in its table
        ("epoch", "u2"),
        ("func", "u1"),
        ("dtype", "u1"),
        ("algo", "u1"),
        ("proto", "u1"),
        ("channels", "u1"),
        ("flags", "u1"),
    ]
)
_AS_ENQUEUED = ("seq", "bytes", "replay", "peer", "epoch", "func", "dtype", "algo", "proto", "channels", "flags")


def no_operations() -> Array:
    return np.empty(0, KNOWN)


def learn_operations(enqueued: Array, clock: TickClock, history: CommunicatorHistory) -> Array:
    """Return what was enqueued as known operations; those of a communicator that nobody knows are left out."""
    ours, found = history.members_at(enqueued["comm"], enqueued["ticks"])
    enqueued, ours = enqueued[found], ours[found]
    known = np.zeros(len(enqueued), KNOWN)
    known["handle"], known["place"] = enqueued["operation"], enqueued["comm"]
    known["comm"], known["rank"], known["nranks"] = ours["id"], ours["rank"], ours["nranks"]
    for name in _AS_ENQUEUED:
        known[name] = enqueued[name]
    known["enqueue_ns"] = clock.to_unix_ns(enqueued["ticks"])
    known["active_ns"] = known["enqueue_ns"]
    for name in ("first_ns", "gpu_start_ns"):
        known[name] = _UNSEEN_NS
    for name in ("last_ns", "gpu_stop_ns", "written_ns"):
        known[name] = NEVER_NS
    return known


def find_operations(known: Array, handles: Array) -> tuple[Array, Array]:
    """Return for each handle where its operation stands, and whether it is there at all."""
    if len(known) == 0:
        return np.zeros(len(handles), np.intp), np.zeros(len(handles), bool)
    order = np.argsort(known["handle"], kind="stable")
    places = order[np.minimum(np.searchsorted(known["handle"][order], handles), len(known) - 1)]
    return places, known["handle"][places] == handles


def add_transfers(known: Array, places: Array, span: Span) -> None:
    """Note that transfers of these operations have closed."""
    np.minimum.at(known["first_ns"], places, span.first_ns)
    np.maximum.at(known["last_ns"], places, span.last_ns)
    np.maximum.at(known["active_ns"], places, span.last_ns)
    np.add.at(known["transfers"], places, 1)


def add_kernels(known: Array, places: Array, kernels: JudgedKernels) -> None:
    """Note that kernel channels of these operations have closed; only good times count as times."""
    good = kernels.is_good
    np.maximum.at(known["active_ns"], places, kernels.heard_ns)
    np.add.at(known["kernels"], places, 1)
    np.add.at(known["bad_kernels"], places, ~good)
    np.minimum.at(known["gpu_start_ns"], places[good], kernels.span.first_ns[good])
    np.maximum.at(known["gpu_stop_ns"], places[good], kernels.span.last_ns[good])


def collective_rows(known: Array, is_over: Array, origin: Origin) -> pa.Table:
    """Return the row of each operation.

    A GPU's times count when all kernel channels that were heard of are good: one that is not could be the last to
    end. An operation that was still open when its process died has begun, and nobody knows when it would have ended.
    """
    by_gpu = (known["kernels"] > 0) & (known["bad_kernels"] == 0)
    by_proxy = ~by_gpu & (known["transfers"] > 0)
    start = np.where(by_gpu, known["gpu_start_ns"], known["first_ns"])
    end = np.where(by_gpu, known["gpu_stop_ns"], known["last_ns"])
    timed = by_gpu | by_proxy
    columns = {
        "start_ns": pa.array(start, pa.int64(), mask=~timed),
        "end_ns": pa.array(end, pa.int64(), mask=~(timed & is_over)),
        "clock": pa.array(np.select([by_gpu, by_proxy], ["gpu", "proxy"], "none")),
        "seq_valid": (known["flags"] & wire.FLAG_SEQ_VALID) != 0,
        "captured": (known["flags"] & wire.FLAG_CAPTURED) != 0,
        "dtype": names_of(wire.DTYPES, known["dtype"]),
        "algo": names_of(wire.ALGOS, known["algo"]),
        "proto": names_of(wire.PROTOS, known["proto"]),
    }
    columns |= {name: known[name] for name in ("bytes", "channels", "enqueue_ns", "peer")}
    return fill_rows(TABLE_BY_NAME["collectives"], len(known), columns | key_columns(known) | origin.columns())


def key_columns(known: Array) -> dict[str, object]:
    """Return what names the operation of each row, in every table that has rows of operations."""
    copied = {name: known[name] for name in ("comm", "seq", "replay", "epoch", "rank")}
    return copied | {"func": names_of(wire.FUNCS, known["func"])}


def names_of(names: tuple[str, ...], codes: Array) -> pa.Array:
    """Return the names of codes; a code of a newer release that we do not know has none."""
    return pa.array(names).take(pa.array(np.where(codes < len(names), codes, 0).astype(np.int32)))


def is_sampled(known: Array) -> Array:
    sampled: Array = (known["flags"] & wire.FLAG_SAMPLED) != 0
    return sampled
