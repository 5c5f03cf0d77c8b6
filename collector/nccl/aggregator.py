"""One process, folded alone or among others: its communicators, its rows, and where another reader goes on."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from collector.nccl.arrays import Array
from collector.nccl.budget import WHOLE_SHARE
from collector.nccl.communicators import Origin, comm_rows
from collector.nccl.header import Identity
from collector.nccl.host_aggregator import DELAY_NS, HostAggregator
from collector.nccl.ledger import Ledger, no_rows
from collector.nccl.progress import progress_rows
from collector.nccl.snapshot import AggregatorState, Losses, Member, Reading, Snapshot
from collector.nccl.transfers import Claimant, ForeignParts
from lockstep import wire
from lockstep.clock import NS_PER_S

_END_NS = 1 << 62  # later than any time
_STATISTICS = ("op_stats", "transfer_stats")


class Aggregator:
    """Folds what one process recorded. Call `fold` with every reading, and `finish` with the last one.

    Where several processes are folded together by a HostFolder, it is called with what `snapshot` gives instead.
    """

    def __init__(self, origin: Origin, ledger: Ledger | None = None, keeps_rest: bool = False) -> None:
        """`ledger` makes the rows of several processes together; whoever gives it asks it for them.

        With `keeps_rest` complete rows are those of the operations that are not in the share.
        """
        self._join(origin, HostAggregator(ledger or Ledger(), keeps_rest), is_alone=ledger is None)

    @classmethod
    def among(cls, host: HostAggregator, origin: Origin) -> "Aggregator":
        """Return the folder of one more process of a host."""
        aggregator = cls.__new__(cls)
        aggregator._join(origin, host, is_alone=False)
        return aggregator

    def _join(self, origin: Origin, host: HostAggregator, is_alone: bool) -> None:
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

    def snapshot(self, reading: Reading, is_last: bool = False, died: bool = False) -> tuple[Snapshot, pa.Table]:
        """Return what the HostFolder needs, and the rows of communicators that are new or have changed."""
        changed = reading.communicators[self.member.history.update(reading.communicators)]
        comms = no_rows("comms")
        if len(changed):
            detail = "steps" if reading.level >= wire.STEPS else "ops"
            comms = comm_rows(changed, reading.identity, reading.clock, detail, self._origin)
        if is_last and not self._is_alone:
            self._report_end()
        return Snapshot(self.member, reading, is_last, died), comms

    def fold(self, reading: Reading, now_ns: int, share: int = WHOLE_SHARE) -> dict[str, pa.Table]:
        """Return the rows that this reading completes; `now_ns` is the process's own time, UNIX.

        Of 65,536 operations that are new, `share` have complete rows; statistics are of all in any case.
        """
        snapshot, comms = self.snapshot(reading)
        self.host.fold([snapshot], now_ns, share)
        return self._complete(comms, now_ns - DELAY_NS - NS_PER_S)

    def finish(self, reading: Reading, now_ns: int, died: bool, share: int = WHOLE_SHARE) -> dict[str, pa.Table]:
        """Return all rows that are left; what is still open gets one only if its process died."""
        snapshot, comms = self.snapshot(reading, is_last=True, died=died)
        self.host.fold([snapshot], now_ns, share)
        return self._complete(comms, _END_NS)

    def memory(self, now_ns: int, share: int) -> AggregatorState:
        """Return what `relearn` needs after the reading at this time."""
        nothing = AggregatorState(now_ns, share, *(np.empty(0, np.uint64),) * 2)
        return self.host.memories(now_ns, share).get(self.member.origin, nothing)

    def relearn(self, reading: Reading, memory: AggregatorState) -> None:
        """Know again what another reader knew of the same file; what it gave rows and counted is not given again."""
        snapshot, _ = self.snapshot(reading)
        self.host.relearn(snapshot, memory)

    def measure_progress(self, reading: Reading, now_ns: int) -> Array:
        """Return how far the process has come, as PROGRESS; after `fold` or `finish` with the same reading."""
        return self.host.measure_progress([Snapshot(self.member, reading)], now_ns)

    def progress(self, reading: Reading, now_ns: int) -> pa.Table:
        """Return the same as rows."""
        return progress_rows(self.measure_progress(reading, now_ns), self.host.ledger.origins)

    def take_foreign(self, parts: ForeignParts, identity: Identity) -> ForeignParts:
        """Take what another process did for this one, and return what it did for others still."""
        return self.host.take_foreign(parts, Claimant(identity.pid, identity.tag, self.member.origin))

    def leave(self) -> None:
        """Have the HostFolder forget this process; what it has finished still gets its rows."""
        self.host.forget(self.member.origin)
        self._report_end()

    def _report_end(self) -> None:
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


FOREIGN_PATIENCE_NS = 5 * NS_PER_S  # an operation is announced before its transfers, and read a second later at most
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

    def join(self, makers: Iterable[Maker], owners: Sequence[tuple[Aggregator, Identity]], now_ns: int) -> None:
        """Hand over what the last readings of `makers` brought for others, and what waited."""
        new = [(now_ns, maker.foreign) for maker in makers if maker.foreign]
        waiting, self._waiting = [*self._waiting, *new], []
        for since_ns, parts in waiting:
            for aggregator, identity in owners:
                if len(parts) == 0:
                    break
                parts = aggregator.take_foreign(parts, identity)
            self._hold(since_ns, parts, now_ns)

    def _hold(self, since_ns: int, parts: ForeignParts, now_ns: int) -> None:
        has_room = sum(len(each) for _, each in self._waiting) + len(parts) <= _MOST_WAITING
        if has_room and 0 <= now_ns - since_ns < FOREIGN_PATIENCE_NS:
            if len(parts):
                self._waiting.append((since_ns, parts))
        else:
            self.lost += len(parts)
