"""One window of telemetry of a very large job, made from a simulation of a small one.

Simulating 65,536 ranks takes longer than analysing them. So a job of 24 hosts is simulated, and the hosts in the
middle of its rings are repeated until the job has as many ranks as are wanted: rows keep all their columns, waits and
noise, while hosts, communicators, ranks and peers get the names they would have. What is wrong stays on the first
hosts, far from the repeated ones. Tensor parallel groups live inside a host; each GPU of a host is in one ring over
all hosts.
"""

import contextlib
import io
import logging
import pickle
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.windows.window import Window
from importers.traces.flight_recorder import parse_flight_recorder
from importers.traces.readings import Reading
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Topology
from simulator.faults import parse_fault
from simulator.rows import Identity
from simulator.scenario import ClusterShape, Doing, JobShape, Layout, Scenario, Telemetry, build_topology
from simulator.simulation import Simulation
from simulator.telemetry import SimulatedTelemetry

GPUS = 8
WINDOW_S = 5
START_NS = 1_700_000_000 * NS_PER_S
SLOW, HUNG, HEALTHY = "slow", "hung", "healthy"
# All names of what is broken: in a ring a NIC has one peer, so that the wire between the two is as right.
RIGHT = {
    SLOW: {"nic:h3/eth3", "link:h3/eth3--leaf0", "link:h3/eth3--h4/eth3"},
    HUNG: {"host:h3", "rank:27", "gpu:h3/3"},
    HEALTHY: set[str](),
}
_FAULTS = {SLOW: ("at 0 s fail nic:h3/eth3 tx to 25 %",), HUNG: ("at 2 s fail rank:27 absent",), HEALTHY: ()}
_SECONDS = {SLOW: 6, HUNG: 9, HEALTHY: 6}  # a window and what comes before it; a hang takes a while to stand out
_SEED = 1
_HOSTS, _PERIOD = 24, 8  # simulated; those from _PERIOD on are repeated, as many at a time
_NOT_REPEATED = frozenset({"step_samples", "fabric_counters", "paths"})  # sampled too rarely, or not of hosts
_INVENTORIES = frozenset({"comms", "connections"})
_STATISTICS = ("comms", "op_stats", "transfer_stats", "agents")  # what a million ranks are judged from
_ROWS_PER_INSERT = 400_000
_LAYER = (Doing(do="compute", ms=100.0), Doing(do="AllReduce", mb=64, group="tp"))
_STEP = (
    *_LAYER * 4,
    Doing(do="ReduceScatter", mb=8, group="dp", times=2),
    Doing(do="AllGather", mb=8, group="dp", times=2),
)


@dataclass(frozen=True)
class Scene:
    """What to make: how many ranks, what is wrong, and whether only statistics are there."""

    ranks: int
    trouble: str
    only_statistics: bool = False

    @property
    def hosts(self) -> int:
        return self.ranks // GPUS


@dataclass(frozen=True)
class Small:
    """The simulated job: its rows, and which of its communicators are rings over hosts."""

    tables: Mapping[str, pa.Table]
    rings: np.ndarray
    window: Window


def fill_store(store: Store, scene: Scene) -> None:
    """Put one window of the telemetry of a scene into a store."""
    small = simulate(scene.trouble)
    begin_ns = begin_of(scene, small.window)
    for name, rows in small.tables.items():
        if name in _NOT_REPEATED or (scene.only_statistics and name not in _STATISTICS):
            continue
        for number, part in enumerate(repeat_hosts(_since(begin_ns, name, rows), scene.hosts, small.rings)):
            store.insert(TABLE_BY_NAME[name], part, f"{name}/{number}")


def begin_of(scene: Scene, window: Window) -> int:
    """Return from when on there is telemetry; how fast a job was that hangs is only known from before it did."""
    if scene.trouble == HUNG:
        return START_NS
    return window.end_ns - NS_PER_S if scene.only_statistics else window.start_ns


def _since(begin_ns: int, name: str, rows: pa.Table) -> pa.Table:
    """Return the rows of a table from a moment on; who takes part and how they are connected was told before."""
    if name in _INVENTORIES:
        return rows
    return rows.filter(pc.greater_equal(rows[TABLE_BY_NAME[name].time], begin_ns))


def scene_topology(scene: Scene) -> Topology | None:
    """Return the fabric of a scene; a million NICs are judged without, from what the rows say of them."""
    return None if scene.only_statistics else build_topology(_cluster(scene.hosts))


