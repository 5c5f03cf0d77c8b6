"""One recorded rank through the plugin: a child process plays it, and its ring is read as a collector would."""

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.intake.spooling import Recording
from lockstep.rings.folding import Folder, Losses, Reading, take_reading
from lockstep.rings.ringfile import RingFile, open_ring

_PACKAGES = Path(__file__).parents[2]
# By these a process knows who it is in its job; a recorded rank is somebody else than we are.
_IDENTITY = ("LOCKSTEP_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "PBS_", "LSB_", "JOB_NAME", "NCCL_")


@dataclass(frozen=True)
class Player:
    """How recordings are played: the plugin, the NCCL that it shall see, and how many ranks there are."""

    plugin: Path
    nccl: str | None = None
    ranks: int | None = None

    def environment(self, recording: Recording, rings: Path) -> dict[str, str]:
        """Return what the child process finds: full detail, no limits, and who it was."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(_IDENTITY)}
        told = {
            "PYTHONPATH": os.pathsep.join([str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "LOCKSTEP_RING_DIR": str(rings),
            "LOCKSTEP_HOST": recording.origin.host,
            "LOCKSTEP_JOB": recording.origin.job,
            "LOCKSTEP_DETAIL": "steps",
            "LOCKSTEP_SAMPLE": "1",
            "LOCKSTEP_KERNEL": "on",
            "LOCKSTEP_BUDGET": "0",
            "RANK": str(recording.rank),
            "LOCAL_RANK": str(recording.origin.gpu),
        }
        told |= {"LOCKSTEP_NCCL_VERSION": self.nccl} if self.nccl else {}
        return ours | told | ({"WORLD_SIZE": str(self.ranks)} if self.ranks else {})


@dataclass(frozen=True)
class Played:
    """What a rank's ring held: rows by table, and what has none."""

    tables: dict[str, pa.Table]
    losses: Losses


class _RingReader:
    """Reads the ring of a process that plays, and folds what is in it."""

    def __init__(self, recording: Recording, rings: Path) -> None:
        self._recording, self._rings = recording, rings
        self._ring: RingFile | None = None
        self._folder = Folder(recording.origin)
        self._tables: dict[str, list[pa.Table]] = defaultdict(list)
        self._looked_ns = 0

    def look(self, ts: int) -> None:
        """Read what is new at this recorded time."""
        now_ns = self._recording.header.unix_ns(ts)
        reading = self._read()
        self._keep(self._folder.fold(reading, now_ns))
        if now_ns >= self._looked_ns + NS_PER_S:
            self._looked_ns = now_ns
            self._keep({"progress": self._folder.progress(reading, now_ns)})

    def finish(self) -> Played:
        """Read what is left. Who hangs is no corpse: what it has open shows as progress."""
        now_ns = self._recording.looked_ns
        reading = self._read()
        self._keep(self._folder.finish(reading, now_ns, died=False))
        if now_ns > self._looked_ns:
            self._keep({"progress": self._folder.progress(reading, now_ns)})
        tables = {name: pa.concat_tables(rows) for name, rows in self._tables.items()}
        return Played(tables, self._folder.losses)

    def close(self) -> None:
        if self._ring:
            self._ring.close()

    def _read(self) -> Reading:
        if self._ring is None:
            files = list(self._rings.glob("*.ring"))
            if len(files) != 1:
                raise BadInput(f"the plugin made {len(files)} ring files for rank {self._recording.rank}, not one")
            self._ring = open_ring(files[0])
        return take_reading(self._ring)

    def _keep(self, tables: dict[str, pa.Table]) -> None:
        for name, rows in tables.items():
            self._tables[name].append(rows)


def play_recording(recording: Recording, player: Player) -> Played:
    """Return all rows of one recorded rank; BadInput says why the plugin would not play."""
    with tempfile.TemporaryDirectory(prefix="lockstep-rings-") as rings:
        reader = _RingReader(recording, Path(rings))
        try:
            _run_child(recording, player, Path(rings), reader)
            return reader.finish()
        finally:
            reader.close()


def _run_child(recording: Recording, player: Player, rings: Path, reader: _RingReader) -> None:
    command = [sys.executable, "-m", "lockstep.intake.replay", str(player.plugin), str(recording.file)]
    with subprocess.Popen(
        command,
        env=player.environment(recording, rings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        complaints = _converse(child, reader)
    if child.returncode:
        why = complaints[-1] if complaints else f"it ended with code {child.returncode}"
        raise BadInput(f"rank {recording.rank} cannot be played through {player.plugin}: {why}")


def _converse(child: subprocess.Popen[str], reader: _RingReader) -> list[str]:
    """Answer the child until it ends; return what it complains about."""
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise AssertionError("all three are pipes")
    for line in child.stdout:
        reader.look(int(line))
        child.stdin.write("\n")
        child.stdin.flush()
    return child.stderr.read().strip().splitlines()
