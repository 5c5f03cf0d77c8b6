"""The simulator's claims: ranks in real time on one core, a large cluster in minutes, and memory that stays bounded.

The job is sharded like a large language model's: steps of about a second and a half, tensor parallel inside hosts of
eight GPUs, gradients scattered and parameters gathered between hosts, everything told as rows of telemetry with all
surroundings, a second at a time. One NIC is slow. Every run is a process of its own, on one core, so that its peak
memory is its own; time is CPU time, so that neighbours on the machine do not count.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.figures import Figure, Note, in_own_process, peak_mb
from lockstep.clock import NS_PER_S
from simulator.faults import parse_fault
from simulator.scenario import ClusterShape, Doing, JobShape, Layout, Scenario, Telemetry
from simulator.simulation import Simulation
from simulator.telemetry import Identity, SimulatedTelemetry

_START_NS = 1_700_000_000 * NS_PER_S
_GPUS = 8
_SEED = 1
_LAYER = (Doing(do="compute", ms=140.0), Doing(do="AllReduce", mb=64, group="tp"))
_STEP = (
    *_LAYER * 10,
    Doing(do="ReduceScatter", mb=4, group="dp", times=4),
    Doing(do="AllGather", mb=4, group="dp", times=4),
)
_FEW = (*_LAYER * 2, Doing(do="ReduceScatter", mb=4, group="dp"), Doing(do="AllGather", mb=4, group="dp"))
_LARGE, _LARGE_SCENARIO_S = 16_384, 60
_HUGE = 100_000


@dataclass(frozen=True)
class Run:
    """What to simulate."""

    ranks: int
    scenario_s: int
    warm_up_s: int = 2  # in which communicators are formed; not measured
    sample: float = 1.0  # share of operations with complete rows
    few_operations: bool = False


@dataclass(frozen=True)
class Cost:
    """What a run took, from its warm-up on."""

    scenario_s: float
    cpu_s: float
    setup_s: float
    rows: int
    peak_mb: float
    growth: float  # of the peak from the middle to the end, as a share

    @property
    def pace(self) -> float:
        """Seconds of scenario per second of CPU."""
        return self.scenario_s / self.cpu_s


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of the simulator."""
    small = [_noted(note, Run(ranks, 4 if quick else 30)) for ranks in (256, 1_024)]
    large = _noted(note, Run(_LARGE, 2 if quick else _LARGE_SCENARIO_S - 2, sample=0.1))
    huge = [] if quick else [_noted(note, Run(_HUGE, 3, sample=0.01, few_operations=True))]
    return (*_paces(small), *_minutes(large), *(figure for cost in huge for figure in _huge(cost)))


def _noted(note: Note, run: Run) -> Cost:
    note(f"simulating {run.ranks:,} ranks for {run.warm_up_s + run.scenario_s} s of their scenario")
    return in_own_process(simulate, run)


def _paces(costs: list[Cost]) -> Iterator[Figure]:
    for ranks, cost in zip((256, 1_024), costs, strict=True):
        beside = f"{cost.pace:.1f} s of scenario a second, {cost.rows / cost.cpu_s:,.0f} rows/s"
        name, goal = f"ranks in real time on one core, at {ranks:,}", 1_024 if ranks == 1_024 else None
        yield Figure(name, ranks * cost.pace, "ranks", 256, goal, True, beside)


def _minutes(cost: Cost) -> Iterator[Figure]:
    minutes = (cost.setup_s + cost.cpu_s * _LARGE_SCENARIO_S / cost.scenario_s) / 60
    beside = f"of CPU, by {cost.scenario_s:.0f} s; {cost.rows / cost.scenario_s:,.0f} rows a second of scenario"
    yield Figure(f"{_LARGE:,} ranks x {_LARGE_SCENARIO_S} s", minutes, "min", 15, 5, False, beside)
    yield Figure(f"memory at {_LARGE:,} ranks", cost.peak_mb, "MB", reference="peak, resident")
    yield Figure("its growth in the second half", 100 * cost.growth, "%", 20, 5, False)


def _huge(cost: Cost) -> Iterator[Figure]:
    beside = f"setting up {cost.setup_s:.0f} s; 1 % of operations with complete rows"
    yield Figure(f"{_HUGE:,} ranks, a second of scenario", cost.cpu_s / cost.scenario_s, "CPU s", reference=beside)
    yield Figure(f"memory at {_HUGE:,} ranks", cost.peak_mb, "MB", reference="peak, resident")


def bench_scenario(run: Run) -> Scenario:
    """Return the scenario of a run: hosts of eight GPUs and NICs, sixteen to a leaf, a slow NIC after a second."""
    hosts = run.ranks // _GPUS
    shape = ClusterShape(
        hosts=hosts,
        gpus_per_host=_GPUS,
        nics_per_host=_GPUS,
        hosts_per_leaf=next(size for size in (16, 10, 4, 2, 1) if hosts % size == 0),
        spines=8,
        nic_gbps=400.0,
    )
    return Scenario(
        name="bench",
        summary="a sharded job with a slow NIC",
        duration_s=run.warm_up_s + run.scenario_s,
        cluster=shape,
        job=JobShape(layout=Layout(tp=_GPUS), step=_FEW if run.few_operations else _STEP),
        telemetry=Telemetry(sample=run.sample),
        timeline=(parse_fault("at 1 s fail nic:h1/eth3 tx to 50 %"),),
    )


def simulate(run: Run) -> Cost:
    """Run a scenario on one core, a second at a time, and return what it took; rows are dropped as they come."""
    with _one_core():
        begin = time.process_time()
        telemetry = SimulatedTelemetry(Simulation(bench_scenario(run), _SEED), Identity("bench", _START_NS))
        _advance(telemetry, 0, run.warm_up_s)
        ready = time.process_time()
        middle = run.warm_up_s + run.scenario_s // 2
        rows = _advance(telemetry, run.warm_up_s, middle)
        halfway = peak_mb()
        rows += _advance(telemetry, middle, run.warm_up_s + run.scenario_s)
        peak = peak_mb()
    return Cost(run.scenario_s, time.process_time() - ready, ready - begin, rows, peak, peak / halfway - 1)


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process and Arrow's threads on one of the cores it may use."""
    cores, threads = os.sched_getaffinity(0), pa.cpu_count()
    os.sched_setaffinity(0, {min(cores)})
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(threads)
        os.sched_setaffinity(0, cores)


def _advance(telemetry: SimulatedTelemetry, since_s: int, until_s: int) -> int:
    rows = 0
    for second in range(since_s + 1, until_s + 1):
        rows += sum(table.num_rows for table in telemetry.advance(_START_NS + second * NS_PER_S).values())
    return rows