def simulate(trouble: str) -> Small:
    """Run the small job and return all its rows."""
    scenario = Scenario(
        name="bench",
        summary="a sharded job",
        duration_s=_SECONDS[trouble],
        cluster=_cluster(_HOSTS),
        job=JobShape(layout=Layout(tp=GPUS), step=_STEP),
        telemetry=Telemetry(sample=0.25),
        timeline=tuple(parse_fault(fault) for fault in _FAULTS[trouble]),
    )
    telemetry, tables = record(scenario)
    comms = tables["comms"].filter(pc.equal(tables["comms"]["nranks"], _HOSTS))
    end_ns = telemetry.watermark_ns
    return Small(tables, np.unique(comms["comm"].to_numpy()), Window(end_ns - WINDOW_S * NS_PER_S, end_ns))


def record(scenario: Scenario) -> tuple[SimulatedTelemetry, dict[str, pa.Table]]:
    """Run a scenario to its end and return all its rows."""
    telemetry = SimulatedTelemetry(Simulation(scenario, _SEED), Identity("bench", START_NS), heartbeats=True)
    parts: dict[str, list[pa.Table]] = {}
    for second in range(1, int(scenario.duration_s) + 1):
        for name, rows in telemetry.advance(START_NS + second * NS_PER_S).items():
            parts.setdefault(name, []).append(rows)
    return telemetry, {name: pa.concat_tables(rows) for name, rows in parts.items()}


