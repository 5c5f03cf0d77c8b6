"""Recorded NCCL callbacks as a capture: what Lockstep would have seen of that job."""

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from collector.nccl.aggregator import Aggregator
from collector.nccl.ringfile import RingFile, open_ring
from collector.nccl.snapshot import Losses, Reading, take_reading
from importers.traces.nccl_callbacks import Recording, Spooled, spool_traces
from lockstep.arrow import fill_rows
from lockstep.capture.files import CaptureInfo, CaptureWriter
from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput, NotPresent
from lockstep.tables import TABLE_BY_NAME, Table
from lockstep.topology import Gpu, Link, Nic, Node, Topology, checked

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
        named = {
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
        named |= {"LOCKSTEP_NCCL_VERSION": self.nccl} if self.nccl else {}
        return ours | named | ({"WORLD_SIZE": str(self.ranks)} if self.ranks else {})


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
        self._aggregator = Aggregator(recording.origin)
        self._tables: dict[str, list[pa.Table]] = defaultdict(list)
        self._snapshot_ns = 0

    def read_until(self, ts: int) -> None:
        """Read what is new at this recorded time."""
        now_ns = self._recording.header.unix_ns(ts)
        reading = self._read()
        self._keep(self._aggregator.fold(reading, now_ns))
        if now_ns >= self._snapshot_ns + NS_PER_S:
            self._snapshot_ns = now_ns
            self._keep({"progress": self._aggregator.progress(reading, now_ns)})

    def finish(self) -> Played:
        """Read what is left. Who hangs is no corpse: what it has open shows as progress."""
        now_ns = self._recording.snapshot_ns
        reading = self._read()
        self._keep(self._aggregator.finish(reading, now_ns, died=False))
        if now_ns > self._snapshot_ns:
            self._keep({"progress": self._aggregator.progress(reading, now_ns)})
        tables = {name: pa.concat_tables(rows) for name, rows in self._tables.items()}
        return Played(tables, self._aggregator.losses)

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
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-rings-") as rings,
        closing(_RingReader(recording, Path(rings))) as reader,
    ):
        _run_child(recording, player, Path(rings), reader)
        return reader.finish()


def _run_child(recording: Recording, player: Player, rings: Path, reader: _RingReader) -> None:
    command = [sys.executable, "-m", "importers.traces.replay", str(player.plugin), str(recording.file)]
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
        reader.read_until(int(line))
        child.stdin.write("\n")
        child.stdin.flush()
    return child.stderr.read().strip().splitlines()


_LIBRARY = Path(__file__).parents[2] / "nccl_plugin" / "build" / "liblockstep-nccl.so"
_ASSUMED_NIC = "eth0"
_ASSUMED_GBPS = 10.0  # traces do not tell; it is what Linux says of a virtual NIC
_SWITCH = "switch0"
_NEWEST_WINS = ("comms",)  # their rows come again when they change


def find_plugin(given: Path | None, environment: Mapping[str, str]) -> Path:
    """Return where the plugin is: where somebody says, else where a checkout builds it."""
    named = given or (Path(environment["LOCKSTEP_PLUGIN"]) if environment.get("LOCKSTEP_PLUGIN") else None)
    path = named or _LIBRARY
    if not path.is_file():
        raise NotPresent(f"there is no NCCL plugin at {path}: build it with `make plugin`, or name it with --plugin")
    return path.absolute()


def import_callbacks(files: list[Path], target: Path, plugin: Path, report: Callable[[int, int], None]) -> Losses:
    """Write a capture of the run that these files recorded; `report` gets how many ranks are done, of how many."""
    with tempfile.TemporaryDirectory(prefix="lockstep-trace-") as folder:
        spooled = spool_traces(files, Path(folder))
        with CaptureWriter(target) as writer:
            losses = _write_ranks(spooled, plugin, writer, report)
            _write(writer, "connections", connection_rows(spooled))
            writer.finish(describe(spooled), build_topology(spooled))
    return losses


def _write_ranks(spooled: Spooled, plugin: Path, writer: CaptureWriter, report: Callable[[int, int], None]) -> Losses:
    """Play all ranks, several at a time, and write their rows in the order of the ranks."""
    play = partial(play_recording, player=Player(plugin, spooled.about.nccl, spooled.about.ranks))
    losses = Losses()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for number, played in enumerate(pool.map(play, spooled.recordings), 1):
            for name, rows in played.tables.items():
                _write(writer, name, rows)
            losses = losses.plus(**vars(played.losses))
            report(number, len(spooled.recordings))
    return losses


def _write(writer: CaptureWriter, name: str, rows: pa.Table) -> None:
    table = TABLE_BY_NAME[name]
    writer.write(table, without_repeats(table, rows))


def without_repeats(table: Table, rows: pa.Table) -> pa.Table:
    """Return one row per key: the newest where rows have versions, else the first.

    Before v4 NCCL gives communicators no id, so that operations of several of them may have the same name.
    """
    if not table.key or rows.num_rows < 2:
        return rows
    numbered = rows.select(list(table.key)).append_column("_row", pa.array(np.arange(rows.num_rows)))
    which = "max" if table.name in _NEWEST_WINS else "min"
    kept = numbered.group_by(list(table.key), use_threads=False).aggregate([("_row", which)])
    return rows.take(kept[f"_row_{which}"].combine_chunks().sort())


def connection_rows(spooled: Spooled) -> pa.Table:
    """Return which NIC each rank uses, where the trace says it."""
    known = [recording.origin for recording in spooled.recordings if recording.origin.nic]
    columns: dict[str, object] = {"job": spooled.about.run, "attempt": 0, "local": "", "remote": ""}
    columns |= {"source": "only_nic", "confidence": 0.9}  # that nothing else carried anything is not proven
    columns["direction"] = pa.array(["send", "recv"] * len(known), pa.string())
    for name in ("host", "transport", "nic"):
        columns[name] = pa.array([getattr(origin, name) for origin in known for _ in "sr"], pa.string())
    return fill_rows(TABLE_BY_NAME["connections"], 2 * len(known), columns)


def describe(spooled: Spooled) -> CaptureInfo:
    hosts = sorted({recording.origin.host for recording in spooled.recordings}, key=lambda host: (len(host), host))
    run, layout = spooled.about.run, spooled.about.layout
    return CaptureInfo(job=run, start_ns=spooled.start_ns, end_ns=spooled.end_ns, layout=layout, hosts=tuple(hosts))


def build_topology(spooled: Spooled) -> Topology:
    """Return the least that must be there: every host with its GPUs and one NIC, all NICs on one switch."""
    nic = spooled.about.nic or _ASSUMED_NIC
    hosts = describe(spooled).hosts
    gpus = {host: [r.origin.gpu for r in spooled.recordings if r.origin.host == host] for host in hosts}
    nodes = tuple(
        Node(
            id=host,
            kind="host",
            nics=(Nic(id=nic),),
            gpus=tuple(Gpu(id=f"gpu{index}", index=index, nics=(nic,)) for index in gpus[host]),
        )
        for host in hosts
    )
    links = tuple(
        Link(id=f"{host}/{nic}--{_SWITCH}", a=f"{host}/{nic}", b=_SWITCH, gbps=_ASSUMED_GBPS) for host in hosts
    )
    return checked(
        Topology(routing="static", nodes=(*nodes, Node(id=_SWITCH, kind="switch", tier="leaf")), links=links)
    )
