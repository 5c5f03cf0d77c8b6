"""Records of all processes of a host, read bit by bit and folded into rows: each once, when what it tells of is over.

Parts of an operation come from several threads and in any order. A transfer or a step has its row as soon as it and
its operation are known; an operation when none of its parts is open and a bound on lateness has passed. What comes
later still is counted, and a transfer or a step has its row even then.

A reading of eight processes costs hardly more than one of one: their records are handled as one array each.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from collector.nccl.arrays import Array, pick, stack
from collector.nccl.budget import lot_of
from collector.nccl.clock import NEVER_NS, SEEN_KERNEL, HostClocks, Interval
from collector.nccl.communicators import HostCommunicators
from collector.nccl.header import Identity
from collector.nccl.ledger import Ledger
from collector.nccl.operations import (
    KNOWN,
    OperationIndex,
    add_kernels,
    add_transfers,
    keys_of,
    learn_operations,
    no_operations,
)
from collector.nccl.progress import progress_of, show
from collector.nccl.snapshot import AggregatorState, JointReading, Losses, Snapshot
from collector.nccl.transfers import MOVED, STEPPED, ForeignParts, add_part_bytes, claim, join_operations
from lockstep import wire
from lockstep.clock import NS_PER_S

DELAY_NS = NS_PER_S // 2  # threads write their rings at once; what takes longer was not scheduled at all


class Matched(NamedTuple):
    """Parts with the place of their operation, and what became of the others."""

    parts: Array
    indices: Array
    foreign: Array  # parts of another process's operations
    orphans: int  # parts that waited in vain
    late: int  # of the matched ones, those whose operation already has its row


class PartQueue:
    """Keeps parts of one kind until their operation is known, or until nobody believes in it any more."""

    def __init__(self, kind: np.dtype[np.void]) -> None:
        """`kind` has the fields `operation` and `origin`."""
        self._waiting, self._since_ns = np.empty(0, kind), np.empty(0, np.int64)
        self._is_excused = np.empty(0, bool)

    def match(self, new: Array, tags: Array, known: Array, index: OperationIndex, now_ns: int) -> Matched:
        """Return what has found its operation among the known ones; the rest of our own parts waits on.

        `tags` has for each of the new ones the tag of the process that told of it: an operation with another one is
        another process's.
        """
        if len(new) == len(self._waiting) == 0:
            return Matched(new, np.empty(0, np.intp), new, 0, 0)
        is_foreign = (wire.tag_of(new["operation"]) != tags) & (new["operation"] != 0)
        ours = pick(new, ~is_foreign) if is_foreign.any() else new
        parts = stack(new.dtype, [self._waiting, ours]) if len(self._waiting) else ours
        indices, found = index.find(keys_of(parts["operation"], parts["origin"]))
        found &= parts["operation"] != 0
        orphans = self._keep_waiting(parts, found, now_ns)
        if not found.all():
            parts, indices = pick(parts, found), indices[found]
        late = np.count_nonzero(known["written_ns"][indices] != NEVER_NS)
        return Matched(parts, indices, pick(new, is_foreign), orphans, int(late))

    def _keep_waiting(self, parts: Array, found: Array, now_ns: int) -> int:
        """Keep what may still find its operation; return how many are given up."""
        if found.all():
            self._let_go(np.zeros(len(self._waiting), bool))
            return 0
        fresh = len(parts) - len(self._waiting)
        since_ns = np.append(self._since_ns, np.full(fresh, now_ns))
        is_excused = np.append(self._is_excused, np.zeros(fresh, bool))
        waits = ~found & (parts["operation"] != 0) & (since_ns + DELAY_NS > now_ns)
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


PATIENCE_NS = 60 * NS_PER_S  # with a kernel that does not begin; inside a host it is all there is to hear of
_REMEMBERED_NS = 5 * NS_PER_S  # how long an operation is kept for parts that come too late
_MOST_OPERATIONS = 1 << 17  # of one process in memory: 20 MB; it enqueues some thousands a second


class HostAggregator:
    """Folds what several processes recorded, and gives it to a ledger."""

    def __init__(self, ledger: Ledger, keeps_rest: bool = False) -> None:
        """With `keeps_rest` complete rows are those of the operations that are not in the share."""
        self.ledger, self._keeps_rest = ledger, keeps_rest
        self._known = no_operations()
        self._index = OperationIndex(self._known)
        kinds = {"transfers": MOVED, "steps": STEPPED, "kernels": SEEN_KERNEL}
        self._queues = {name: PartQueue(kind) for name, kind in kinds.items()}
        self._comms = HostCommunicators([])
        self.lost = {each.name: 0 for each in fields(Losses)}
        self.written = no_operations()  # operations whose row the last reading completed
        self.foreign: ForeignParts | None = None  # what the last reading brought for processes other than its maker

    @property
    def oldest_pending_ns(self) -> int | None:
        """Since when the oldest operation is under way that has no row yet; None: there is none."""
        pending = self._known["enqueue_ns"][self._known["written_ns"] == NEVER_NS]
        return int(pending.min()) if len(pending) else None

    def fold(self, snapshots: Sequence[Snapshot], now_ns: int, share: int) -> None:
        """Give the ledger what these readings complete; communicators must have been taken in.

        Of 65,536 operations that are new, `share` have complete rows; statistics are of all in any case.
        """
        self.written, self.foreign = no_operations(), None
        if not snapshots:
            return
        joint = self._take_in(snapshots, now_ns, share)
        known, is_open = self._known, self._index.among(joint.open_keys())
        may_begin = self._index.among(joint.unbegun_keys()) & (known["enqueue_ns"] + PATIENCE_NS > now_ns)
        is_complete = ~is_open & ~may_begin & self._is_quiet(now_ns)
        for snapshot in snapshots:
            if snapshot.is_last:
                is_theirs = known["origin"] == snapshot.member.origin
                is_complete[is_theirs] = ~is_open[is_theirs] | snapshot.died
        self._write(is_complete & np.isin(known["origin"], joint.origins), is_open, now_ns)
        for snapshot in snapshots:
            if snapshot.is_last:
                given_up = [queue.give_up(snapshot.member.origin) for queue in self._queues.values()]
                self._lose(orphans=sum(given_up))

    def states(self, now_ns: int, share: int) -> dict[int, AggregatorState]:
        """Return by origin what `relearn` needs after the reading at this time; of the others it is nothing."""
        is_written, is_quiet = self._known["written_ns"] != NEVER_NS, self._is_quiet(now_ns)
        pending, written = pick(self._known, ~is_written & is_quiet), pick(self._known, is_written & ~is_quiet)
        origins = np.unique(np.concatenate([pending["origin"], written["origin"]])).tolist()
        return {
            origin: AggregatorState(
                now_ns, share, *(each["handle"][each["origin"] == origin] for each in (pending, written))
            )
            for origin in origins
        }

    def relearn(self, snapshot: Snapshot, state: AggregatorState) -> None:
        """Know again what another reader knew of the same file; what it gave rows and counted is not given again."""
        ledger, self.ledger = self.ledger, Ledger(origins=self.ledger.origins)
        lost, origin = dict(self.lost), snapshot.member.origin
        try:
            self._take_in([snapshot], state.now_ns, state.share)
            is_theirs, is_quiet = self._known["origin"] == origin, self._is_quiet(state.now_ns)
            pending, written = (self._index.among(keys_of(each, origin)) for each in (state.pending, state.written))
            self._write(is_theirs & (is_quiet & ~pending | written), np.zeros(len(is_theirs), bool), state.now_ns)
            self.ledger.rows()
            ledger.seconds.adopt(self.ledger.seconds, origin)
        finally:
            self.ledger, self.lost = ledger, lost
            self.written, self.foreign = no_operations(), None
        for queue in self._queues.values():
            queue.excuse(origin)

    def measure_progress(self, snapshots: Sequence[Snapshot], now_ns: int) -> Array:
        """Return how far processes have come, as PROGRESS; after `fold` with the same readings."""
        clocks = HostClocks([snapshot.reading.clock for snapshot in snapshots])
        processes = [(snapshot.member.origin, snapshot.reading.identity.kernel_channels) for snapshot in snapshots]
        shown = show([snapshot.reading.live for snapshot in snapshots])
        return progress_of(shown, clocks, self._comms_of(snapshots), processes, now_ns)

    def take_foreign(self, parts: ForeignParts, identity: Identity, origin: int) -> ForeignParts:
        """Take what another process did for this one, and return what it did for others still.

        Rows take this rank: it is its data that moved.
        """
        moved, is_moved = claim(parts.transfers, identity, origin, self._index)
        stepped, is_stepped = claim(parts.steps, identity, origin, self._index)
        self._take_transfers(parts.transfers[is_moved], moved[is_moved])
        self._take_steps(parts.steps[is_stepped], stepped[is_stepped])
        return ForeignParts(parts.transfers[~is_moved], parts.steps[~is_stepped])

    def forget(self, origin: int) -> None:
        """Let go of a process that is not read any more."""
        self._known = pick(self._known, self._known["origin"] != origin)
        self._index = OperationIndex(self._known)
        for queue in self._queues.values():
            queue.give_up(origin)

    def _take_in(self, snapshots: Sequence[Snapshot], now_ns: int, share: int) -> JointReading:
        joint = JointReading(snapshots)
        self._lose(overwritten=joint.lost)
        self._learn(joint, snapshots, share, now_ns)
        self._take_kernels(self._matched(joint, "kernels", now_ns), snapshots)
        moved, stepped = self._matched(joint, "transfers", now_ns), self._matched(joint, "steps", now_ns)
        self.foreign = ForeignParts(moved.foreign, stepped.foreign)
        self._take_transfers(moved.parts, moved.indices)
        self._take_steps(stepped.parts, stepped.indices)
        return joint

    def _learn(self, joint: JointReading, snapshots: Sequence[Snapshot], share: int, now_ns: int) -> None:
        enqueued, whose, enqueue_ns = joint.enqueued()
        members, found = self._comms_of(snapshots).members_at(whose, enqueued["comm"], enqueued["ticks"])
        if not found.all():
            self._lose(unknown_comm=_count(~found))
            enqueued, members = pick(enqueued, found), pick(members, found)
            whose, enqueue_ns = whose[found], enqueue_ns[found]
        new = add_part_bytes(learn_operations(enqueued, members, enqueue_ns, joint.origins[whose]))
        self._lose(untimed=_count((new["flags"] & wire.FLAG_UNTIMED) != 0))
        new["kept"] = (lot_of(new) < share) != self._keeps_rest
        written_ns = self._known["written_ns"]
        is_of_use = (written_ns == NEVER_NS) | (written_ns + _REMEMBERED_NS >= now_ns)
        self._known = stack(KNOWN, [pick(self._known, is_of_use), new])
        self._distrust(new, snapshots)
        self._bound_memory()
        self._index = OperationIndex(self._known)

    def _distrust(self, new: Array, snapshots: Sequence[Snapshot]) -> None:
        """Tell of sends to oneself, after which kernel times are mixed up; nearly always there are none."""
        to_self = pick(new, (new["peer"] >= 0) & (new["peer"] == new["rank"]))
        for snapshot in snapshots:
            reading = snapshot.reading
            if len(to_self) or reading.communicators["kernel_untrusted"].any():
                theirs = pick(to_self, to_self["origin"] == snapshot.member.origin)
                snapshot.member.kernel_times.distrust(theirs, reading.communicators, reading.identity.nccl_version)

    def _take_kernels(self, matched: Matched, snapshots: Sequence[Snapshot]) -> None:
        """Judge the times of each process by what is known of its own GPU."""
        for snapshot in snapshots:
            here = np.flatnonzero(matched.parts["origin"] == snapshot.member.origin)
            if len(here):
                indices = matched.indices[here]
                judged = snapshot.member.kernel_times.judge(pick(matched.parts, here), pick(self._known, indices))
                add_kernels(self._known, indices, judged)
                self._lose(stale_kernels=_count(~judged.is_good))

    def _take_transfers(self, parts: Array, indices: Array) -> None:
        if len(parts):
            moved = join_operations(parts, self._known, indices)
            add_transfers(self._known, indices, Interval(moved["first_ns"], moved["end_ns"]), moved["sends"])
            self.ledger.add_transfers(moved)

    def _take_steps(self, parts: Array, indices: Array) -> None:
        if len(parts):
            stepped = join_operations(parts, self._known, indices)
            self._lose(unreached=_count(~stepped["reached"]))
            self.ledger.add_steps(pick(stepped, stepped["reached"]))

    def _matched(self, joint: JointReading, kind: str, now_ns: int) -> Matched:
        matched = self._queues[kind].match(*joint.parts(kind), self._known, self._index, now_ns)
        self._lose(orphans=matched.orphans, late=matched.late)
        return matched

    def _comms_of(self, snapshots: Sequence[Snapshot]) -> HostCommunicators:
        histories = [snapshot.member.history for snapshot in snapshots]
        if not self._comms.is_of(histories):
            self._comms = HostCommunicators(histories)
        return self._comms

    def _is_quiet(self, now_ns: int) -> Array:
        is_quiet: Array = self._known["active_ns"] + DELAY_NS <= now_ns
        return is_quiet

    def _write(self, is_complete: Array, is_open: Array, now_ns: int) -> None:
        chosen = np.flatnonzero(is_complete & (self._known["written_ns"] == NEVER_NS))
        self._known["written_ns"][chosen] = now_ns
        self.written = pick(self._known, chosen)
        self.ledger.add_operations(self.written, ~is_open[chosen])

    def _bound_memory(self) -> None:
        """Let go of the oldest operations of processes that have too many."""
        if len(self._known) <= _MOST_OPERATIONS:
            return
        stays = np.ones(len(self._known), bool)
        for origin in np.flatnonzero(np.bincount(self._known["origin"]) > _MOST_OPERATIONS).tolist():
            stays[np.flatnonzero(self._known["origin"] == origin)[:-_MOST_OPERATIONS]] = False
        self._lose(forgotten=_count(self._known["written_ns"][~stays] == NEVER_NS))
        self._known = pick(self._known, stays)

    def _lose(self, **more: int) -> None:
        for name, count in more.items():
            self.lost[name] += count


def _count(mask: Array) -> int:
    return int(np.count_nonzero(mask))
