"""Parts that wait for their operation: records of several threads may be read in any order."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep import wire
from lockstep.rings.operations import find_operations
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
        self._patience_ns = patience_ns

    def match(self, new: Array, known: Array, tag: int, now_ns: int) -> Matched:
        """Return what has found its operation among the known ones; the rest of our own parts waits on."""
        is_foreign = (wire.tag_of(new["operation"]) != tag) & (new["operation"] != 0)
        parts = np.concatenate([self._waiting, new[~is_foreign]])
        since_ns = np.append(self._since_ns, np.full(len(parts) - len(self._waiting), now_ns))
        places, found = find_operations(known, parts["operation"])
        waits = ~found & (parts["operation"] != 0) & (since_ns + self._patience_ns > now_ns)
        self._waiting, self._since_ns = parts[waits], since_ns[waits]
        late = np.count_nonzero(known["written_ns"][places[found]] != NEVER_NS)
        orphans = np.count_nonzero(~found & ~waits)
        return Matched(parts[found], places[found], new[is_foreign], int(orphans), int(late))

    def give_up(self) -> int:
        """Return how many still wait, and let them go."""
        count = len(self._waiting)
        self._waiting, self._since_ns = self._waiting[:0], self._since_ns[:0]
        return count
