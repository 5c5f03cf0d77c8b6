"""Transfers that one process makes for another (PXN): joined with the operation by whoever reads the whole host.

NCCL lets a rank send through the NIC of a neighbour on the same host; the neighbour's proxy then reports transfers of
operations that only the first rank knows. Both name the operation by process id and handle.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep import wire
from lockstep.rings.clock import TickClock
from lockstep.rings.operations import find_operations
from lockstep.rings.origin import Origin
from lockstep.rings.transfers import step_rows, transfer_rows

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field
RowMaker = Callable[[Array, Array, TickClock, Origin], tuple[pa.Table, Array]]


@dataclass(frozen=True)
class ForeignParts:
    """Closed transfers and steps of other processes' operations, with the clock of the process that made them."""

    clock: TickClock
    transfers: Array = field(default_factory=lambda: np.empty(0, wire.TRANSFER_CLOSED))
    steps: Array = field(default_factory=lambda: np.empty(0, wire.STEP_CLOSED))


@dataclass(frozen=True)
class Owner:
    """A process that may own operations which others work for."""

    pid: int
    tag: int
    origin: Origin
    operations: Array


def join_foreign(parts: ForeignParts, owners: Iterable[Owner]) -> tuple[dict[str, pa.Table], ForeignParts]:
    """Return rows of the parts whose owner is among these, and the parts that are left.

    A handle carries the tag of its process, which is 16 bits, so the process id decides where a transfer has one;
    a step has none and goes by tag and handle. Rows take the owner's rank: it is the owner's data that moved.
    """
    transfers, steps = parts.transfers, parts.steps
    made: list[tuple[pa.Table, pa.Table]] = []
    for owner in owners:
        moved, transfers = _claim(transfers, owner, parts.clock, transfer_rows)
        sampled, steps = _claim(steps, owner, parts.clock, step_rows)
        made.append((moved, sampled))
    names = ("transfers", "step_samples")
    tables = {name: pa.concat_tables(rows) for name, rows in zip(names, zip(*made, strict=True), strict=False)}
    return tables, ForeignParts(parts.clock, transfers, steps)


def _claim(parts: Array, owner: Owner, clock: TickClock, make_rows: RowMaker) -> tuple[pa.Table, Array]:
    """Return rows of the parts that belong to this process, and the other parts."""
    places, theirs = find_operations(owner.operations, parts["operation"])
    theirs &= wire.tag_of(parts["operation"]) == owner.tag
    if "pid" in (parts.dtype.names or ()):
        theirs &= parts["pid"] == owner.pid
    rows, _ = make_rows(parts[theirs], owner.operations[places[theirs]], clock, owner.origin)
    return rows, parts[~theirs]
