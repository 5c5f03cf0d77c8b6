"""What processes did for one another (PXN), held back until its owner is found: rings are not read at one moment."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from lockstep.clock import NS_PER_S
from lockstep.rings.folding import Folder
from lockstep.rings.foreign import ForeignParts
from lockstep.rings.identity import Identity

PATIENCE_NS = 5 * NS_PER_S  # an operation is announced before its transfers begin, and read a second later at most
_MOST_WAITING = 1 << 17  # parts: 19 MB


class Maker(Protocol):
    """Whose last reading brought parts of other processes' operations: a folder, or that of a whole host."""

    @property
    def foreign(self) -> ForeignParts | None: ...


class ForeignJoiner:
    """Gives parts to the folders of the processes whose operations they belong to."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, ForeignParts]] = []
        self.lost = 0  # parts whose owner was never found, since the beginning

    def join(self, makers: Iterable[Maker], owners: Sequence[tuple[Folder, Identity]], now_ns: int) -> None:
        """Hand over what the last readings of `makers` brought for others, and what waited."""
        new = [(now_ns, maker.foreign) for maker in makers if maker.foreign]
        waiting, self._waiting = [*self._waiting, *new], []
        for since_ns, parts in waiting:
            for folder, identity in owners:
                if len(parts) == 0:
                    break
                parts = folder.take_foreign(parts, identity)
            self._hold(since_ns, parts, now_ns)

    def _hold(self, since_ns: int, parts: ForeignParts, now_ns: int) -> None:
        has_room = sum(len(each) for _, each in self._waiting) + len(parts) <= _MOST_WAITING
        if has_room and 0 <= now_ns - since_ns < PATIENCE_NS:
            if len(parts):
                self._waiting.append((since_ns, parts))
        else:
            self.lost += len(parts)
