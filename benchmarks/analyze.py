"""The analyzer's claims of speed: from a closed window to its verdicts, from a thousand ranks to a million.

The windows are those of a sharded job in which one NIC sends slowly; it has to be named, and the same job without the
fault has to give silence. Seconds are of CPU, so that neighbours on the machine do not count; an idle machine with
two cores takes less time than that. Beside it PyTorch's flight-recorder analyser on the same hang, and the numeric
core alone, on the GPU as well where there is one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from analyzer.diagnosis import diagnose
from analyzer.incidents import TrackingOptions
from analyzer.pipeline import Followed, FollowOptions, evaluate_window
from analyzer.straggler.excess import Excess, measure_excess
from analyzer.straggler.kernels import Device, Kernels, NumericOptions, choose_kernels, find_device
from analyzer.straggler.operations import Operations
from analyzer.windows.jobs import find_jobs, read_roster
from analyzer.windows.silence import find_reports
from analyzer.windows.window import window_at
from benchmarks.analyze_window import (
    ABSENT,
    HEALTHY,
    HUNG,
    RIGHT,
    SLOW,
    PeerCost,
    Scene,
    fill_store,
    read_dumps,
    run_their_analyser,
    scene_topology,
    write_dumps,
)
from benchmarks.figures import Figure, Note, clocked, fresh_store, in_own_process, peak_mb, scratch
from benchmarks.small_jobs import small_job_figures
from lockstep.clock import NS_PER_S
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex

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


def judge_window(store: Store, topology: TopologyIndex | None) -> list[str]:
    """Return the parts that one look names at the job in a store: all that the service does once a window is closed.

    Which jobs there are, who takes part and how far hosts have reported is asked each time, as the service does it;
    what looks before learnt is not known. One look is enough to tell, since no second one follows.
    """
    options = FollowOptions(tracking=TrackingOptions(confirm_evaluations=1))
    named: list[str] = []
    for span in find_jobs(store, 0):
        roster = read_roster(store, span.job, span.attempt)
        reports = find_reports(store, roster.hosts, 0)
        silent = roster.hosts - reports.keys()
        window = window_at(span.last_ns + 1, span.first_ns, None, options.evaluations)
        outcome = evaluate_window(store, span, window, Followed(), (roster, silent, reports, topology), options)
        named += [incident.verdict.component for incident in outcome.changed]
    return named


def measure_scene(scene: Scene) -> Cost:
    """Make the telemetry of a scene, then judge it, each in a fresh process."""
    with scratch() as folder:
        rows = in_own_process(_fill, scene, folder)
        return in_own_process(_judge, scene, folder, rows)


def measure_dumps(ranks: int) -> tuple[Cost, PeerCost]:
    """Let our analyzer and theirs read the same dumps of a hang."""
    with scratch() as dumps:
        write_dumps(dumps, ranks)
        return in_own_process(_judge_dumps, dumps, ranks), in_own_process(run_their_analyser, dumps, ranks)


def _fill(scene: Scene, folder: Path) -> int:
    with fresh_store(folder, _ENGINE_BYTES) as store:
        fill_store(store, scene)
        counted = store.query(
            "SELECT sum(rows) AS rows FROM system.parts WHERE active AND database = currentDatabase()"
        )
        return int(counted["rows"][0].as_py() or 0)


def _judge_dumps(dumps: Path, ranks: int) -> Cost:
    with scratch() as folder, fresh_store(folder, _ENGINE_BYTES) as store:

        def judge() -> tuple[list[str], int]:
            tables = read_dumps(dumps).tables()
            for name, rows in tables.items():
                store.insert(TABLE_BY_NAME[name], rows, name)
            named = [incident.verdict.component for incident in diagnose(store, None, FollowOptions())]
            return named, sum(rows.num_rows for rows in tables.values())

        (named, count), wall_s, cpu_s = clocked(judge)
    return Cost(Scene(ranks, HUNG), tuple(named), cpu_s, wall_s, peak_mb(), count)


def _judge(scene: Scene, folder: Path, rows: int) -> Cost:
    fabric = scene_topology(scene)
    topology = TopologyIndex(fabric) if fabric else None
    with open_store(f"chdb://{folder}", memory_bytes=_ENGINE_BYTES) as store:
        judge_window(store, topology)  # a service that runs has its libraries loaded and its files cached
        named, wall_s, cpu_s = clocked(lambda: judge_window(store, topology))
    return Cost(scene, tuple(named), cpu_s, wall_s, peak_mb(), rows)


_GROUP = 8  # ranks of a tensor parallel group
_SINGLE_OPERATIONS = 15  # operations of each of 65,536 ranks: just below the million rows that are judged one by one
_SECONDS = 5
_LATE, _LATE_BY = 27, 0.1  # a rank, and the share of its time that it takes longer
_SEED = 1
_AGAIN = 3  # the fastest of so many counts, after one that loads what has to be loaded


@dataclass(frozen=True)
class NumericCost:
    """What the numeric core took on one device."""

    ranks: int
    rows: int
    device: str
    cpu_s: float
    wall_s: float  # copies to the device and back included
    is_same: bool  # whether all figures are those of numpy, bit for bit


def measure_numeric(ranks: int, devices: tuple[Device, ...]) -> list[NumericCost]:
    """Measure late ranks on numpy and on some devices."""
    are_sums = ranks > 65_536
    rows = sums_of_seconds(ranks) if are_sums else single_operations(ranks)
    expected, cost = _timed(rows, are_sums, ranks, "numpy")
    costs = [NumericCost(ranks, len(rows), "numpy", *cost, is_same=True)]
    for device in devices:
        found, cost = _timed(rows, are_sums, ranks, device)
        costs.append(NumericCost(ranks, len(rows), device, *cost, is_same=is_equal(found, expected)))
    return costs


def is_equal(one: Excess | None, other: Excess | None) -> bool:
    """Return whether two measurements are the same, bit for bit."""
    if one is None or other is None:
        return one is other
    pairs = ((getattr(one, each.name), getattr(other, each.name)) for each in fields(Excess))
    return all(np.array_equal(mine, yours, equal_nan=True) for mine, yours in pairs)


def single_operations(ranks: int) -> Operations:
    """Return the operations of a job of tensor parallel groups, one row a rank and operation."""
    rank, number = (column.reshape(-1) for column in np.meshgrid(np.arange(ranks), np.arange(_SINGLE_OPERATIONS)))
    return _as_operations(
        rank, comm=rank // _GROUP, comm_rank=rank % _GROUP, number=number, step_ns=NS_PER_S // 3, own_ns=200_000_000
    )


def sums_of_seconds(ranks: int) -> Operations:
    """Return what each rank of a job did in each of some seconds, one row a rank and second."""
    rank, second = (column.reshape(-1) for column in np.meshgrid(np.arange(ranks), np.arange(_SECONDS)))
    return _as_operations(
        rank, comm=np.zeros_like(rank), comm_rank=rank, number=second, step_ns=NS_PER_S, own_ns=600_000_000
    )


def _as_operations(
    rank: np.ndarray, comm: np.ndarray, comm_rank: np.ndarray, number: np.ndarray, step_ns: int, own_ns: int
) -> Operations:
    noise = np.random.default_rng(_SEED)
    own = own_ns * (1 + noise.normal(0, 0.005, len(rank)) + np.where(rank == _LATE, _LATE_BY, 0.0))
    gap_ns = np.rint(own)
    zeros = np.zeros(len(rank), np.int64)
    return Operations(
        process=rank,
        comm=comm.astype(np.uint64),
        rank=comm_rank,
        func=zeros.astype(np.uint64),
        sends=zeros > 0,
        peer=zeros - 1,
        seq=number,
        replay=zeros,
        size=zeros + 1,
        start_ns=number * step_ns + gap_ns.astype(np.int64),
        dur_ns=step_ns - gap_ns,
        gap_ns=gap_ns,
        gpu_ns=gap_ns * noise.random(len(rank)),
    )


def _timed(rows: Operations, are_sums: bool, ranks: int, device: Device) -> tuple[Excess | None, tuple[float, float]]:
    kernels: Kernels = choose_kernels(len(rows), NumericOptions(device=device, fewest_rows=0))
    tries = [clocked(lambda: measure_excess(rows, are_sums, ranks, None, kernels)) for _ in range(1 + _AGAIN)]
    found, wall_s, cpu_s = min(tries[1:], key=lambda one: one[1])
    return found, (cpu_s, wall_s)


_SIZES = (1_024, 4_096, 16_384, 65_536)
_MILLION = 1_000_000
_CLAIMS = {4_096: (1.0, 0.1), 65_536: (10.0, 2.0), _MILLION: (60.0, 10.0)}  # seconds: floor and goal
_EROICA = "EROICA reports 7 minutes"
_PEER_SIZES = (64, 256, 1_024)  # theirs takes minutes beyond
_DUMPS_GOAL_S = 1.0  # at 1,024 ranks; published analysers take 5 s and more
_CORE_SIZES = (65_536, _MILLION)
_FEW_JOBS, _MANY_JOBS = 4, 50
_GROWTH_FROM = 4_096  # below, what every window costs hides how costs grow
_LINEAR = (1.25, 1.05)  # exponent of the growth: with a logarithm from sorting, and almost without


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of the analyzer's speed."""
    devices: tuple[Device, ...] = ("cpu", "cuda") if find_device() else ()
    note("there is a GPU: long arrays are computed on it" if devices else "no GPU here: CPU only")
    sizes = _SIZES[:1] if quick else _SIZES
    slow = [_noted(note, Scene(ranks, SLOW)) for ranks in sizes]
    others = [] if quick else [_noted(note, scene) for scene in _other_scenes()]
    note("many small jobs, and a capture of a minute")
    small = small_job_figures(_FEW_JOBS if quick else _MANY_JOBS)
    pairs, core = [], []
    for ranks in _PEER_SIZES[:1] if quick else _PEER_SIZES:
        note(f"flight-recorder dumps of {ranks:,} ranks, one of which never comes")
        pairs.append(measure_dumps(ranks))
    for ranks in _CORE_SIZES[:1] if quick else _CORE_SIZES:
        note(f"the numeric core alone at {ranks:,} ranks")
        core.append(in_own_process(measure_numeric, ranks, devices))
    million = [cost for cost in others if cost.scene.ranks == _MILLION and cost.scene.trouble == SLOW]
    return (
        *(figure for cost in [*slow, *million] for figure in _speed(cost)),
        *_growth(slow),
        *small,
        _right([*slow, *others]),
        *(figure for costs in core for figure in _core(costs)),
        *(figure for ours, theirs in pairs for figure in _beside(ours, theirs)),
    )


