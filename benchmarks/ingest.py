"""The way in: what a callback of the plugin costs, and how rows get from a ring file to a query, and at what cost.

Eight ranks without a GPU call the real plugin 200 operations a second each, with transfers and steps; a real
collector with all its sources, a real gateway and a real ClickHouse server take it from there, each a process of its
own. A row's delay runs from its operation's enqueueing to the first query that sees it. CPU time is the processes'
own, so that neighbours on the machine do not count.

A callback's cost is that to the thread which NCCL calls it on, beside the least any recorder pays:
nccl_plugin/tests/bench.c plays the callbacks and the limit (one reading of the processor's counter and one store of
64 bytes into a ring of the same size, called in the same way) in turns on the same threads, so that a ratio compares
two figures of one run. Time is the threads' own CPU time: four threads may share fewer cores, and neighbours do not
count.
"""

import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.figures import Figure, Note, scratch
from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from lockstep.store.store import Store
from tests.testbed.pipeline import Pipeline
from tests.testbed.ranks import Pace, Ranks, build_ranks
from tests.testbed.services import cpu_seconds, resident_bytes

_RANKS, _PER_SECOND = 8, 200
_WARM_UP_S = 5
_POLL_S = 0.1
_TABLES = ("collectives", "transfers", "step_samples", "op_stats", "transfer_stats", "progress", "comms")
_MB = 1 << 20


@dataclass(frozen=True)
class _Costs:
    """CPU seconds and rows so far."""

    collector_s: float
    gateway_s: float
    store_s: float
    rows: int
    bytes_sent: float
    at_s: float


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return delay, CPU and memory of the way in."""
    seconds = 10 if quick else 60
    pace = Pace(_PER_SECOND, _PER_SECOND * (seconds + 3 * _WARM_UP_S), channels=4, steps=4)
    with scratch() as directory:
        rings = directory / "rings"
        rings.mkdir()
        note("building the plugin and what plays a rank against it")
        build_ranks(directory)
        note("starting ClickHouse, gateway and collector")
        with (
            Pipeline(directory, rings, directory / "collector", sources=()) as pipeline,
            pipeline.open_store() as store,
        ):
            with Ranks(directory, rings, _RANKS, pace):
                time.sleep(_WARM_UP_S)
                note(f"{_RANKS} ranks do {_PER_SECOND} operations a second each, for {seconds} s")
                before = _costs(pipeline, store)
                delays_s = _watch_delays(store, seconds)
                after = _costs(pipeline, store)
                memory_mb = resident_bytes(pipeline.collector.pid) / _MB
            dropped = pipeline.metric("dropped_rows_total")
    return _figures(before, after, delays_s, memory_mb, dropped)


def _figures(
    before: _Costs, after: _Costs, delays_s: list[float], memory_mb: float, dropped: float
) -> tuple[Figure, ...]:
    elapsed_s, rows = after.at_s - before.at_s, after.rows - before.rows
    collector_s = after.collector_s - before.collector_s
    head_s = after.gateway_s + after.store_s - before.gateway_s - before.store_s
    p50, p99 = np.percentile(delays_s, [50, 99])
    sent = (after.bytes_sent - before.bytes_sent) / elapsed_s / 1000
    operations = _RANKS * _PER_SECOND
    return (
        Figure("delay from ring to query, median", p50, "s", reference=f"{len(delays_s):,} rows"),
        Figure("delay from ring to query, 99th percentile", p99, "s", 5, 2, False),
        Figure("rows of one host", rows / elapsed_s, "rows/s", 2_000, None, False, f"{operations:,} operations/s"),
        Figure("sent by one host", sent, "KB/s", 100, None, False),
        Figure("collector, all sources", 100 * collector_s / elapsed_s, "% of a core", 3, 1, False),
        Figure("collector per million rows", 1e6 * collector_s / rows, "CPU s"),
        Figure("gateway and store per million rows", 1e6 * head_s / rows, "CPU s"),
        Figure("collector's memory", memory_mb, "MB", 150, None, False, "resident, without scapy"),
        Figure("rows lost", dropped, "rows", 0, None, False),
    )


def _watch_delays(store: Store, seconds: int) -> list[float]:
    """Return how old rows of the first rank are when a query first sees them."""
    delays: list[float] = []
    deadline = time.monotonic() + seconds
    seen = int(store.query("SELECT max(seq) AS n FROM collectives WHERE rank = 0")["n"][0].as_py())
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        found = store.query(
            "SELECT seq, enqueue_ns AS ns FROM collectives WHERE rank = 0 AND seq > {seen:UInt64}", {"seen": seen}
        )
        now_ns = time.time_ns()
        delays += [(now_ns - ns) / NS_PER_S for ns in found["ns"].to_pylist()]
        seen = max([seen, *found["seq"].to_pylist()])
    return delays


def _costs(pipeline: Pipeline, store: Store) -> _Costs:
    return _Costs(
        collector_s=cpu_seconds(pipeline.collector.pid),
        gateway_s=cpu_seconds(pipeline.gateway.pid),
        store_s=cpu_seconds(pipeline.store_server.pid),
        rows=sum(int(store.query(f"SELECT count() AS n FROM {table}")["n"][0].as_py()) for table in _TABLES),
        bytes_sent=pipeline.metric("sent_bytes_total"),
        at_s=time.monotonic(),
    )


_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - only the parent of a directory of our own
_LIMIT_FLOOR, _LIMIT_GOAL = 4.0, 2.0  # times the limit
_NAMES = {
    "operation": "an operation is enqueued",
    "transfer": "a transfer",
    "unsampled-step": "a step that is not sampled",
    "sampled-step": "a sampled step",
    "kernel-channel": "a kernel's channel",
    "all-reduce": "all of an all-reduce",
}
_Callbacks = dict[tuple[str, int], list[tuple[float, float]]]


def measure_plugin(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return nanoseconds per callback of every kind on one thread and on four, and the worst ratio to the limit."""
    rounds = 30 if quick else 200
    with scratch() as folder:
        note("building the plugin and what plays NCCL against it")
        build_ranks(folder)
        note(f"playing {rounds} rounds of callbacks, on one thread and on four")
        costs = play(folder, rounds)
    return tuple(_callback_figures(costs))


