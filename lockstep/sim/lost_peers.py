"""Which connections a simulated job has, and whose other end is lost when a process, a host or a wire dies."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.sim.operations import Operation, Transfers
from lockstep.sim.placement import Flags, Ints, Placement, place
from lockstep.sim.story import Story

Wanted = Callable[[Transfers], Flags]

_FATAL = ("down", "gone", "killed")


@dataclass(frozen=True, order=True)
class Connection:
    """One connection between two ranks; the sender's NIC is counted over the cluster."""

    src: int
    dst: int
    tx_nic: int
    sport: int


class Connections:
    """Remembers the connections that operations have used, by attempt; where none ever dies it keeps none."""

    def __init__(self, story: Story) -> None:
        self._restarts_s = sorted(turn.at_s for turn in story.timeline if turn.effect == "restart")
        self._is_fatal = any(turn.effect in _FATAL for turn in story.timeline)
        self._placements = {0: place(story)}
        self._used: dict[int, dict[int, Transfers]] = {}

    def note(self, operation: Operation) -> None:
        """Learn from an operation where its ranks are, and who is connected to whom."""
        self._placements[operation.attempt] = operation.comms.placement
        used = operation.transfers
        if used is None or not self._is_fatal:
            return
        mine = self._used.setdefault(operation.attempt, {})
        mine.setdefault(zlib.crc32(used.dst.tobytes(), zlib.crc32(used.src.tobytes())), used)

    def attempt_at(self, now_s: float) -> int:
        """Return the attempt that runs at a moment, or ends with it."""
        return sum(moment < now_s for moment in self._restarts_s)

    def placement_at(self, now_s: float) -> Placement:
        """Return where the ranks are at a moment."""
        attempt = self.attempt_at(now_s)
        return self._placements[max(known for known in self._placements if known <= attempt)]

    def of_ranks(self, now_s: float, ranks: Sequence[int]) -> list[Connection]:
        """Return the connections that begin or end at some ranks."""
        return self._find(now_s, lambda used: np.isin(used.src, ranks) | np.isin(used.dst, ranks))

    def into_ranks(self, now_s: float, ranks: Sequence[int]) -> list[Connection]:
        """Return the connections that end at some ranks."""
        return self._find(now_s, lambda used: np.isin(used.dst, ranks))

    def over_links(self, now_s: float, links: Ints) -> list[Connection]:
        """Return the connections that use one of these directed links."""
        return self._find(now_s, lambda used: np.asarray(np.isin(used.paths, links).any(axis=1)))

    def _find(self, now_s: float, is_wanted: Wanted) -> list[Connection]:
        found: set[Connection] = set()
        for used in self._used.get(self.attempt_at(now_s), {}).values():
            rows = np.flatnonzero(is_wanted(used))
            columns = (column[rows].tolist() for column in (used.src, used.dst, used.tx_nic, used.sport))
            found |= {Connection(*row) for row in zip(*columns, strict=True)}
        return sorted(found)