def is_right(cost: Cost) -> bool:
    """Return whether exactly the broken part was named, by any of its names, or nothing where nothing is broken."""
    right = RIGHT[cost.scene.trouble]
    return bool(cost.named) == bool(right) and set(cost.named) <= right


def growth_exponent(costs: Sequence[Cost]) -> float | None:
    """Return the slope of CPU seconds over ranks on logarithmic scales; None with fewer than two sizes.

    >>> scenes = [Scene(ranks, SLOW) for ranks in (4_096, 65_536)]
    >>> growth_exponent([Cost(scene, (), scene.ranks / 1e4, 0.0, 0.0, 0) for scene in scenes])
    1.0
    """
    large = [cost for cost in costs if cost.scene.ranks >= _GROWTH_FROM]
    if len(large) < 2:
        return None
    first, last = large[0], large[-1]
    return round(math.log(last.cpu_s / first.cpu_s) / math.log(last.scene.ranks / first.scene.ranks), 3)


def _other_scenes() -> list[Scene]:
    return [
        Scene(1_024, HUNG),
        Scene(4_096, HUNG),
        Scene(4_096, HEALTHY),
        Scene(65_536, HEALTHY),
        Scene(_MILLION, SLOW, only_statistics=True),
        Scene(_MILLION, HEALTHY, only_statistics=True),
    ]