def play(folder: Path, rounds: int) -> _Callbacks:
    """Return nanoseconds per callback and of the limit, one pair per round, by kind and number of threads."""
    with _ring_directory() as rings:
        output = _run(
            str(folder / "bench"), str(folder / "liblockstep-nccl.so"), str(rounds), LOCKSTEP_RING_DIR=rings
        )
    costs: _Callbacks = defaultdict(list)
    for line in output.splitlines():
        kind, threads, callback_ns, limit_ns = line.split()
        costs[kind, int(threads)].append((float(callback_ns), float(limit_ns)))
    return dict(costs)


@contextmanager
def _ring_directory() -> Iterator[str]:
    """Lend a directory in shared memory, where ring files are in production, or else wherever there is room."""
    parent = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=parent) as folder:
        yield folder


def _run(*command: str, **environment: str) -> str:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    done = subprocess.run(command, capture_output=True, text=True, env=ours | environment)
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines()
        raise NotPresent(f"the plugin cannot be measured here: {command[0]}: {lines[-1] if lines else 'no output'}")
    return done.stdout


def _callback_figures(costs: _Callbacks) -> Iterator[Figure]:
    worst: dict[int, float] = {}
    for (kind, threads), pairs in sorted(
        costs.items(), key=lambda item: (item[0][1], list(_NAMES).index(item[0][0]))
    ):
        callback, limit = (median(column) for column in zip(*pairs, strict=True))
        ratio = median(ours / least for ours, least in pairs)
        worst[threads] = max(ratio, worst.get(threads, 0.0))
        name = f"{_NAMES[kind]}, {_on(threads)}"
        beside = f"limit {limit:.1f} ns, {ratio:.2f} times"
        yield Figure(name, callback, "ns per callback", _LIMIT_FLOOR * limit, _LIMIT_GOAL * limit, False, beside)
    for threads, ratio in worst.items():
        name = f"dearest kind, {_on(threads)}"
        yield Figure(name, ratio, "times the limit", _LIMIT_FLOOR, _LIMIT_GOAL, False, "counter and 64-byte store")


def _on(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"
