"""Records of all processes of a host, read bit by bit and folded into rows: each once, when what it tells of is over.

Parts of an operation come from several threads and in any order. A transfer or a step has its row as soon as it and
its operation are known; an operation when none of its parts is open and a bound on lateness has passed. What comes
later still is counted, and a transfer or a step has its row even then.

A reading of eight processes costs hardly more than one of one: their records are handled as one array each.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.clock import NS_PER_S
from lockstep.rings.clock import HostClocks
from lockstep.rings.communicators import HostCommunicators
from lockstep.rings.foreign import Claimant, ForeignParts, claim
from lockstep.rings.grouping import pick, stack
from lockstep.rings.kernels import HEARD
from lockstep.rings.ledger import Ledger
from lockstep.rings.members import FolderMemory, Losses, Turn
from lockstep.rings.operations import (
    KNOWN,
    OperationIndex,
    add_kernels,
    add_transfers,
    keys_of,
    learn_operations,
    no_operations,
)
from lockstep.rings.parts import Matched, PartQueue
from lockstep.rings.progress import progress_of, show
from lockstep.rings.reading import JointReading
from lockstep.rings.sampling import lot_of
from lockstep.rings.span import NEVER_NS, Span
from lockstep.rings.transfers import MOVED, STEPPED, add_part_bytes, join_operations

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

LATENESS_NS = NS_PER_S  # threads write their rings at once; what takes longer was not scheduled at all
PATIENCE_NS = 60 * NS_PER_S  # with a kernel that does not begin; inside a host it is all there is to hear of
_REMEMBERED_NS = 5 * NS_PER_S  # how long an operation is kept for parts that come too late
_MOST_OPERATIONS = 1 << 17  # of one process in memory: 20 MB; it enqueues some thousands a second


class HostFolder:
    """Folds what several processes recorded, and gives it to a ledger."""

    def __init__(self, ledger: Ledger, keeps_rest: bool = False) -> None:
        """With `keeps_rest` complete rows are those of the operations that are not in the share."""
        self.ledger, self._keeps_rest = ledger, keeps_rest
        self._known = no_operations()
        self._index = OperationIndex(self._known)
        self._transfers = PartQueue(MOVED, LATENESS_NS)
        self._kernels = PartQueue(HEARD, LATENESS_NS)
        self._steps = PartQueue(STEPPED, LATENESS_NS)
        self._comms = HostCommunicators([])
        self.lost = {each.name: 0 for each in fields(Losses)}
        self.written = no_operations()  # operations whose row the last reading completed
        self.foreign: ForeignParts | None = None  # what the last reading brought for processes other than its maker

    @property
    def oldest_pending_ns(self) -> int | None:
        """Since when the oldest operation is under way that has no row yet; None: there is none."""
        pending = self._known["enqueue_ns"][self._known["written_ns"] == NEVER_NS]
        return int(pending.min()) if len(pending) else None

    def fold(self, turns: Sequence[Turn], now_ns: int, share: int) -> None:
        """Give the ledger what these readings complete; communicators must have been taken in.

        Of 65,536 operations that are new, `share` have complete rows; statistics are of all in any case.
        """
        self.written, self.foreign = no_operations(), None
        if not turns:
            return
        joint = self._take_in(turns, now_ns, share)
        known, is_open = self._known, self._index.among(joint.open_keys())
        may_begin = self._index.among(joint.unbegun_keys()) & (known["enqueue_ns"] + PATIENCE_NS > now_ns)
        is_complete = ~is_open & ~may_begin & self._is_quiet(now_ns)
        for turn in turns:
            if turn.is_last:
                is_theirs = known["origin"] == turn.member.origin
                is_complete[is_theirs] = ~is_open[is_theirs] | turn.died
        self._write(is_complete & np.isin(known["origin"], joint.origins), is_open, now_ns)
        for turn in turns:
            if turn.is_last:
                self._lose(orphans=sum(queue.give_up(turn.member.origin) for queue in self._queues))

    def memories(self, now_ns: int, share: int) -> dict[int, FolderMemory]:
        """Return by origin what `relearn` needs after the reading at this time; of the others it is nothing."""
        is_written, is_quiet = self._known["written_ns"] != NEVER_NS, self._is_quiet(now_ns)
        pending, written = pick(self._known, ~is_written & is_quiet), pick(self._known, is_written & ~is_quiet)
        origins = np.unique(np.concatenate([pending["origin"], written["origin"]])).tolist()
        return {
            origin: FolderMemory(
                now_ns, share, *(each["handle"][each["origin"] == origin] for each in (pending, written))
            )
            for origin in origins
        }

    def relearn(self, turn: Turn, memory: FolderMemory) -> None:
        """Know again what another reader knew of the same file; what it gave rows and counted is not given again."""
        ledger, self.ledger = self.ledger, Ledger(origins=self.ledger.origins)
        lost, origin = dict(self.lost), turn.member.origin
        try:
            self._take_in([turn], memory.now_ns, memory.share)
            is_quiet, pending, written = (
                self._is_quiet(memory.now_ns),
                *(self._index.among(keys_of(each, origin)) for each in (memory.pending, memory.written)),
            )
            is_theirs = self._known["origin"] == origin
            self._write(is_theirs & (is_quiet & ~pending | written), np.zeros(len(is_theirs), bool), memory.now_ns)
            self.ledger.rows()
            ledger.seconds.adopt(self.ledger.seconds, origin)
        finally:
            self.ledger, self.lost = ledger, lost
            self.written, self.foreign = no_operations(), None
        for queue in self._queues:
            queue.excuse(origin)

    def look(self, turns: Sequence[Turn], now_ns: int) -> Array:
        """Return how far processes have come, as PROGRESS; after `fold` with the same readings."""
        clocks = HostClocks([turn.reading.clock for turn in turns])
        processes = [(turn.member.origin, turn.reading.identity.kernel_channels) for turn in turns]
        return progress_of(
            show([turn.reading.live for turn in turns]), clocks, self._comms_of(turns), processes, now_ns
        )

    def take_foreign(self, parts: ForeignParts, who: Claimant) -> ForeignParts:
        """Take what another process did for this one, and return what it did for others still.

        Rows take this rank: it is its data that moved.
        """
        claimed, rest = claim(parts, who, self._index)
        self._take_transfers(claimed.transfers, claimed.transfer_places)
        self._take_steps(claimed.steps, claimed.step_places)
        return rest

    def forget(self, origin: int) -> None:
        """Let go of a process that is not read any more."""
        self._known = pick(self._known, self._known["origin"] != origin)
        self._index = OperationIndex(self._known)
        for queue in self._queues:
            queue.give_up(origin)

    @property
    def _queues(self) -> tuple[PartQueue, PartQueue, PartQueue]:
        return self._transfers, self._kernels, self._steps

    def _take_in(self, turns: Sequence[Turn], now_ns: int, share: int) -> JointReading:
        """Learn everything that the readings hold."""
        joint = JointReading([turn.reading for turn in turns], [turn.member.origin for turn in turns])
        self._lose(overwritten=joint.lost)
        self._learn(joint, turns, share, now_ns)
        self._take_kernels(self._matched(self._kernels, joint.kernels(), joint.tags("kernels"), now_ns), turns)
        moved = self._matched(self._transfers, joint.transfers(), joint.tags("transfers"), now_ns)
        stepped = self._matched(self._steps, joint.steps(), joint.tags("steps"), now_ns)
        self.foreign = ForeignParts(moved.foreign, stepped.foreign)
        self._take_transfers(moved.parts, moved.places)
        self._take_steps(stepped.parts, stepped.places)
        return joint

    def _learn(self, joint: JointReading, turns: Sequence[Turn], share: int, now_ns: int) -> None:
        enqueued, whose, enqueue_ns = joint.enqueued, joint.whose("enqueued"), joint.enqueue_ns()
        members, found = self._comms_of(turns).members_at(whose, enqueued["comm"], enqueued["ticks"])
        if not found.all():
            self._lose(homeless=_count(~found))
            enqueued, members, whose, enqueue_ns = (
                pick(enqueued, found),
                pick(members, found),
                whose[found],
                enqueue_ns[found],
            )
        new = add_part_bytes(learn_operations(enqueued, members, enqueue_ns, joint.origins[whose]))
        new["kept"] = (lot_of(new) < share) != self._keeps_rest
        self._known = stack(KNOWN, [self._remembered(now_ns), new])
        self._distrust(new, turns)
        self._bound_memory()
        self._index = OperationIndex(self._known)

    def _distrust(self, new: Array, turns: Sequence[Turn]) -> None:
        """Tell of sends to oneself, after which kernel times are mixed up; nearly always there are none."""
        to_self = pick(new, (new["peer"] >= 0) & (new["peer"] == new["rank"]))
        for turn in turns:
            reading = turn.reading
            if len(to_self) or reading.communicators["kernel_untrusted"].any():
                theirs = pick(to_self, to_self["origin"] == turn.member.origin)
                turn.member.kernel_times.distrust(theirs, reading.communicators, reading.identity.nccl_version)

    def _take_kernels(self, matched: Matched, turns: Sequence[Turn]) -> None:
        """Judge the times of each process by what is known of its own GPU."""
        for turn in turns:
            here = np.flatnonzero(matched.parts["origin"] == turn.member.origin)
            if len(here):
                places = matched.places[here]
                judged = turn.member.kernel_times.judge(pick(matched.parts, here), pick(self._known, places))
                add_kernels(self._known, places, judged)
                self._lose(stale_kernels=_count(~judged.is_good))

    def _take_transfers(self, parts: Array, places: Array) -> None:
        if len(parts):
            moved = join_operations(parts, self._known, places)
            add_transfers(self._known, places, Span(moved["first_ns"], moved["end_ns"]), moved["sends"])
            self.ledger.add_transfers(moved)

    def _take_steps(self, parts: Array, places: Array) -> None:
        if len(parts):
            stepped = join_operations(parts, self._known, places)
            self._lose(unreached=_count(~stepped["reached"]))
            self.ledger.add_steps(pick(stepped, stepped["reached"]))

    def _matched(self, queue: PartQueue, new: Array, tags: Array, now_ns: int) -> Matched:
        matched = queue.match(new, tags, self._known, self._index, now_ns)
        self._lose(orphans=matched.orphans, late=matched.late)
        return matched

    def _comms_of(self, turns: Sequence[Turn]) -> HostCommunicators:
        histories = [turn.member.history for turn in turns]
        if not self._comms.is_of(histories):
            self._comms = HostCommunicators(histories)
        return self._comms

    def _is_quiet(self, now_ns: int) -> Array:
        is_quiet: Array = self._known["active_ns"] + LATENESS_NS <= now_ns
        return is_quiet

    def _write(self, is_complete: Array, is_open: Array, now_ns: int) -> None:
        chosen = np.flatnonzero(is_complete & (self._known["written_ns"] == NEVER_NS))
        self._known["written_ns"][chosen] = now_ns
        self.written = pick(self._known, chosen)
        self.ledger.add_operations(self.written, ~is_open[chosen])

    def _remembered(self, now_ns: int) -> Array:
        """Return the operations that may still be of use."""
        written_ns = self._known["written_ns"]
        is_old = (written_ns != NEVER_NS) & (written_ns + _REMEMBERED_NS < now_ns)
        return pick(self._known, ~is_old)

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
