"""One process, folded alone or among others: its communicators, its rows, and what others did for it."""

from collections.abc import Sequence

import pyarrow as pa

from collector.nccl.budget import WHOLE_SHARE
from collector.nccl.communicators import Origin, comm_rows
from collector.nccl.header import Identity
from collector.nccl.host_aggregator import DELAY_NS, HostAggregator
from collector.nccl.ledger import Ledger, no_rows
from collector.nccl.progress import progress_rows
from collector.nccl.snapshot import Losses, Member, Reading, Snapshot
from collector.nccl.transfers import ForeignParts
from lockstep import wire
from lockstep.clock import NS_PER_S

_END_NS = 1 << 62  # later than any time


class Aggregator:
    """Folds what one process recorded. Call `fold` with every reading, and `finish` with the last one.

    Where several processes are folded together by a HostAggregator, it is called with what `snapshot` gives instead.
    """

    def __init__(self, origin: Origin, host: HostAggregator | None = None) -> None:
        """`host` folds several processes together; whoever gives it asks its ledger for the rows."""
        self._origin, self._is_alone = origin, host is None
        self.host = host or HostAggregator(Ledger())
        self._has_left = False
        self.member = Member(self.host.ledger.origins.enter(origin))

    @property
    def losses(self) -> Losses:
        """What was lost; transfers without a size are the ledger's to count, if it is not ours alone."""
        return Losses(**self.host.lost | {"sizeless": self.host.ledger.sizeless if self._is_alone else 0})

    def snapshot(self, reading: Reading, is_last: bool = False, died: bool = False) -> tuple[Snapshot, pa.Table]:
        """Return what the HostAggregator needs, and the rows of communicators that are new or have changed."""
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

    def progress(self, reading: Reading, now_ns: int) -> pa.Table:
        """Return how far the process has come; after `fold` or `finish` with the same reading."""
        progress = self.host.measure_progress([Snapshot(self.member, reading)], now_ns)
        return progress_rows(progress, self.host.ledger.origins)

    def leave(self) -> None:
        """Have the HostAggregator forget this process; what it has finished still gets its rows."""
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
        empty = {name: no_rows(name) for name in ("op_stats", "transfer_stats")}
        return {"comms": comms} | self.host.ledger.rows() | empty | self.host.ledger.seconds.close(until_ns)


FOREIGN_PATIENCE_NS = 5 * NS_PER_S  # an operation is announced before its transfers, and read a second later at most
_MOST_WAITING = 1 << 17  # parts: 19 MB


class ForeignJoiner:
    """Gives parts to the folders of the processes whose operations they belong to."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, ForeignParts]] = []
        self.lost = 0  # parts whose owner was never found, since the beginning

    def join(self, new: ForeignParts | None, owners: Sequence[tuple[Aggregator, Identity]], now_ns: int) -> None:
        """Hand over what the last reading brought for others, and what waited."""
        waiting, self._waiting = [*self._waiting, *([(now_ns, new)] if new else [])], []
        for since_ns, parts in waiting:
            for owner, identity in owners:
                if len(parts) == 0:
                    break
                parts = owner.host.take_foreign(parts, identity, owner.member.origin)
            self._hold(since_ns, parts, now_ns)

    def _hold(self, since_ns: int, parts: ForeignParts, now_ns: int) -> None:
        has_room = sum(len(each) for _, each in self._waiting) + len(parts) <= _MOST_WAITING
        if has_room and 0 <= now_ns - since_ns < FOREIGN_PATIENCE_NS:
            if len(parts):
                self._waiting.append((since_ns, parts))
        else:
            self.lost += len(parts)
