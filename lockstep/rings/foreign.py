"""Transfers that one process makes for another (PXN): joined with the operation by whoever reads the whole host.

NCCL lets a rank send through the NIC of a neighbour on the same host; the neighbour's proxy then reports transfers of
operations that only the first rank knows. Both name the operation by process id and handle.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep import wire
from lockstep.rings.operations import OperationIndex, keys_of
from lockstep.rings.transfers import MOVED, STEPPED

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field


@dataclass(frozen=True)
class ForeignParts:
    """Closed transfers (MOVED) and steps (STEPPED) of other processes' operations."""

    transfers: Array = field(default_factory=lambda: np.empty(0, MOVED))
    steps: Array = field(default_factory=lambda: np.empty(0, STEPPED))

    def __len__(self) -> int:
        return len(self.transfers) + len(self.steps)


@dataclass(frozen=True)
class Claimed:
    """Parts that belong to one process, with the places of their operations there."""

    transfers: Array
    transfer_places: Array
    steps: Array
    step_places: Array


@dataclass(frozen=True)
class Claimant:
    """A process that may own parts: its id in its own namespace, its tag, and our number for it."""

    pid: int
    tag: int
    origin: int


def claim(parts: ForeignParts, who: Claimant, index: OperationIndex) -> tuple[Claimed, ForeignParts]:
    """Return what belongs to this process, and what is left.

    A handle carries the tag of its process, which is 16 bits, so the process id decides where a transfer has one;
    a step has none and goes by tag and handle.
    """
    moved, moved_here = _find(parts.transfers, who, index)
    moved_here &= parts.transfers["pid"] == who.pid
    stepped, stepped_here = _find(parts.steps, who, index)
    claimed = Claimed(
        parts.transfers[moved_here], moved[moved_here], parts.steps[stepped_here], stepped[stepped_here]
    )
    return claimed, ForeignParts(parts.transfers[~moved_here], parts.steps[~stepped_here])


def _find(parts: Array, who: Claimant, index: OperationIndex) -> tuple[Array, Array]:
    places, found = index.find(keys_of(parts["operation"], who.origin))
    return places, found & (wire.tag_of(parts["operation"]) == who.tag)