def replaced(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:  # Any: arrays of Arrow or of numpy
    """Return the rows with those of the columns that they have replaced."""
    for name in columns.keys() & set(rows.column_names):
        field = rows.schema.field(name)
        rows = rows.set_column(rows.column_names.index(name), field, pa.array(columns[name]).cast(field.type))
    return rows


def repeat_hosts(rows: pa.Table, hosts: int, rings: np.ndarray) -> Iterator[pa.Table]:
    """Yield the rows of a job of that many hosts, from those of the small one, in parts of a bounded size.

    `rings`: communicators with one rank on each host; all others have theirs on one host.
    """
    home = np.array([int(host[1:]) for host in rows["host"].to_pylist()], np.int64)
    head, tail = np.flatnonzero(home < _PERIOD), np.flatnonzero(home >= 2 * _PERIOD)
    middle = np.flatnonzero((home >= _PERIOD) & (home < 2 * _PERIOD))
    ends = np.concatenate([head, tail])
    yield _moved(rows.take(ends), np.where(home[ends] < _PERIOD, 0, hosts - _HOSTS), hosts, rings)
    copies = (hosts - 2 * _PERIOD) // _PERIOD
    at_once = max(_ROWS_PER_INSERT // max(len(middle), 1), 1)
    for first in range(0, copies, at_once):
        those = np.arange(first, min(first + at_once, copies))
        block = rows.take(np.tile(middle, len(those)))
        yield _moved(block, np.repeat(those * _PERIOD, len(middle)), hosts, rings)


def _moved(rows: pa.Table, shift: np.ndarray, hosts: int, rings: np.ndarray) -> pa.Table:
    """Return the rows as those of hosts so much further on."""
    names = pa.array([f"h{number}" for number in range(hosts)])
    host = np.array([int(name[1:]) for name in rows["host"].to_pylist()], np.int64) + shift
    changed: dict[str, pa.Array | np.ndarray] = {"host": names.take(pa.array(host))}
    if "comm" in rows.column_names:
        changed |= _moved_in_groups(rows, shift, hosts, np.isin(rows["comm"].to_numpy(), rings))
    if "world_rank" in rows.column_names:
        changed["world_rank"] = rows["world_rank"].to_numpy() + GPUS * shift
    if "gpu_uuid" in rows.column_names:
        gpu = rows["gpu"].cast(pa.string())
        changed["gpu_uuid"] = pc.binary_join_element_wise("GPU", changed["host"], gpu, "-")
    return replaced(rows, changed)


def _moved_in_groups(rows: pa.Table, shift: np.ndarray, hosts: int, in_ring: np.ndarray) -> dict[str, np.ndarray]:
    comm = rows["comm"].to_numpy()
    rank = rows["rank"].to_numpy().astype(np.int64)
    moved = {
        "comm": np.where(in_ring, comm, comm + shift.astype(np.uint64)),
        "rank": np.where(in_ring, rank + shift, rank),
    }
    for column in {"peer", "head_peer"} & set(rows.column_names):
        peer = rows[column].to_numpy(zero_copy_only=False)
        away = (peer - rank + _HOSTS // 2) % _HOSTS - _HOSTS // 2
        there = np.where(in_ring & (peer >= 0), (rank + shift + away) % hosts, peer)
        moved[column] = pa.array(there, from_pandas=True)
    for column in {"nranks", "nnodes"} & set(rows.column_names):
        moved[column] = np.where(in_ring, hosts, rows[column].to_numpy())
    return moved


def _cluster(hosts: int) -> ClusterShape:
    return ClusterShape(
        hosts=hosts, gpus_per_host=GPUS, nics_per_host=GPUS, hosts_per_leaf=_PERIOD, spines=8, nic_gbps=400.0
    )


PREFIX = "trace_rank_"
ABSENT = 27
_STEPS = 10  # before the hang; the recorder's buffer holds 2,000 operations, which would be kinder to us
_LAYERS = 4
_WORDS = {"tp": "nccl:all_reduce", "dp": "nccl:_all_gather_base"}

Json = dict[str, Any]  # Any: what a dump holds


@dataclass(frozen=True)
class PeerCost:
    """What their analyser took for a hang, and the ranks that it calls missing."""

    ranks: int
    cpu_s: float
    named: frozenset[int]


def write_dumps(folder: Path, ranks: int) -> None:
    """Write one dump a rank."""
    for rank in range(ranks):
        with (folder / f"{PREFIX}{rank}").open("wb") as file:
            pickle.dump(_dump(rank, ranks), file, protocol=2)


def run_their_analyser(folder: Path, ranks: int) -> PeerCost:
    """Read and analyse the dumps as torchfrtrace does, in this process; importing torch is not counted."""
    from torch.distributed.flight_recorder import fr_trace  # takes seconds, and only this function needs it

    printed = io.StringIO()
    logging.getLogger("Flight Recorder").handlers = [logging.StreamHandler(printed)]
    begin = time.process_time()
    with contextlib.redirect_stdout(printed):
        fr_trace.main([str(folder), "--prefix", PREFIX])
    return PeerCost(ranks, time.process_time() - begin, find_missing(printed.getvalue()))


def find_missing(printed: str) -> frozenset[int]:
    """Return all ranks that their analyser calls missing in some operation.

    >>> sorted(find_missing("missing ranks: {29, 3}, missing ranks: {7}"))
    [3, 7, 29]
    """
    groups = re.findall(r"missing ranks: \{([\d, ]*)\}", printed)
    return frozenset(int(rank) for group in groups for rank in group.split(",") if rank.strip())


def read_dumps(folder: Path) -> Reading:
    """Return the dumps as rows of ours."""
    return parse_flight_recorder({file.name: file.read_bytes() for file in sorted(folder.iterdir())}, "bench")


def _dump(rank: int, ranks: int) -> Json:
    groups = {f"tp{rank // GPUS}": _mates(rank), f"dp{rank % GPUS}": range(rank % GPUS, ranks, GPUS)}
    config = {name: {"name": name, "desc": name, "ranks": str(list(those))} for name, those in groups.items()}
    entries = list(_entries(rank))
    dump: Json = {"version": "2.10", "nccl_version": "2.27.3", "pg_config": config, "entries": entries}
    return dump | {"pg_status": _status(entries)}


def _mates(rank: int) -> range:
    first = rank // GPUS * GPUS
    return range(first, first + GPUS)


def _entries(rank: int) -> Iterator[Json]:
    """Yield what a rank has enqueued: whole steps, then as much of the next one as it came to."""
    counts = {"tp": 0, "dp": 0}
    step = ["tp"] * _LAYERS + ["dp"] * 2
    whole = step * _STEPS
    if rank == ABSENT:
        last: list[str] = []
    else:
        last = step[:1] if rank in _mates(ABSENT) else step[: _LAYERS + 1]
    for number, kind in enumerate([*whole, *last]):
        counts[kind] += 1
        is_open = number == len(whole) + len(last) - 1 and bool(last)
        yield _entry(rank, number, kind, counts[kind], "started" if is_open else "completed")


def _entry(rank: int, number: int, kind: str, seq: int, state: str) -> Json:
    group = f"tp{rank // GPUS}" if kind == "tp" else f"dp{rank % GPUS}"
    entry: Json = {"record_id": number, "pg_id": 0 if kind == "tp" else 1, "process_group": (group, group)}
    entry |= {"collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "is_p2p": False, "frames": []}
    entry |= {"profiling_name": _WORDS[kind], "time_created_ns": START_NS + 100_000_000 * number, "state": state}
    entry |= {"input_sizes": [[4096, 4096]], "input_dtypes": ["BFloat16"], "timeout_ms": 600_000}
    return entry | {"output_sizes": [[4096, 4096]], "output_dtypes": ["BFloat16"], "retired": state == "completed"}


def _status(entries: list[Json]) -> Json:
    found: Json = {}
    for entry in entries:
        status = found.setdefault(str(entry["pg_id"]), {"last_completed_collective": 0})
        status["last_enqueued_collective"] = status["last_started_collective"] = entry["collective_seq_id"]
        if entry["state"] == "completed":
            status["last_completed_collective"] = entry["collective_seq_id"]
    return found
