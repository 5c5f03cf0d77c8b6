"""One run of the accuracy benchmark: a story into an embedded store, the analyzer and its peers on the same rows."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from analyzer.diagnosis import diagnose
from analyzer.following import FollowOptions
from benchmarks.accuracy_peers import peer_verdicts
from benchmarks.accuracy_plan import Case
from benchmarks.accuracy_score import Named, healthy_until_s, named_of
from lockstep.capture.exchange import load_capture
from lockstep.capture.reading import read_capture
from lockstep.clock import NS_PER_S
from lockstep.sim.placement import Ints
from lockstep.sim.rows import Identity
from lockstep.sim.simulation import Simulation
from lockstep.sim.story import Story
from lockstep.sim.telemetry import SimulatedTelemetry
from lockstep.sim.wires import Times
from lockstep.store.layout import Layout
from lockstep.store.migrations import migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex

START_NS = 1_700_000_000 * NS_PER_S  # as `lockstep simulate` has it, so that captures of a seed are the same rows
_ROWS_PER_INSERT = 400_000
_FIRST_STEPS = 3  # in which communicators are formed and kernels tuned

Result = dict[str, Any]  # a line of the results: what JSON holds


class _WatchedSimulation(Simulation):
    """A simulation that also remembers how long its steps took, for the time to detect in steps."""

    def __init__(self, story: Story, seed: int) -> None:
        super().__init__(story, seed)
        self.steps: list[tuple[float, float]] = []  # begin and length in seconds

    def take_steps(self) -> list[tuple[int, int, Ints, Times, Times]]:
        taken = super().take_steps()
        # The first rank's step is as good as any: they wait for each other.
        self.steps += [(begin[0] / NS_PER_S, (end[0] - begin[0]) / NS_PER_S) for _, _, _, begin, end in taken]
        return taken


def examine(case: Case, captures: Path | None = None) -> Result:
    """Run one case and return what was named; a crash of the analyzer is a result as well."""
    begin = time.process_time()
    story = case.tell()
    with _embedded_store() as store:
        if captures:
            topology, step_s = _load(store, captures / f"{case.story}-{case.seed}"), None
        else:
            topology, step_s = _simulate(store, story, case.seed)
        told_at = time.process_time()
        named, error = _diagnose(store, topology)
        peers = peer_verdicts(store, START_NS)
    return {
        "key": case.key,
        "case": asdict(case),
        "named": [asdict(one) for one in named],
        "peers": {name: [asdict(one) for one in said] for name, said in peers.items()},
        "step_s": step_s,
        "error": error,
        "simulating_cpu_s": round(told_at - begin, 2),
        "analysing_cpu_s": round(time.process_time() - told_at, 2),
    }


@contextmanager
def _embedded_store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="lockstep-accuracy-") as folder, open_store(f"chdb://{folder}") as store:
        migrate(store, Layout(store.database), START_NS)
        yield store


def _diagnose(store: Store, topology: TopologyIndex | None) -> tuple[list[Named], str]:
    try:
        return [named_of(incident, START_NS) for incident in diagnose(store, topology, FollowOptions())], ""
    except Exception as error:  # noqa: BLE001 - a crash is what the table must show, and the other runs go on
        return [], f"{type(error).__name__}: {error}"


def _load(store: Store, folder: Path) -> TopologyIndex | None:
    capture = read_capture(folder)
    load_capture(store, capture)
    return TopologyIndex(capture.topology) if capture.topology else None


def _simulate(store: Store, story: Story, seed: int) -> tuple[TopologyIndex, float | None]:
    """Put all rows of a story into a store, and return its topology and the usual length of a step."""
    simulation = _WatchedSimulation(story, seed)
    telemetry = SimulatedTelemetry(simulation, Identity(story.name, START_NS), heartbeats=True)
    waiting: dict[str, list[pa.Table]] = {}
    for second in range(1, int(story.duration_s) + 1):
        for name, rows in telemetry.advance(START_NS + second * NS_PER_S).items():
            waiting.setdefault(name, []).append(rows)
            if sum(table.num_rows for table in waiting[name]) > _ROWS_PER_INSERT:
                store.insert(TABLE_BY_NAME[name], pa.concat_tables(waiting.pop(name)), f"{name}/{second}")
    for name, tables in waiting.items():
        store.insert(TABLE_BY_NAME[name], pa.concat_tables(tables), f"{name}/rest")
    return TopologyIndex(simulation.topology), _usual_step_s(simulation.steps, story)


def _usual_step_s(steps: list[tuple[float, float]], story: Story) -> float | None:
    """Return the median step before the fault, or of all where the fault was there from the start."""
    before = [length for begin, length in steps if begin + length <= healthy_until_s(story)][_FIRST_STEPS:]
    usual = before or [length for _, length in steps]
    return round(float(median(usual)), 4) if usual else None
