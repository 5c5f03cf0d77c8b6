"""One process whose ring file is followed: what it recorded, how it gets on, what it is asked for."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from collector.rings.checkpoint import FileMemory
from collector.rings.detail import KeptProcess
from collector.rings.finding import FoundFile
from collector.rings.overdue import Overdue, UsualTimes
from collector.rings.ownership import Environment, Owner
from collector.rings.wishes import Detail, DetailWish, wanted_detail
from lockstep import wire
from lockstep.errors import BadRing
from lockstep.rings.folding import Folder, FolderMemory, HostFolder, Reading, take_reading
from lockstep.rings.live import PLACED_ROW, Live
from lockstep.rings.members import Turn
from lockstep.rings.origin import Origin
from lockstep.rings.progress import PROGRESS
from lockstep.rings.ringfile import WHOLE_SHARE, RingFile

Array = npt.NDArray[Any]  # Any: structured arrays have a type per field

_log = structlog.get_logger("nccl_rings")

# What hostile numbers may still lead to, once they are past the reader's checks: the fault of one file only.
FILE_FAULTS = (BadRing, ArithmeticError, ValueError, LookupError, pa.ArrowException)
LOST_ROWS = ("overwritten", "homeless", "orphans", "forgotten")  # what is lost in no rows and in no statistics
_LEVELS = {"off": wire.OFF, "operations": wire.OPERATIONS, "transfers": wire.TRANSFERS, "steps": wire.STEPS}
_USUAL_SHARE = 0.01  # the plugin's own
_QUIET_EVERY = 10  # readings: how often a row that has not changed is sent, where there are many
_FEW_ROWS = 64  # up to so many are sent every time


class FollowedProcess:
    """Reads one ring file as long as its process lives, and once more."""

    def __init__(self, file: FoundFile, ring: RingFile, owner: Owner, origin: Origin, host: HostFolder) -> None:
        self.file, self.ring, self.owner, self.origin = file, ring, owner, origin
        self.folder = Folder.among(host, origin)
        self.kept = KeptProcess(ring, origin)
        self.reading: Reading | None = None
        self.is_over = False
        self.overdue = Overdue()
        self.usual_times = UsualTimes()
        self._usual = usual_detail(ring, owner.environment)
        self._asked = self._usual
        self._cost_ns = 0
        self._looks = 0
        self._shown: dict[int, tuple[int, ...]] = {}  # rows of the live table as they were sent last

    def resume(self, memory: FileMemory) -> None:
        """Go on where another reader of the same file ended."""
        records = self.ring.go_on(memory.position)
        live = Live(np.empty(0, PLACED_ROW), np.empty(0, wire.OPERATION), np.empty(0, wire.TRANSFER))
        level = int(self.ring.status()["level"])
        reading = Reading(self.ring.identity, self.ring.clock(), self.ring.communicators(), live, records, level)
        self.folder.relearn(reading, memory.folder)

    def memory(self, folder: FolderMemory) -> FileMemory:
        """Return what `resume` needs."""
        return FileMemory(self.ring.uid, self.origin, self.ring.position, folder)

    def read(self) -> Reading:
        """Return what is new. Once the lock is gone nothing more is written, so what is read then is all."""
        holder = self.ring.owner()
        if holder not in (None, self.owner.pid):
            raise BadRing(f"is held by process {holder}, and was by process {self.owner.pid}", file=self.ring.name)
        self.is_over = holder is None
        self.reading = take_reading(self.ring)
        return self.reading

    def turn(self, reading: Reading) -> tuple[Turn, pa.Table]:
        """Return its turn in folding, and the rows of communicators."""
        return self.folder.turn(reading, is_last=self.is_over, died=self.is_over)

    def show(self, reading: Reading, now_ns: int) -> Turn:
        """Return what is to be told of how far it has come, and note what is overdue; once a second."""
        self._judge(reading, now_ns)
        self._looks += 1
        if len(reading.live.rows) > _FEW_ROWS:
            live = replace(reading.live, rows=reading.live.rows[self._worth_telling(reading)])
            reading = replace(reading, live=live)
        return Turn(self.folder.member, reading)

    def look(self, now_ns: int) -> Array:
        """Return how far it has come with what is overdue, as PROGRESS; between two readings."""
        if self.reading is None:
            return np.empty(0, PROGRESS)
        reading = replace(self.reading, live=self.ring.live())
        self._judge(reading, now_ns)
        place, func, peer = wire.row_place(reading.live.rows["key"])
        peers = peer.astype(np.uint32).view(np.int32)
        rows = zip(place.tolist(), func.tolist(), peers.tolist(), strict=True)
        is_late = np.fromiter((row in self.overdue.rows for row in rows), bool, len(place))
        late = replace(reading.live, rows=reading.live.rows[is_late])
        return self.folder.look(replace(reading, live=late), now_ns)

    def ask(self, wishes: list[DetailWish]) -> None:
        """Ask for what is wished; when nothing is wished any more, for what it does by itself."""
        wanted = wanted_detail(wishes, self._usual, self.origin.job, self.ring.identity.world_rank)
        if wanted == self._asked:
            return
        self._asked = wanted
        try:
            self.ring.request(wanted.level, wanted.share, 0)
        except BadRing as error:
            _log.warning("detail cannot be asked for", error=str(error))

    def growth(self, elapsed_ns: int) -> int:
        """Return what the plugin has cost since the last time.

        The costs are the file's word; more than all its threads had of the time nobody can have spent.
        """
        before = self._cost_ns
        if self.reading:
            self._cost_ns = int(self.reading.clock.duration_ns(self.ring.callback_ticks()))
        return min(max(self._cost_ns - before, 0), elapsed_ns * len(self.ring.position))

    def close(self) -> None:
        """Let go of its file and of what is known of it."""
        self.folder.leave()
        self.ring.close()

    def _judge(self, reading: Reading, now_ns: int) -> None:
        operations = reading.live.operations
        self.overdue = self.usual_times.judge(
            operations, reading.clock.to_unix_ns(operations["enqueue_ticks"]), now_ns
        )

    def _worth_telling(self, reading: Reading) -> Array:
        """Return which of many rows are sent: those that changed, and the others in turns."""
        rows = reading.live.rows
        told = rows[["enqueued", "started", "done"]].tolist()
        places = rows["place"].tolist()
        is_new = [self._shown.get(place) != counts for place, counts in zip(places, told, strict=True)]
        self._shown = dict(zip(places, told, strict=True))
        is_open = rows["enqueued"] != rows["done"]
        has_turn = (rows["place"] + self._looks) % _QUIET_EVERY == 0
        worth: Array = np.array(is_new) | is_open | has_turn
        return worth


def usual_detail(ring: RingFile, environment: Environment) -> Detail:
    """Return what a process records by itself: as it does now, unless somebody asked or it was lowered.

    Then its environment says it, also when whoever asked has been killed and could not take it back.
    """
    status = ring.status()
    if status["stamp"] == 0 and status["lowered"] == wire.NOT_LOWERED:
        return Detail(int(status["level"]), min(int(status["share"]), WHOLE_SHARE))
    level = _LEVELS.get(environment.get("LOCKSTEP_DETAIL") or "steps", wire.STEPS)
    try:
        share = float(environment.get("LOCKSTEP_SAMPLE") or _USUAL_SHARE)
    except ValueError:
        share = _USUAL_SHARE
    return Detail(level, int(min(max(share, 0.0), 1.0) * WHOLE_SHARE))
