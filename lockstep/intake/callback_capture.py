"""Recorded NCCL callbacks as a capture: what Lockstep would have seen of that job."""

import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from lockstep.arrow import fill_rows
from lockstep.capture.contents import CaptureInfo
from lockstep.capture.writing import CaptureWriter
from lockstep.errors import NotPresent
from lockstep.intake.playing import Played, Player, play_recording
from lockstep.intake.spooling import Recording, Spooled, spool_traces
from lockstep.rings.folding import Losses
from lockstep.tables import TABLE_BY_NAME, Table
from lockstep.topology import Gpu, Link, Nic, Node, Topology, checked

_LIBRARY = Path(__file__).parents[2] / "nccl_plugin" / "build" / "liblockstep-nccl.so"
_ASSUMED_NIC = "eth0"
_ASSUMED_GBPS = 10.0  # traces do not tell; it is what Linux says of a virtual NIC
_SWITCH = "switch0"
_NEWEST_WINS = ("comms",)  # their rows come again when they change


def find_plugin(given: Path | None, environment: Mapping[str, str]) -> Path:
    """Return where the plugin is: where somebody says, else where a checkout builds it."""
    told = given or (Path(environment["LOCKSTEP_PLUGIN"]) if environment.get("LOCKSTEP_PLUGIN") else None)
    path = told or _LIBRARY
    if not path.is_file():
        raise NotPresent(f"there is no NCCL plugin at {path}: build it with `make plugin`, or name it with --plugin")
    return path.absolute()


def import_callbacks(files: list[Path], target: Path, plugin: Path, tell: Callable[[int, int], None]) -> Losses:
    """Write a capture of the run that these files recorded; `tell` hears how many ranks are done, of how many."""
    with tempfile.TemporaryDirectory(prefix="lockstep-trace-") as folder:
        spooled = spool_traces(files, Path(folder))
        with CaptureWriter(target) as writer:
            losses = _write_ranks(spooled, plugin, writer, tell)
            _write(writer, "connections", connection_rows(spooled))
            writer.finish(describe(spooled), build_topology(spooled))
    return losses


def _write_ranks(spooled: Spooled, plugin: Path, writer: CaptureWriter, tell: Callable[[int, int], None]) -> Losses:
    """Play all ranks, several at a time, and write their rows in the order of the ranks."""
    player = Player(plugin, spooled.about.nccl, spooled.about.ranks)
    losses = Losses()

    def play(recording: Recording) -> Played:
        return play_recording(recording, player)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for number, played in enumerate(pool.map(play, spooled.recordings), 1):
            for name, rows in played.tables.items():
                _write(writer, name, rows)
            losses = losses.plus(**vars(played.losses))
            tell(number, len(spooled.recordings))
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
    columns: dict[str, object] = {
        "host": pa.array([origin.host for origin in known for _ in "sr"], pa.string()),
        "job": spooled.about.run,
        "attempt": 0,
        "direction": pa.array(["send", "recv"] * len(known), pa.string()),
        "transport": pa.array([origin.transport for origin in known for _ in "sr"], pa.string()),
        "nic": pa.array([origin.nic for origin in known for _ in "sr"], pa.string()),
        "local": "",
        "remote": "",
        "source": "only_nic",
        "confidence": 0.9,  # the recorder named it; that nothing else carried anything is not proven
    }
    return fill_rows(TABLE_BY_NAME["connections"], 2 * len(known), columns)


def describe(spooled: Spooled) -> CaptureInfo:
    hosts = sorted({recording.origin.host for recording in spooled.recordings}, key=lambda host: (len(host), host))
    return CaptureInfo(
        job=spooled.about.run,
        start_ns=spooled.start_ns,
        end_ns=spooled.end_ns,
        layout=spooled.about.layout,
        hosts=tuple(hosts),
    )


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
