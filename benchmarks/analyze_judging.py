"""Judges one window in a process of its own, so that its CPU time and its peak of memory are its own."""

import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from analyzer.diagnosis import diagnose
from analyzer.following import Followed, FollowOptions, take_look
from analyzer.incidents import TrackingOptions
from analyzer.jobs import find_jobs, find_reports
from analyzer.looks import window_at
from analyzer.roster import read_roster
from benchmarks.analyze_peer import PeerCost, read_dumps, run_their_analyser, write_dumps
from benchmarks.analyze_window import HUNG, START_NS, Scene, fill_store, scene_topology
from lockstep.store.layout import Layout
from lockstep.store.migrations import migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex

_Made = TypeVar("_Made")
_ENGINE_BYTES = 8 << 30  # of memory that the embedded engine may take: a server would have more


@dataclass(frozen=True)
class Cost:
    """What judging a window took, and what it said."""

    scene: Scene
    named: tuple[str, ...]
    cpu_s: float
    wall_s: float
    peak_mb: float
    rows: int


def in_own_process(task: Callable[..., _Made], *arguments: object) -> _Made:
    """Return what a task makes in a fresh process: its CPU time and its memory are its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(task, *arguments).result()


def judge_window(store: Store, topology: TopologyIndex | None) -> list[str]:
    """Return the parts that one look names at the job in a store: all that the service does once a window is closed.

    Which jobs there are, who takes part and how far hosts have reported is asked each time, as the service does it;
    what looks before learnt is not known. One look is enough to tell, since no second one follows.
    """
    options = FollowOptions(tracking=TrackingOptions(confirm_looks=1))
    named: list[str] = []
    for span in find_jobs(store, 0):
        roster = read_roster(store, span.job, span.attempt)
        silent = roster.hosts - find_reports(store, roster.hosts, 0).keys()
        window = window_at(span.last_ns + 1, span.first_ns, None, options.looks)
        outcome = take_look(store, span, window, Followed(), (roster, silent, topology), options)
        named += [incident.verdict.component for incident in outcome.changed]
    return named


def measure_scene(scene: Scene) -> Cost:
    """Make the telemetry of a scene, then judge it, each in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="lockstep-analyze-") as folder:
        rows = in_own_process(_fill, scene, Path(folder))
        return in_own_process(_judge, scene, Path(folder), rows)


def measure_dumps(ranks: int) -> tuple[Cost, PeerCost]:
    """Let our analyzer and theirs read the same dumps of a hang."""
    with tempfile.TemporaryDirectory(prefix="lockstep-dumps-") as dumps:
        write_dumps(Path(dumps), ranks)
        return in_own_process(_judge_dumps, Path(dumps), ranks), in_own_process(
            run_their_analyser, Path(dumps), ranks
        )


def _fill(scene: Scene, folder: Path) -> int:
    with open_store(f"chdb://{folder}", memory_bytes=_ENGINE_BYTES) as store:
        migrate(store, Layout(store.database), START_NS)
        fill_store(store, scene)
        counted = store.query(
            "SELECT sum(rows) AS rows FROM system.parts WHERE active AND database = currentDatabase()"
        )
        return int(counted["rows"][0].as_py() or 0)


def _judge_dumps(dumps: Path, ranks: int) -> Cost:
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-analyze-") as folder,
        open_store(f"chdb://{folder}", memory_bytes=_ENGINE_BYTES) as store,
    ):
        migrate(store, Layout(store.database), START_NS)
        cpu, wall = time.process_time(), time.perf_counter()
        tables = read_dumps(dumps).tables()
        for name, rows in tables.items():
            store.insert(TABLE_BY_NAME[name], rows, name)
        named = [incident.verdict.component for incident in diagnose(store, None, FollowOptions())]
        cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    count = sum(rows.num_rows for rows in tables.values())
    return Cost(Scene(ranks, HUNG), tuple(named), cpu_s, wall_s, _peak_mb(), count)


def _judge(scene: Scene, folder: Path, rows: int) -> Cost:
    fabric = scene_topology(scene)
    topology = TopologyIndex(fabric) if fabric else None
    with open_store(f"chdb://{folder}", memory_bytes=_ENGINE_BYTES) as store:
        judge_window(store, topology)  # a service that runs has its libraries loaded and its files cached
        cpu, wall = time.process_time(), time.perf_counter()
        named = judge_window(store, topology)
        cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    return Cost(scene, tuple(named), cpu_s, wall_s, _peak_mb(), rows)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
