"""Parts that wait for their operation: records of several threads may be read in any order."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep import wire
from lockstep.rings.grouping import pick, stack
from lockstep.rings.operations import OperationIndex
from lockstep.rings.span import NEVER_NS

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field


class Matched(NamedTuple):
    """Parts with the place of their operation, and what became of the others."""

    parts: Array
    places: Array
    foreign: Array  # parts of another process's operations
    orphans: int  # parts that waited in vain
    late: int  # of the matched ones, those whose operation already has its row


class PartQueue:
    """Keeps parts of one kind until their operation is known, or until nobody believes in it any more."""

    def __init__(self, kind: np.dtype[np.void], patience_ns: int) -> None:
        self._waiting, self._since_ns = np.empty(0, kind), np.empty(0, np.int64)
        self._is_excused = np.empty(0, bool)
        self._patience_ns = patience_ns

    def match(self, new: Array, known: Array, index: OperationIndex, tag: int, now_ns: int) -> Matched:
        """Return what has found its operation among the known ones; the rest of our own parts waits on."""
        if len(new) == len(self._waiting) == 0:
            nowhere = np.empty(0, np.intp)
            return Matched(new, nowhere, new, 0, 0)
        is_foreign = (wire.tag_of(new["operation"]) != tag) & (new["operation"] != 0)
        ours = pick(new, ~is_foreign) if is_foreign.any() else new
        parts = stack(new.dtype, [self._waiting, ours]) if len(self._waiting) else ours
        fresh = len(parts) - len(self._waiting)
        since_ns = np.append(self._since_ns, np.full(fresh, now_ns))
        is_excused = np.append(self._is_excused, np.zeros(fresh, bool))
        places, found = index.find(parts["operation"])
        waits = ~found & (parts["operation"] != 0) & (since_ns + self._patience_ns > now_ns)
        self._waiting, self._since_ns, self._is_excused = pick(parts, waits), since_ns[waits], is_excused[waits]
        late = np.count_nonzero(known["written_ns"][places[found]] != NEVER_NS)
        orphans = np.count_nonzero(~found & ~waits & ~is_excused)
        if not found.all():
            parts, places = pick(parts, found), places[found]
        return Matched(parts, places, pick(new, is_foreign), int(orphans), int(late))

    def excuse(self) -> None:
        """Count none of those that wait as lost: they may be old, and their operations read before and gone."""
        self._is_excused[:] = True

    def give_up(self) -> int:
        """Return how many wait in vain, and let them go."""
        count = int(np.count_nonzero(~self._is_excused))
        self._waiting, self._since_ns, self._is_excused = self._waiting[:0], self._since_ns[:0], self._is_excused[:0]
        return count
