"""One process, folded alone or among others: its communicators, its rows, and where another reader goes on."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lockstep import wire
from lockstep.clock import NS_PER_S
from lockstep.rings.communicators import comm_rows
from lockstep.rings.foreign import Claimant, ForeignParts
from lockstep.rings.host_folding import LATENESS_NS, PATIENCE_NS, HostFolder
from lockstep.rings.identity import Identity
from lockstep.rings.ledger import Ledger, no_rows
from lockstep.rings.members import FolderMemory, Losses, Member, Turn
from lockstep.rings.origin import Origin
from lockstep.rings.progress import progress_rows
from lockstep.rings.reading import Reading, take_reading
from lockstep.rings.sampling import WHOLE_SHARE

__all__ = ["LATENESS_NS", "PATIENCE_NS", "Folder", "FolderMemory", "HostFolder", "Losses", "Reading", "take_reading"]

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

_END_NS = 1 << 62  # later than any time
_STATISTICS = ("op_stats", "transfer_stats")


class Folder:
    """Folds what one process recorded. Call `fold` with every reading, and `finish` with the last one.

    Where several processes are folded together by a HostFolder, it is called with what `turn` gives instead.
    """

    def __init__(self, origin: Origin, ledger: Ledger | None = None, keeps_rest: bool = False) -> None:
        """`ledger` makes the rows of several processes together; whoever gives it asks it for them.

        With `keeps_rest` complete rows are those of the operations that are not in the share.
        """
        self._join(origin, HostFolder(ledger or Ledger(), keeps_rest), is_alone=ledger is None)

    @classmethod
    def among(cls, host: HostFolder, origin: Origin) -> "Folder":
        """Return the folder of one more process of a host."""
        folder = cls.__new__(cls)
        folder._join(origin, host, is_alone=False)
        return folder

    def _join(self, origin: Origin, host: HostFolder, is_alone: bool) -> None:
        self._origin, self.host, self._is_alone = origin, host, is_alone
        self._has_left = False
        self.member = Member(host.ledger.origins.enter(origin))

    @property
    def losses(self) -> Losses:
        """What was lost; transfers without a size are the ledger's to count, if it is not ours alone."""
        return Losses(**self.host.lost | {"sizeless": self.host.ledger.sizeless if self._is_alone else 0})

    @property
    def foreign(self) -> ForeignParts | None:
        """What the last reading brought for other processes."""
        return self.host.foreign

    def turn(self, reading: Reading, is_last: bool = False, died: bool = False) -> tuple[Turn, pa.Table]:
        """Return what the HostFolder needs, and the rows of communicators that are new or have changed."""
        changed = reading.communicators[self.member.history.update(reading.communicators)]
        comms = no_rows("comms")
        if len(changed):
            detail = "steps" if reading.level >= wire.STEPS else "ops"
            comms = comm_rows(changed, reading.identity, reading.clock, detail, self._origin)
        if is_last and not self._is_alone:
            self._tell_end()
        return Turn(self.member, reading, is_last, died), comms

    def fold(self, reading: Reading, now_ns: int, share: int = WHOLE_SHARE) -> dict[str, pa.Table]:
        """Return the rows that this reading completes; `now_ns` is the process's own time, UNIX.

        Of 65,536 operations that are new, `share` have complete rows; statistics are of all in any case.
        """
        turn, comms = self.turn(reading)
        self.host.fold([turn], now_ns, share)
        return self._complete(comms, now_ns - LATENESS_NS - NS_PER_S)

    def finish(self, reading: Reading, now_ns: int, died: bool, share: int = WHOLE_SHARE) -> dict[str, pa.Table]:
        """Return all rows that are left; what is still open gets one only if its process died."""
        turn, comms = self.turn(reading, is_last=True, died=died)
        self.host.fold([turn], now_ns, share)
        return self._complete(comms, _END_NS)

    def memory(self, now_ns: int, share: int) -> FolderMemory:
        """Return what `relearn` needs after the reading at this time."""
        nothing = FolderMemory(now_ns, share, *(np.empty(0, np.uint64),) * 2)
        return self.host.memories(now_ns, share).get(self.member.origin, nothing)

    def relearn(self, reading: Reading, memory: FolderMemory) -> None:
        """Know again what another reader knew of the same file; what it gave rows and counted is not given again."""
        turn, _ = self.turn(reading)
        self.host.relearn(turn, memory)

    def look(self, reading: Reading, now_ns: int) -> Array:
        """Return how far the process has come, as PROGRESS; after `fold` or `finish` with the same reading."""
        return self.host.look([Turn(self.member, reading)], now_ns)

    def progress(self, reading: Reading, now_ns: int) -> pa.Table:
        """Return the same as rows."""
        return progress_rows(self.look(reading, now_ns), self.host.ledger.origins)

    def take_foreign(self, parts: ForeignParts, identity: Identity) -> ForeignParts:
        """Take what another process did for this one, and return what it did for others still."""
        return self.host.take_foreign(parts, Claimant(identity.pid, identity.tag, self.member.origin))

    def leave(self) -> None:
        """Have the HostFolder forget this process; what it has finished still gets its rows."""
        self.host.forget(self.member.origin)
        self._tell_end()

    def _tell_end(self) -> None:
        """Say once that nothing more comes: the number of the origin may be another's soon."""
        if not self._has_left:
            self.host.ledger.seconds.leave(self.member.origin)
        self._has_left = True

    def _complete(self, comms: pa.Table, until_ns: int) -> dict[str, pa.Table]:
        """Add rows and statistics, if the ledger is ours alone."""
        if not self._is_alone:
            return {"comms": comms}
        ledger, empty = self.host.ledger, {name: no_rows(name) for name in _STATISTICS}
        return {"comms": comms} | ledger.rows() | empty | ledger.seconds.close(until_ns)
