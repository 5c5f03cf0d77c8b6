"""What the analyzer takes for many small jobs, and for one finished capture; and where that time goes.

A job of eight ranks is simulated once and repeated under other names and hosts, each copy with the same numbers of
communicators. A service follows all of them as it would live, with an evaluation of each every two seconds. CPU is
counted, so that neighbours on the machine count little; they do share its caches.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analyzer.diagnosis import diagnose
from analyzer.pipeline import FollowOptions
from analyzer.service import AnalyzerService, Announce, ServiceOptions
from analyzer.windows.window import EvaluationOptions
from benchmarks.analyze_window import START_NS, record, replaced
from benchmarks.figures import Figure, clocked, in_own_process, scratch
from lockstep.clock import NS_PER_S
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.incidents import read_jobs
from lockstep.state.leases import ALL_JOBS, Shard, take_lease
from lockstep.store.engine import Embedded, EmbeddedEngine
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from simulator.faults import parse_fault
from simulator.scenario import ClusterShape, JobShape, Scenario, build_topology

_SECONDS, _LEARNT_S, _HOP_S = 40, 30, 2
_ENGINE_BYTES = 4 << 30
_FLOOR, _GOAL = 50, 200  # jobs
_LAG_FLOOR_S, _LAG_GOAL_S = 5.0, 3.0
_MOST_JOBS = 10_000
_CAPTURE_FLOOR_S, _CAPTURE_GOAL_S = 5.0, 2.0
_REAL_JOBS = 10
_ROUND_FLOOR_S = 2.0  # of a hop: more, and the analysis falls behind
_HUGE_RANK, _YEAR_2200_NS = 2**31, 7_258_118_400 * NS_PER_S
_SLOW_NIC = "nic:h3/eth3"


class TimedStore(Store):
    """An embedded store that counts the CPU seconds of its engine, and of reading its answers."""

    def __init__(self, folder: Path) -> None:
        address = Embedded(folder)
        engine = EmbeddedEngine(address, _ENGINE_BYTES)
        super().__init__(address, lambda: self._watched(engine.open_client()), engine)
        self.engine_s = self.select_s = 0.0
        self.statements = 0

    def _watched(self, client: Any) -> Any:  # Any: the driver is the store's own affair
        client.raw_query = self._timed(client.raw_query)
        return client

    def _timed(self, query: Callable[..., bytes]) -> Callable[..., bytes]:
        def timed(*given: Any, **named: Any) -> bytes:  # Any: whatever the driver takes
            begin = time.process_time()
            try:
                return query(*given, **named)
            finally:
                self.engine_s += time.process_time() - begin
                self.statements += 1

        return timed

    def _select(self, *given: Any, **named: Any) -> pa.Table:
        begin = time.process_time()
        try:
            return super()._select(*given, **named)
        finally:
            self.select_s += time.process_time() - begin


@dataclass(frozen=True)
class Spent:
    """CPU seconds, and what of them was the engine's and Arrow's; the rest is numpy and Python."""

    cpu_s: float
    engine_s: float
    arrow_s: float
    statements: int
    evaluations: int
    named: tuple[str, ...]

    @property
    def words(self) -> str:
        engine, arrow = self.engine_s / self.cpu_s, self.arrow_s / self.cpu_s
        shares = f"engine {engine:.0%}, Arrow {arrow:.0%}, numpy and Python {1 - engine - arrow:.0%}"
        return f"{shares}; {self.statements} statements for {self.evaluations} evaluations"


@dataclass(frozen=True)
class Hostile:
    """What stands in the store besides jobs that are sound."""

    poisons: bool = False  # the first job has a rank, times and a watermark that cannot be
    invents: int = 0  # jobs that one of its hosts made up


@contextmanager
def _filled(jobs: int, hostile: Hostile | None = None) -> Iterator[Path]:
    """Give a folder with a store of so many jobs."""
    with scratch() as folder:
        in_own_process(_fill, folder / "store", jobs, hostile)
        yield folder


def measure_jobs(jobs: int, hostile: Hostile | None = None) -> Spent:
    """Follow so many jobs for some hops, after half a minute in which their steps are learnt."""
    with _filled(jobs, hostile) as folder:
        return in_own_process(_follow, folder)


def lag_figure(jobs: int, processes: int) -> Figure:
    """Return how far behind the analysis of a job is with so many on one head, had each process a core of its own.

    Just before a round ends a job is as far behind as it ever is. How long its rows take to the store comes on top;
    `bench fleet` has that.
    """
    with _filled(jobs) as folder:
        lags_s = [lag_s for shard in Shard.all_of(processes) for lag_s in in_own_process(_find_lags, folder, shard)]
    p50, p99 = np.quantile(lags_s, [0.5, 0.99])
    beside = f"p50 {p50:.1f} s, {jobs} jobs of 8 ranks, {len(lags_s)} lags; rows in the store at once"
    words = f"analysis behind a job, p99, {processes} processes"
    return Figure(words, float(p99), "s", _LAG_FLOOR_S, _LAG_GOAL_S, False, beside)


def hostile_figures(jobs: int, invented: int) -> tuple[Figure, ...]:
    """Return what one job with nonsense in the store costs the others, and what jobs cost that one host made up."""
    lags_s = [measure_lags(jobs, Hostile(poisons=poisons)) for poisons in (False, True)]
    alone_s, beside_s = (measure_round(_REAL_JOBS, Hostile(invents=count)) for count in (0, invented))
    sound, poisoned = (float(np.quantile(each, 0.99)) for each in lags_s)
    beside = (
        f"{sound:.2f} s without it; {jobs - 1} jobs beside one with rank 2^31, times of 1970 and 2200, watermark 1"
    )
    round_of = f"{alone_s:.2f} CPU s without them; {_REAL_JOBS} jobs that are real"
    return (
        Figure(
            "analysis behind others of a poisoned job, p99", poisoned, "s", _LAG_FLOOR_S, _LAG_GOAL_S, False, beside
        ),
        Figure(
            f"round, {invented} jobs of one host's making", beside_s, "CPU s", _ROUND_FLOOR_S, None, False, round_of
        ),
    )


def measure_lags(jobs: int, hostile: Hostile) -> list[float]:
    """Return by round and job how far behind the analysis was, but for the first job, which may be poisoned."""
    with _filled(jobs, hostile) as folder:
        return in_own_process(_find_lags, folder, ALL_JOBS, "job0")


def measure_round(jobs: int, hostile: Hostile) -> float:
    """Return the CPU seconds of a round in which all jobs are due."""
    return measure_jobs(jobs, hostile).cpu_s * _HOP_S / (_SECONDS - _LEARNT_S)


def small_job_figures(jobs: int) -> tuple[Figure, Figure]:
    """Return both figures."""
    spent, capture = measure_jobs(jobs), in_own_process(_diagnose)
    fit = _HOP_S * spent.evaluations / spent.cpu_s
    beside = f"{1e3 * spent.cpu_s / spent.evaluations:.0f} ms an evaluation, {jobs} jobs followed; {spent.words}"
    beside += f"; FALSE: {', '.join(spent.named)}" if spent.named else ""
    said = f"says {', '.join(capture.named) or 'nothing'}; {capture.words}"
    return (
        Figure("jobs of 8 ranks on one core, 2 s hop", fit, "jobs", _FLOOR, _GOAL, True, beside),
        Figure("diagnose, 64 ranks, 60 s", capture.cpu_s, "CPU s", _CAPTURE_FLOOR_S, _CAPTURE_GOAL_S, False, said),
    )


def _simulate(hosts: int, gpus: int, seconds: int, *faults: str) -> tuple[dict[str, pa.Table], Scenario]:
    cluster = ClusterShape(
        hosts=hosts,
        gpus_per_host=gpus,
        nics_per_host=gpus,
        hosts_per_leaf=max(hosts // 2, 1),
        spines=2,
        nic_gbps=200.0,
    )
    scenario = Scenario(
        name="bench",
        summary="a small job",
        duration_s=seconds,
        cluster=cluster,
        job=JobShape(compute_ms=300.0, allreduce_mb=(256, 256)),
        timeline=tuple(parse_fault(fault) for fault in faults),
    )
    return record(scenario)[1], scenario


def _fill(folder: Path, jobs: int, hostile: Hostile | None = None) -> None:
    tables, _ = _simulate(2, 4, _SECONDS)
    hostile = hostile or Hostile()
    with closing(TimedStore(folder)) as store:
        migrate(store, Layout(store.database), START_NS)
        for name, rows in tables.items():
            if "host" in rows.column_names:
                copies = [_renamed(rows, f"job{number}", f"job{number}-") for number in range(jobs)]
                if "job" in rows.column_names:
                    told = rows.filter(pc.equal(rows["host"].cast(pa.string()), "h0"))
                    copies += [_renamed(told, f"made-up{number}", "job0-") for number in range(hostile.invents)]
                copies += [_poisoned(copies[0], TABLE_BY_NAME[name].time or "")] if hostile.poisons else []
                store.insert(TABLE_BY_NAME[name], pa.concat_tables(copies), name)


def _renamed(rows: pa.Table, job: str, hosts: str) -> pa.Table:
    """Return the rows as those of another job on other hosts."""
    names = pc.binary_join_element_wise(pa.scalar(hosts), rows["host"].cast(pa.string()), "")
    return replaced(rows, {"host": names, "job": [job] * rows.num_rows})


def _poisoned(rows: pa.Table, time: str) -> pa.Table:
    """Return two rows that cannot be: of 1970 and of 2200, of a huge rank alone in its communicator."""
    first = pa.concat_tables([rows.slice(0, 1)] * 2)
    impossible = {"rank": [_HUGE_RANK] * 2, "nranks": [1] * 2, "watermark_ns": [1] * 2, "nnodes": [1] * 2}
    return replaced(first, impossible | {time: [1, _YEAR_2200_NS]})


_Following = tuple[TimedStore, ControlDatabase, Callable[[int], int]]


@contextmanager
def _following(folder: Path, announce: Announce, shard: Shard = ALL_JOBS) -> Iterator[_Following]:
    """Give what evaluates all jobs at a moment, after half a minute in which their steps were learnt."""
    with (
        closing(TimedStore(folder / "store")) as store,
        open_control(f"sqlite:///{folder / shard.name}.db") as control,
    ):
        follow = FollowOptions(evaluations=EvaluationOptions(hop_ns=_HOP_S * NS_PER_S))
        options = ServiceOptions(follow=follow, shard=shard)
        service = AnalyzerService(store, control, None, options, announce)
        lease = take_lease(control, "analyzer", "bench", 3_600 * NS_PER_S, START_NS)
        assert lease is not None
        service.run_once(lease, START_NS + _LEARNT_S * NS_PER_S)
        yield store, control, partial(service.run_once, lease)


def _find_lags(folder: Path, shard: Shard = ALL_JOBS, without: str = "") -> list[float]:
    """Return by round and job how far behind it was; a round begins a second after the last, or at its end."""
    lags_s: list[float] = []
    now_ns = START_NS + _LEARNT_S * NS_PER_S
    with _following(folder, lambda told: None, shard) as (_, control, evaluate):
        while (now_ns := now_ns + NS_PER_S) <= START_NS + _SECONDS * NS_PER_S:
            judged = read_jobs(control, _MOST_JOBS)
            _, _, cpu_s = clocked(partial(evaluate, now_ns))
            ended_ns = now_ns + int(cpu_s * NS_PER_S)
            lags_s += [(ended_ns - until_ns) / NS_PER_S for job, until_ns in judged.items() if job != without]
            now_ns = max(now_ns, ended_ns - NS_PER_S)
    return lags_s


def _follow(folder: Path) -> Spent:
    named: list[str] = []
    with _following(folder, lambda told: named.append(told.verdict.component)) as (store, _, evaluate):
        store.engine_s, store.select_s, store.statements = 0.0, 0.0, 0

        def follow() -> int:
            hops = range(_LEARNT_S + _HOP_S, _SECONDS + 1, _HOP_S)
            return sum(evaluate(START_NS + second * NS_PER_S) for second in hops)

        evaluations, _, cpu_s = clocked(follow)
    return _spent(store, cpu_s, evaluations, named)


def _diagnose() -> Spent:
    """Diagnose a minute of 64 ranks in which a NIC becomes slow."""
    tables, scenario = _simulate(8, 8, 60, f"at 20 s fail {_SLOW_NIC} to 50 %")
    topology = TopologyIndex(build_topology(scenario.cluster))
    with scratch() as folder, closing(TimedStore(folder)) as store:
        migrate(store, Layout(store.database), START_NS)
        for name, rows in tables.items():
            store.insert(TABLE_BY_NAME[name], rows, name)
        incidents, _, cpu_s = clocked(lambda: diagnose(store, topology, FollowOptions()))
    return _spent(store, cpu_s, 60 // _HOP_S, [incident.verdict.component for incident in incidents])


def _spent(store: TimedStore, cpu_s: float, evaluations: int, named: list[str]) -> Spent:
    return Spent(cpu_s, store.engine_s, store.select_s - store.engine_s, store.statements, evaluations, tuple(named))
