"""Parts that wait for their operation: records of several threads may be read in any order."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep import wire
from lockstep.rings.grouping import pick, stack
from lockstep.rings.operations import OperationIndex, keys_of
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
        """`kind` has the fields `operation` and `origin`."""
        self._waiting, self._since_ns = np.empty(0, kind), np.empty(0, np.int64)
        self._is_excused = np.empty(0, bool)
        self._patience_ns = patience_ns

    def match(self, new: Array, tags: Array, known: Array, index: OperationIndex, now_ns: int) -> Matched:
        """Return what has found its operation among the known ones; the rest of our own parts waits on.

        `tags` has for each of the new ones the tag of the process that told of it: an operation with another one is
        another process's.
        """
        if len(new) == len(self._waiting) == 0:
            nowhere = np.empty(0, np.intp)
            return Matched(new, nowhere, new, 0, 0)
        is_foreign = (wire.tag_of(new["operation"]) != tags) & (new["operation"] != 0)
        ours = pick(new, ~is_foreign) if is_foreign.any() else new
        parts = stack(new.dtype, [self._waiting, ours]) if len(self._waiting) else ours
        places, found = index.find(keys_of(parts["operation"], parts["origin"]))
        found &= parts["operation"] != 0
        orphans = self._keep_waiting(parts, found, now_ns)
        if not found.all():
            parts, places = pick(parts, found), places[found]
        late = np.count_nonzero(known["written_ns"][places] != NEVER_NS)
        return Matched(parts, places, pick(new, is_foreign), orphans, int(late))

    def _keep_waiting(self, parts: Array, found: Array, now_ns: int) -> int:
        """Keep what may still find its operation; return how many are given up."""
        if found.all():
            self._let_go(np.zeros(len(self._waiting), bool))
            return 0
        fresh = len(parts) - len(self._waiting)
        since_ns = np.append(self._since_ns, np.full(fresh, now_ns))
        is_excused = np.append(self._is_excused, np.zeros(fresh, bool))
        waits = ~found & (parts["operation"] != 0) & (since_ns + self._patience_ns > now_ns)
        self._waiting, self._since_ns, self._is_excused = pick(parts, waits), since_ns[waits], is_excused[waits]
        return int(np.count_nonzero(~found & ~waits & ~is_excused))

    def excuse(self, origin: int) -> None:
        """Count none of those that wait as lost: they may be old, and their operations read before and gone."""
        self._is_excused[self._waiting["origin"] == origin] = True

    def give_up(self, origin: int) -> int:
        """Return how many of a process wait in vain, and let them go."""
        is_theirs = self._waiting["origin"] == origin
        count = int(np.count_nonzero(is_theirs & ~self._is_excused))
        self._let_go(~is_theirs)
        return count

    def _let_go(self, stays: Array) -> None:
        self._waiting = pick(self._waiting, stays)
        self._since_ns, self._is_excused = self._since_ns[stays], self._is_excused[stays]
