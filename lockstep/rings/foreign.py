"""Transfers that one process makes for another (PXN): joined with the operation by whoever reads the whole host.

NCCL lets a rank send through the NIC of a neighbour on the same host; the neighbour's proxy then reports transfers of
operations that only the first rank knows. Both name the operation by process id and handle.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep import wire
from lockstep.rings.clock import TickClock
from lockstep.rings.operations import OperationIndex

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field


@dataclass(frozen=True)
class ForeignParts:
    """Closed transfers and steps of other processes' operations, with the clock of the process that made them."""

    clock: TickClock
    transfers: Array = field(default_factory=lambda: np.empty(0, wire.TRANSFER_CLOSED))
    steps: Array = field(default_factory=lambda: np.empty(0, wire.STEP_CLOSED))

    def __len__(self) -> int:
        return len(self.transfers) + len(self.steps)


@dataclass(frozen=True)
class Claimed:
    """Parts that belong to one process, with the places of their operations there."""

    transfers: Array
    transfer_places: Array
    steps: Array
    step_places: Array


def claim(parts: ForeignParts, pid: int, tag: int, index: OperationIndex) -> tuple[Claimed, ForeignParts]:
    """Return what belongs to this process (its id in its own namespace), and what is left.

    A handle carries the tag of its process, which is 16 bits, so the process id decides where a transfer has one;
    a step has none and goes by tag and handle.
    """
    moved, moved_here = _find(parts.transfers, tag, index)
    moved_here &= parts.transfers["pid"] == pid
    stepped, stepped_here = _find(parts.steps, tag, index)
    claimed = Claimed(
        parts.transfers[moved_here], moved[moved_here], parts.steps[stepped_here], stepped[stepped_here]
    )
    return claimed, replace(parts, transfers=parts.transfers[~moved_here], steps=parts.steps[~stepped_here])


def _find(parts: Array, tag: int, index: OperationIndex) -> tuple[Array, Array]:
    places, found = index.find(parts["operation"])
    return places, found & (wire.tag_of(parts["operation"]) == tag)