def _noted(note: Note, scene: Scene) -> Cost:
    kind = "statistics" if scene.only_statistics else "window"
    note(f"making and judging a {kind} of {scene.ranks:,} ranks, {scene.trouble}")
    return measure_scene(scene)


def _speed(cost: Cost) -> Iterator[Figure]:
    ranks = cost.scene.ranks
    floor, goal = _CLAIMS.get(ranks, (None, None))
    what = "from statistics" if cost.scene.only_statistics else "closed window to verdicts"
    beside = f"{cost.wall_s:.2f} s of wall time, {cost.rows:,} rows, {cost.peak_mb:,.0f} MB at most, engine included"
    peer = f"; {_EROICA}" if ranks == _MILLION else ""
    yield Figure(f"{ranks:,} ranks, {what}", cost.cpu_s, "CPU s", floor, goal, False, beside + peer)


def _growth(costs: Sequence[Cost]) -> Iterator[Figure]:
    exponent = growth_exponent(costs)
    if exponent is not None:
        floor, goal = _LINEAR
        beside = f"exponent, {_GROWTH_FROM:,} to {costs[-1].scene.ranks:,} ranks; 1 is linear"
        yield Figure("growth with ranks", exponent, "", floor, goal, False, beside)


def _right(costs: Sequence[Cost]) -> Figure:
    wrong = [
        f"{cost.scene.ranks:,} {cost.scene.trouble}: {', '.join(cost.named) or 'silence'}"
        for cost in costs
        if not is_right(cost)
    ]
    share = 100.0 * (len(costs) - len(wrong)) / len(costs)
    return Figure("windows judged right", share, "%", 100, 100, True, "; ".join(wrong) or f"all {len(costs)}")


def _beside(ours: Cost, theirs: PeerCost) -> Iterator[Figure]:
    ranks = theirs.ranks
    goal = _DUMPS_GOAL_S if ranks == _PEER_SIZES[-1] else None
    note = f"says {', '.join(ours.named) or 'nothing'}"
    yield Figure(f"hang, dumps of {ranks:,} ranks: Lockstep", ours.cpu_s, "CPU s", None, goal, False, note)
    false = len(theirs.named - {ABSENT})
    note = f"{len(theirs.named)} ranks called missing, {false} of them wrongly"
    yield Figure(f"hang, dumps of {ranks:,} ranks: torchfrtrace", theirs.cpu_s, "CPU s", reference=note)


def _core(costs: Sequence[NumericCost]) -> Iterator[Figure]:
    """Yield what the numeric core takes on numpy and, beside it, on the GPU; they have to say the same."""
    plain, *others = costs
    name = f"numeric core, {plain.ranks:,} ranks"
    where = "see the GPU below" if others else "no GPU here"
    yield Figure(f"{name}: numpy", plain.cpu_s, "CPU s", reference=f"{plain.rows:,} rows; {where}")
    for cost in others:
        beside = f"{plain.wall_s / cost.wall_s:.1f} times as fast as numpy, copies included; figures of both "
        beside += "are the same" if cost.is_same else "DIFFER"
        yield Figure(f"{name}: {cost.device}", cost.wall_s, "s", reference=beside)
