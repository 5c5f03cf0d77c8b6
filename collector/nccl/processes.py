"""One process whose ring file is followed: what it recorded, how it gets on, what it is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import structlog

from collector.kernel.foreign_file import ForeignFile
from collector.kernel.process import Environment, read_environment
from collector.nccl.aggregator import Aggregator
from collector.nccl.arrays import Array
from collector.nccl.budget import WHOLE_SHARE, sampled_share
from collector.nccl.communicators import Origin
from collector.nccl.detail import Detail, KeptProcess, RankDetail, wanted_detail
from collector.nccl.finding import Claim, FoundFile, Owner, RingDirectories, find_gpu, find_owner, host_gpus
from collector.nccl.host_aggregator import HostAggregator
from collector.nccl.progress import Overdue, UsualTimes
from collector.nccl.ringfile import Live, RingFile, open_ring
from collector.nccl.snapshot import FileKey, FileMemory, Reading, Snapshot, take_reading
from lockstep import wire
from lockstep.clock import NS_PER_S
from lockstep.errors import BadRing, RingNotReady
from lockstep.records import LoweredBy, PluginHealth, PluginLevel

_log = structlog.get_logger("nccl_rings")

# What hostile numbers may still lead to, once they are past the reader's checks: the fault of one file only.
FILE_FAULTS = (BadRing, ArithmeticError, ValueError, LookupError, pa.ArrowException)
_LEVELS: tuple[PluginLevel, ...] = ("off", "operations", "transfers", "steps", "trace")
_LOWERED: tuple[LoweredBy, ...] = ("no", "callbacks", "job")
# How many processes of the job a launcher has started on this host: torchrun, Open MPI, MPICH, Slurm.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
_MOST = (1 << 63) - 1  # of what a file may claim
_USUAL_SHARE = 0.01  # the plugin's own
_QUIET_EVERY = 10  # readings: how often a row that has not changed is sent, where there are many
_FEW_ROWS = 64  # up to so many are sent every time


class FollowedProcess:
    """Reads one ring file as long as its process lives, and once more."""

    def __init__(self, file: FoundFile, ring: RingFile, owner: Owner, origin: Origin, host: HostAggregator) -> None:
        self.file, self.ring, self.owner, self.origin = file, ring, owner, origin
        self.aggregator = Aggregator(origin, host)
        self.kept = KeptProcess(ring, origin)
        self.reading: Reading | None = None
        self.is_over = False
        self.overdue = Overdue()
        self.usual_times = UsualTimes()
        self._usual = usual_detail(ring, owner.environment)
        self._asked = self._usual
        self._allowed = wire.TRACE  # the most that it records unless somebody asks for more
        self._sampled = self._usual.share
        self._is_fixed = bool(owner.environment.get("LOCKSTEP_SAMPLE"))
        self._counted: tuple[int, int] | None = None  # operations so far, and when
        self._cost_ns = 0
        self._missed = 0  # records that were overwritten before they were read
        self._shows = 0
        self._shown: dict[int, tuple[int, ...]] = {}  # rows of the live table as they were sent last

    def resume(self, memory: FileMemory) -> None:
        """Go on where another reader of the same file ended."""
        records, level = self.ring.go_on(memory.position), int(self.ring.status()["level"])
        reading = Reading(self.ring.identity, self.ring.clock(), self.ring.communicators(), Live(), records, level)
        snapshot, _ = self.aggregator.snapshot(reading)
        self.aggregator.host.relearn(snapshot, memory.aggregator)

    def read(self, most: int) -> tuple[Snapshot, pa.Table]:
        """Return what is new, about so many records at most, and rows of communicators.

        Once the lock is gone nothing more is written, so what is read then is all, unless it is a part.
        """
        holder = self.ring.owner()
        if holder not in (None, self.owner.pid):
            raise BadRing(f"is held by process {holder}, and was by process {self.owner.pid}", file=self.ring.name)
        self.reading = take_reading(self.ring, most)
        self.is_over = holder is None and self.reading.records.until_ticks is None
        self._missed += self.reading.records.missed
        return self.aggregator.snapshot(self.reading, is_last=self.is_over, died=self.is_over)

    def show(self, reading: Reading, now_ns: int) -> Snapshot:
        """Return what is to be told of how far it has come, and note what is overdue; once a second."""
        self._judge(reading, now_ns)
        self._adapt(int(reading.live.rows["enqueued"].sum()), now_ns)
        self._shows += 1
        if len(reading.live.rows) > _FEW_ROWS:
            live = replace(reading.live, rows=reading.live.rows[self._worth_reporting(reading)])
            reading = replace(reading, live=live)
        return Snapshot(self.aggregator.member, reading)

    def progress(self, now_ns: int) -> pa.Table:
        """Return how far it has come with what is overdue; between two readings."""
        assert self.reading, "what is overdue was read"
        reading = replace(self.reading, live=self.ring.live())
        self._judge(reading, now_ns)
        index, func, peer = wire.split_key(reading.live.rows["key"])
        peers = peer.astype(np.uint32).view(np.int32)
        rows = zip(index.tolist(), func.tolist(), peers.tolist(), strict=True)
        is_late = np.fromiter((row in self.overdue.rows for row in rows), bool, len(index))
        late = replace(reading.live, rows=reading.live.rows[is_late])
        return self.aggregator.progress(replace(reading, live=late), now_ns)

    def _adapt(self, operations: int, now_ns: int) -> None:
        """Have some operations a second recorded by steps, however few there are, unless its owner said how many."""
        counted, self._counted = self._counted, (operations, now_ns)
        usual = self._usual
        if counted is None or self._is_fixed or not usual.share or min(usual.level, self._allowed) < wire.STEPS:
            return
        if int(self.ring.status()["lowered"]) == wire.NOT_LOWERED:
            per_s = (operations - counted[0]) * NS_PER_S / max(now_ns - counted[1], 1)
            self._sampled = sampled_share(self._sampled, per_s, usual.share)

    def ask(self, requests: list[RankDetail], allowed: int = wire.TRACE) -> None:
        """Ask for what is requested; when nothing is requested any more, for what it does by itself.

        `allowed` is the most that its job may pay for; it stays, since what was too dear will be so again.
        """
        self._allowed = min(self._allowed, allowed)
        usual = Detail(min(self._usual.level, self._allowed), self._sampled)
        wanted = wanted_detail(requests, usual, self.origin.job, self.ring.identity.world_rank)
        if wanted == self._asked:
            return
        self._asked = wanted
        try:
            self.ring.request(wanted.level, wanted.share, 0)
        except BadRing as error:
            _log.warning("detail cannot be asked for", error=str(error))

    def take_back(self) -> None:
        """Leave the process with what it does by itself."""
        self._sampled = self._usual.share
        self.ask([])

    def growth(self, elapsed_ns: int) -> int:
        """Return what the plugin has cost since the last time.

        The costs are the file's word; more than all its threads had of the time nobody can have spent.
        """
        before = self._cost_ns
        if self.reading:
            self._cost_ns = int(self.reading.clock.duration_ns(self.ring.callback_ticks()))
        return min(max(self._cost_ns - before, 0), elapsed_ns * len(self.ring.position))

    def health(self, now_ns: int) -> PluginHealth:
        """Return how its plugin does, as the file says."""
        status, identity = self.ring.status(), self.ring.identity
        is_measured = bool(status["paid_pairs"])
        return PluginHealth(
            host=self.origin.host,
            job=self.origin.job,
            attempt=self.origin.attempt,
            pid=self.owner.pid,
            world_rank=identity.world_rank,
            local_ranks=_local_ranks(self.owner.environment),
            ts_ns=now_ns,
            version=identity.plugin_version,
            level=_LEVELS[status["level"]],
            lowered="job" if status["level"] <= self._allowed < self._usual.level else _LOWERED[status["lowered"]],
            dear=bool(status["dear"]),
            paid_ppm=int(status["paid_ppm"]) if is_measured else None,
            paid_error_ppm=int(status["paid_error_ppm"]) if is_measured else None,
            lost=min(self._missed + int(status["overwritten"]), _MOST),
            refused_comms=min(int(status["refused_comms"]), _MOST),
            **{name: int(status[name]) for name in ("budget_ppm", "callback_ppm", "paid_pairs")},
        )

    def close(self) -> None:
        self.aggregator.leave()
        self.ring.close()

    def _judge(self, reading: Reading, now_ns: int) -> None:
        operations = reading.live.operations
        enqueue_ns = reading.clock.to_unix_ns(operations["enqueue_ticks"])
        self.overdue = self.usual_times.judge(operations, enqueue_ns, now_ns)

    def _worth_reporting(self, reading: Reading) -> Array:
        """Return which of many rows are sent: those that changed, and the others in turns."""
        rows = reading.live.rows
        reported = rows[["enqueued", "started", "done"]].tolist()
        indices = rows["index"].tolist()
        is_new = [self._shown.get(index) != counts for index, counts in zip(indices, reported, strict=True)]
        self._shown = dict(zip(indices, reported, strict=True))
        is_open = rows["enqueued"] != rows["done"]
        is_due = (rows["index"] + self._shows) % _QUIET_EVERY == 0
        worth: Array = np.array(is_new) | is_open | is_due
        return worth


def _local_ranks(environment: Environment) -> int | None:
    values = (environment.get(name) or "" for name in _LOCAL_SIZES)
    return next((int(value) for value in values if value.isdecimal() and len(value) < 6), None)


def usual_detail(ring: RingFile, environment: Environment) -> Detail:
    """Return what a process records by itself: as it does now, unless somebody asked or it was lowered.

    Then its environment says it, also when whoever asked has been killed and could not take it back.
    """
    status = ring.status()
    if status["stamp"] == 0 and status["lowered"] == wire.NOT_LOWERED:
        return Detail(int(status["level"]), min(int(status["share"]), WHOLE_SHARE))
    asked = environment.get("LOCKSTEP_DETAIL")
    level = next((level for level in range(wire.TRACE) if _LEVELS[level] == asked), wire.STEPS)
    try:
        share = float(environment.get("LOCKSTEP_SAMPLE") or _USUAL_SHARE)
    except ValueError:
        share = _USUAL_SHARE
    return Detail(level, int(min(max(share, 0.0), 1.0) * WHOLE_SHARE))


MOST_PROCESSES = 512
READ_GRACE_NS = 60 * NS_PER_S  # from the end of a process that was followed to the end of its file
STRANGE_GRACE_NS = 600 * NS_PER_S  # for a file that nobody holds and that was not followed: somebody may look at it
_MOST_REFUSALS = 64  # told in one look; the others are told later, so that a flood cannot fill a batch

_Name = tuple[int, int, str]  # device, inode, and name: a file system may use a number again


class RingIntake:
    """Looks for ring files again and again."""

    def __init__(self, host: str, root: Path, directories: Sequence[Path]) -> None:
        self._host, self._root, self._proc = host, root, root / "proc"
        self._directories = RingDirectories(root, directories)
        self._settled: set[_Name] = set()  # refused or read to the end, and still there
        self._leaving: dict[_Name, tuple[FoundFile, int]] = {}  # files to be removed, and when
        self._remembered: dict[FileKey, FileMemory] = {}
        self.refusals: list[str] = []  # sentences of the last look

    def remember(self, files: Mapping[FileKey, FileMemory]) -> None:
        """Know again which files another collector followed, and how far."""
        self._remembered = dict(files)

    def scan(
        self, now_ns: int, followed: Iterable[FollowedProcess], aggregator: HostAggregator
    ) -> list[FollowedProcess]:
        """Return the processes that are new, members of `aggregator`; `refusals` says which files are left."""
        known = {_name(process.file) for process in followed}
        in_use = {process.file.directory.inode for process in followed}
        in_use |= {file.directory.inode for file, _ in self._leaving.values()}
        directories = self._directories.scan(now_ns, in_use)
        self.refusals = list(self._directories.complaints)
        files = {_name(file): file for directory in directories for file in directory.files()}
        self._settled &= files.keys()
        fresh = [file for name, file in files.items() if name not in known and name not in self._settled]
        room = max(MOST_PROCESSES - len(known), 0)
        taken = [self._consider(file, now_ns, aggregator) for file in fresh[: room + _MOST_REFUSALS]]
        self._remove_old(now_ns)
        return [process for process in taken if process]

    def settle(self, file: FoundFile, now_ns: int, is_over: bool) -> None:
        """Follow this file no longer; when its process has ended, remove it after a while."""
        self._settled.add(_name(file))
        if is_over:
            self._leaving[_name(file)] = file, now_ns + READ_GRACE_NS

    def close(self) -> None:
        self._directories.close()

    def _consider(self, file: FoundFile, now_ns: int, aggregator: HostAggregator) -> FollowedProcess | None:
        ring: RingFile | None = None
        try:
            ring = open_ring(file.path, file.shown)
            return self._follow(file, ring, aggregator)
        except RingNotReady:
            self._leaving.setdefault(_name(file), (file, now_ns + STRANGE_GRACE_NS))
        except FILE_FAULTS as refusal:
            self._settled.add(_name(file))
            self._leaving.setdefault(_name(file), (file, now_ns + STRANGE_GRACE_NS))
            self.refusals.append(str(refusal) or type(refusal).__name__)
        if ring:
            ring.close()
        return None

    def _follow(self, file: FoundFile, ring: RingFile, aggregator: HostAggregator) -> FollowedProcess:
        holder, key = ring.owner(), (*ring.inode, ring.identity.created_ns)
        memory = self._remembered.get(key)
        if memory and memory.uid == ring.uid and holder in (None, memory.origin.pid):
            pid, job, attempt = memory.origin.pid or 0, memory.origin.job, memory.origin.attempt
            owner = Owner(pid, job, attempt, read_environment(self._proc, pid) or {})
            process = FollowedProcess(file, ring, owner, memory.origin, aggregator)
            try:
                process.resume(memory)
            except BaseException:
                process.aggregator.leave()
                raise
        else:
            owner = find_owner(self._proc, holder, Claim(ring.name, ring.uid, ring.identity.job))
            ring.clock()  # RingNotReady: nothing can be said of its times yet
            gpus, contained = host_gpus(self._root), file.directory.is_contained
            gpu = find_gpu(owner.environment, ring.identity.local_rank, gpus, contained)
            origin = Origin(self._host, owner.job, owner.attempt, owner.pid, gpu)
            process = FollowedProcess(file, ring, owner, origin, aggregator)
        self._remembered.pop(key, None)
        self._leaving.pop(_name(file), None)
        return process

    def _remove_old(self, now_ns: int) -> None:
        for name, (file, due_ns) in list(self._leaving.items()):
            if due_ns <= now_ns:
                del self._leaving[name]
                if not _is_held(file):
                    file.remove()


def _name(file: FoundFile) -> _Name:
    return (*file.inode, file.name)


def _is_held(file: FoundFile) -> bool:
    """Return whether somebody holds the file; what cannot be asked is left alone."""
    try:
        opened = ForeignFile(file.path, shown=file.shown)
    except BadRing:
        return True
    try:
        return opened.inode != file.inode or opened.lock_owner() is not None
    except BadRing:
        return True
    finally:
        opened.close()
