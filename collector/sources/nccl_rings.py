"""What the NCCL plugin records in every rank: found, checked, folded, and sent within a budget."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from collector.nccl.aggregator import Aggregator, ForeignJoiner
from collector.nccl.budget import CROWDED_S, PERIOD_S, URGENT_S, Allowance, Budget, grant, spend, will_crowd
from collector.nccl.detail import KeptDetail, MinutesRequests, Replay, allowed_level, read_details
from collector.nccl.host_aggregator import DELAY_NS, HostAggregator
from collector.nccl.ledger import Ledger
from collector.nccl.processes import FILE_FAULTS, FollowedProcess, RingIntake
from collector.nccl.progress import mean_times, progress_rows
from collector.nccl.snapshot import (
    AggregatorState,
    Checkpoint,
    FileMemory,
    Snapshot,
    decode_checkpoint,
    encode_checkpoint,
)
from collector.nccl.snapshot import Reading as RingReading
from collector.sources.source import EventReporter, Reading, tables_of
from collector.supervision import REPORT_DIRECTORIES
from lockstep import wire
from lockstep.batches import DetailRequest
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent, RingNotReady
from lockstep.records import PluginHealth

KEPT_BYTES = 32 << 20  # of the last minutes, packed; with Arrow and the rest the collector stays below 150 MB
# Operations that take longer, or are overdue, do not hold back the watermark: what is still open shows in `progress`.
HOLD_NS = 10 * NS_PER_S
# A second is closed when all that ended in it is quiet. The rest is for clocks: what comes later is counted as late.
_SETTLED_NS = DELAY_NS + NS_PER_S // 10
_SOONEST_NS = int(0.9 * NS_PER_S)  # after a reading; what is asked for earlier is a look at what is overdue
_REPLAY_PART = 0.5  # of the budget for detail requests, while there are any
MOST_RECORDS = 1 << 17  # of one reading, 8 MiB in even parts: who was away for long catches up reading by reading
_BEHIND_NS = 300 * NS_PER_S  # a file that says that it is further behind does not hold back the others
_LOST_ROWS = ("overwritten", "unknown_comm", "orphans", "forgotten", "untimed")  # in no rows and in no statistics
_NOT_ROWS = ("untimed",)  # they have their rows, without times, because the plugin measured what it costs
_HEALTH_NS = 10 * NS_PER_S  # between two rows that tell how a plugin does


class NcclRingsSource:
    """Follows the ring files of all processes of the host.

    Memory: KEPT_BYTES for the last minutes, and some 20 MB per process at most while it floods us; usually 1 MB.
    """

    name = "nccl_rings"
    delay_s = 1.1  # DELAY_NS, and from enqueueing to the end 0.2 to 0.3 s in real training, 0.7 s behind a slow NIC

    def __init__(
        self,
        host: str,
        root: Path = Path("/"),
        directories: Sequence[Path] = REPORT_DIRECTORIES,
        budget: Budget = Budget(),  # noqa: B008  # frozen
    ) -> None:
        self._host, self._proc = host, root / "proc"
        self._ledger = Ledger()
        self._aggregator = HostAggregator(self._ledger)
        self._intake = RingIntake(host, root, directories)
        self._processes: list[FollowedProcess] = []
        self._allowance = Allowance(budget)
        self._kept = KeptDetail(KEPT_BYTES)
        self._minutes, self._replays = MinutesRequests(), list[Replay]()
        self._joiner = ForeignJoiner()
        self._read_ns: int | None = None
        self._until_ns = 0  # records up to then have been read
        self._watermark_ns = 0
        self._is_crowded = False
        self._counted: dict[str, int] = {}  # what was lost, up to the last reading
        self._plugins: list[PluginHealth] = []
        self._told_ns = 0  # when rows said how plugins do
        self._folded = 0  # rows that were only counted, up to the last reading
        self._checkpoint: bytes | None = None
        self._tables: dict[str, list[pa.Table]] = defaultdict(list)
        self._unsent: list[pa.Table] = []  # events of a reading that failed

    @property
    def period_s(self) -> float:
        """Ten times a second for a while after something became overdue."""
        if any(process.overdue.is_urgent for process in self._processes):
            return URGENT_S
        return CROWDED_S if self._is_crowded else PERIOD_S

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        if not self._proc.is_dir():
            raise NotPresent(f"no processes in {self._proc}")
        self._tables = defaultdict(list)
        self._tables["events"] += self._unsent
        self._unsent = []
        if self._read_ns is not None and 0 <= now_ns - self._read_ns < _SOONEST_NS:
            self._read_urgent(now_ns)
            cost_ns = 0 if self._processes else None
            return Reading(self._gathered(), self._watermark_ns, plugin_cost_ns=cost_ns, checkpoint=self._checkpoint)
        elapsed_ns = min(now_ns - self._read_ns, 60 * NS_PER_S) if self._read_ns else NS_PER_S
        self._read_ns = now_ns
        folded, cost_ns = self._read_all(now_ns, requests, max(elapsed_ns, 0))
        lost = self._lost()
        self._advance_watermark(now_ns)
        self._checkpoint = self._remember()
        filled = (process.ring.fullness for process in self._processes)
        self._is_crowded = self._until_ns < now_ns or will_crowd(filled, elapsed_ns)
        return Reading(
            tables=self._gathered(),
            watermark_ns=self._watermark_ns,
            dropped=sum(count for reason, count in lost.items() if reason not in _NOT_ROWS),
            lost=lost,
            plugins=self._plugins,
            folded=folded,
            plugin_cost_ns=cost_ns,
            is_urgent=True,
            checkpoint=self._checkpoint,
        )

    def resume(self, checkpoint: bytes) -> None:
        """Go on where the rows that were kept end."""
        known = decode_checkpoint(checkpoint)
        self._ledger.seconds.since_ns = known.since_ns
        if known.share is not None:
            self._allowance = Allowance(self._allowance.budget, known.share)
        self._intake.remember(known.files)

    def close(self) -> None:
        """Take back what was asked for, and let go of all files."""
        for process in self._processes:
            process.take_back()
            process.close()
        self._processes = []
        self._intake.close()

    def _read_all(self, now_ns: int, requests: Sequence[DetailRequest], elapsed_ns: int) -> tuple[int, int | None]:
        """Read, fold and count; return what was only counted, and what the plugins cost."""
        self._processes += self._intake.scan(now_ns, self._processes, self._aggregator)
        self._refuse(self._intake.refusals, now_ns)
        details = read_details(requests, now_ns)
        for process in self._processes:
            process.ask(details, allowed_level(requests, process.origin.job, process.origin.attempt))
        snapshots = self._read_snapshots(now_ns)
        self._until_ns = _read_until_ns([snapshot.reading for _, snapshot in snapshots], now_ns)
        rows = sum(_complete_rows(snapshot.reading) for _, snapshot in snapshots)
        self._allowance = grant(self._allowance, now_ns, rows)
        self._fold(snapshots, now_ns)
        self._allowance = spend(self._allowance, self._rows())
        self._replay(requests, now_ns)
        costs = [process.growth(elapsed_ns) for process in self._processes]
        self._tell_health(now_ns)
        self._let_go(now_ns)
        folded, self._folded = self._ledger.left_out - self._folded, self._ledger.left_out
        return folded, sum(costs) if costs else None

    def _read_snapshots(self, now_ns: int) -> list[tuple[FollowedProcess, Snapshot]]:
        snapshots, most = [], MOST_RECORDS // max(len(self._processes), 1)
        for process in list(self._processes):
            with self._watching(process, now_ns):
                snapshot, comms = process.read(most)
                self._take({"comms": comms})
                snapshots.append((process, snapshot))
        return snapshots

    def _fold(self, snapshots: Sequence[tuple[FollowedProcess, Snapshot]], now_ns: int) -> None:
        share, until_ns = self._allowance.share, self._until_ns
        self._fold_together(snapshots, now_ns, share)
        usual, shown = mean_times(self._aggregator.written), list[Snapshot]()
        for process, snapshot in snapshots:
            with self._watching(process, now_ns):
                process.usual_times.learn(usual.get(snapshot.member.origin, ()))
                shown.append(process.show(snapshot.reading, now_ns))
                self._kept.keep(process.kept, snapshot.reading, until_ns, share, process.is_over)
        owners = [(each.aggregator, each.ring.identity) for each, _ in snapshots if each in self._processes]
        self._joiner.join(self._aggregator.foreign, owners, until_ns)
        if shown:
            progress = self._aggregator.measure_progress(shown, now_ns)
            self._take({"progress": progress_rows(progress, self._ledger.origins)})
        self._take(self._ledger.rows())
        self._take(self._ledger.seconds.close(until_ns - _SETTLED_NS))

    def _fold_together(self, snapshots: Sequence[tuple[FollowedProcess, Snapshot]], now_ns: int, share: int) -> None:
        """Fold, or find out who cannot be folded and begin again without: what all have in common is half done."""
        try:
            self._aggregator.fold([snapshot for _, snapshot in snapshots], self._until_ns, share)
        except FILE_FAULTS:
            for process, snapshot in snapshots:
                with self._watching(process, now_ns):
                    Aggregator(process.origin).fold(snapshot.reading, now_ns)
            self._unsent = self._tables.pop("events", [])
            self._begin_again()
            raise

    def _begin_again(self) -> None:
        """Go on from the last checkpoint, as another collector would; files that were refused stay refused."""
        for process in self._processes:
            process.close()
        self._processes, self._ledger = [], Ledger()
        self._aggregator = HostAggregator(self._ledger)
        self._counted, self._folded = {"foreign": self._joiner.lost}, 0
        self.resume(self._checkpoint or b"")

    @contextmanager
    def _watching(self, process: FollowedProcess, now_ns: int) -> Iterator[None]:
        """Keep the fault of one file away from the others: it is told, and the file is followed no longer."""
        try:
            yield
        except RingNotReady:
            pass  # records stay where they are
        except FILE_FAULTS as error:
            self._refuse([str(error) or type(error).__name__], now_ns)
            self._processes.remove(process)
            self._intake.settle(process.file, now_ns, is_over=False)
            process.close()

    def _read_urgent(self, now_ns: int) -> None:
        for process in [each for each in self._processes if each.overdue.is_urgent]:
            with self._watching(process, now_ns):
                self._take({"progress": process.progress(now_ns)})
        self._allowance = spend(self._allowance, self._rows())

    def _replay(self, requests: Sequence[DetailRequest], now_ns: int) -> None:
        """Send a part of what was requested: half of a second's budget, and less after a second that took more."""
        for request in self._minutes.new(requests, now_ns):
            self._replays.append(self._kept.replay(request, now_ns))
        self._replays = [each for each in self._replays if each.pieces and each.expires_ns > now_ns]
        if self._replays:
            before = self._rows()
            room = min(self._allowance.rows, self._allowance.budget.rows_per_s * _REPLAY_PART)
            for tables in self._replays[0].take(room):
                self._take(tables)
            self._allowance = spend(self._allowance, self._rows() - before)

    def _let_go(self, now_ns: int) -> None:
        """Follow those no longer whose process has ended; all that they left has been read."""
        for process in [each for each in self._processes if each.is_over]:
            self._processes.remove(process)
            self._intake.settle(process.file, now_ns, is_over=True)
            process.close()

    def _tell_health(self, now_ns: int) -> None:
        """Say how the plugins do when one records more or less than before, and every now and then."""
        before, self._plugins = _levels_of(self._plugins), []
        for process in list(self._processes):
            with self._watching(process, now_ns):
                self._plugins.append(process.health(now_ns))
        if _levels_of(self._plugins) != before or now_ns - self._told_ns >= _HEALTH_NS:
            self._told_ns = now_ns
            self._take(tables_of(plugins=self._plugins))

    def _lost(self) -> dict[str, int]:
        """Return by reason how much is neither in rows nor in statistics, since the last time."""
        counted = {name: self._aggregator.lost[name] for name in _LOST_ROWS}
        counted |= {"foreign": self._joiner.lost, "waiting": self._ledger.seconds.forgotten}
        counted["sizeless"] = self._ledger.sizeless
        before, self._counted = self._counted, counted
        return {name: count - before.get(name, 0) for name, count in counted.items() if count > before.get(name, 0)}

    def _advance_watermark(self, now_ns: int) -> None:
        """Promise that nothing older comes: neither seconds that are open nor operations, unless they take long."""
        is_overdue = any(process.overdue.rows for process in self._processes)
        pending = None if is_overdue else self._aggregator.oldest_pending_ns
        settled_ns = min(self._until_ns - _SETTLED_NS, self._ledger.seconds.since_ns or now_ns)
        settled_ns = settled_ns if pending is None else min(settled_ns, pending)
        before_ns = self._watermark_ns if self._watermark_ns <= now_ns else 0  # unless the clock was set back
        self._watermark_ns = max(settled_ns, self._until_ns - HOLD_NS, before_ns, 0)

    def _remember(self) -> bytes:
        share, until_ns, files = self._allowance.share, self._until_ns, {}
        states = self._aggregator.states(until_ns, share)
        for process in self._processes:
            ring, state = process.ring, states.get(process.aggregator.member.origin, AggregatorState(until_ns, share))
            memory = FileMemory(ring.uid, process.origin, ring.position, state)
            files[*ring.inode, ring.identity.created_ns] = memory
        return encode_checkpoint(Checkpoint(self._ledger.seconds.since_ns, share, files))

    def _refuse(self, sentences: Sequence[str], now_ns: int) -> None:
        report = EventReporter(self._host, self.name, f"host:{self._host}").report
        self._take(tables_of(events=[report(now_ns, "ring_refused", "warning", each) for each in sentences]))

    def _take(self, tables: Mapping[str, pa.Table]) -> None:
        for name, rows in tables.items():
            if rows.num_rows:
                self._tables[name].append(rows)

    def _rows(self) -> int:
        return sum(rows.num_rows for pieces in self._tables.values() for rows in pieces)

    def _gathered(self) -> dict[str, pa.Table]:
        return {name: pa.concat_tables(pieces) for name, pieces in self._tables.items() if pieces}


def _levels_of(plugins: Sequence[PluginHealth]) -> list[tuple[int, str, bool]]:
    return [(each.pid, each.level, each.dear) for each in plugins]


def _read_until_ns(readings: Sequence[RingReading], now_ns: int) -> int:
    """Return up to when all records have been read: now, unless there were too many for one reading."""
    cut = ((reading.clock, reading.records.until_ticks) for reading in readings)
    until_ns = [int(clock.to_unix_ns(ticks)) for clock, ticks in cut if ticks is not None]
    return max(min([*until_ns, now_ns]), now_ns - _BEHIND_NS)


def _complete_rows(reading: RingReading) -> int:
    """Return how many rows there would be if all were kept: all records but those of kernels and callbacks."""
    counts = np.bincount(reading.records.slots.view(wire.RECORD)["kind"].reshape(-1), minlength=wire.KIND_CALLBACK)
    return int(counts[[wire.KIND_ENQUEUED, wire.KIND_TRANSFER_CLOSED, wire.KIND_STEP_CLOSED]].sum())
