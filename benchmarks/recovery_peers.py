"""Our recovery beside Oobleck's, Varuna's and Bamboo's, on the traces that Oobleck published: 30 nodes, 15 losses.

Theirs are the averages of the simulators in Oobleck's artifact (SOSP 2023, branch sosp23-artifact, tools/simulator),
run on its own traces; they go by throughput that its authors measured on each number of nodes. Ours is a model: whole
grids of pipelines, fitted to what they measured of Varuna, which runs on such grids; on all 30 nodes as fast as the
slower of Varuna and Oobleck; and around lost nodes the planner's own schedules, with no more micro-batches in memory
than 1F1B has. So a ratio says what recovery is worth, and nothing about kernels. The artifact names no micro-batch
sizes: how many there are in a step comes out of the fit, and a range is given over fits nearly as close.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, log
from statistics import pstdev
from typing import NamedTuple

from benchmarks.figures import Figure, Note
from lockstep.pipeline.checking import place_failures, spread_failures
from lockstep.pipeline.dispatch import ScheduleOptions, plan_schedule
from lockstep.pipeline.schedule import Shape, unit_times
from planner.allocation.allocate import plan_allocation
from planner.allocation.cluster import Cluster, Job, Node, Recovery
from planner.allocation.throughput import tabulate

NODES, LOSSES = 30, 15
INTERVALS_S = {"6h": 21_600.0, "3h": 10_800.0, "1h": 3_600.0, "30m": 1_800.0, "10m": 601.2}
_START_S = 45.0  # nodes are made for so long in the artifact before the first step
_MICRO_BATCHES = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # of a whole step, tried in the fit
_FEWEST_PIPELINES = 2  # on 30 nodes; with one there is no peer
_NEARLY = 0.01  # fits whose error is so little above the least could as well be true
_LOST_STEPS = 5  # Varuna saves every tenth step in the artifact, so half of that is done again
_S_PER_DAY = 86_400.0


@dataclass(frozen=True)
class Measured:
    """A model as the artifact knows it: samples per second on 30, 29 … 16 nodes, and seconds of a pause."""

    name: str
    batch: float  # samples of a step
    layers: int
    oobleck: tuple[float, ...]
    varuna: tuple[float, ...]
    copy_s: float  # Oobleck's pause: layers are copied from live replicas
    restart_s: float  # Varuna's
    save_s: float  # Varuna's checkpoint
    averages: Mapping[str, tuple[float, ...]]  # of their simulators, for each interval


# Numbers of the artifact, to four digits; the layers are the models' own.
MODELS = (
    Measured(
        "BERT-large", 8192, 24,
        (368.2, 362.2, 328.4, 327.8, 329.1, 307.2, 304.5, 278.5, 285.8, 260.3, 261.7, 243.6, 228.1, 209.2, 214.8),
        (343.1, 331.7, 329.6, 326.5, 306.0, 298.4, 290.0, 280.1, 267.9, 255.7, 243.5, 233.0, 222.4, 211.8, 202.6),
        2.0, 76.0, 15.8,
        {"Oobleck": (287.1, 286.9, 286.3, 285.2, 282.1), "Varuna": (260.1, 256.5, 246.0, 232.8, 173.5),
         "Bamboo": (77.04, 77.01, 75.60, 75.46, 69.84)},
    ),
    Measured(
        "GPT-2", 1024, 24,
        (110.0, 109.7, 98.84, 100.1, 99.48, 91.02, 90.52, 83.40, 83.33, 76.95, 76.71, 71.59, 66.75, 63.02, 62.75),
        (125.8, 117.6, 117.6, 106.8, 110.9, 102.1, 102.1, 96.65, 96.65, 85.83, 88.31, 78.31, 78.31, 70.46, 70.46),
        2.0, 83.0, 11.5,
        {"Oobleck": (85.59, 85.56, 85.42, 85.23, 84.81), "Varuna": (86.51, 86.15, 85.17, 83.43, 76.39),
         "Bamboo": (17.47, 17.46, 17.13, 17.16, 16.01)},
    ),
    Measured(
        "GPT-3 Medium", 819, 24,
        (38.47, 37.19, 35.90, 34.62, 33.34, 31.67, 30.24, 28.96, 27.77, 26.68, 25.69, 23.83, 23.03, 21.58, 20.87),
        (42.00, 38.89, 38.89, 35.85, 33.43, 33.43, 33.43, 28.26, 28.26, 28.26, 28.23, 25.26, 25.26, 22.89, 22.89),
        3.0, 78.7, 11.2,
        {"Oobleck": (29.30, 29.28, 29.20, 29.11, 28.70), "Varuna": (29.50, 29.41, 28.49, 27.93, 20.19)},
    ),
    Measured(
        "GPT-3 2.7B", 512, 32,
        (9.214, 8.907, 8.600, 8.293, 7.986, 7.627, 7.512, 7.435, 7.053, 6.705, 6.797, 6.105, 6.115, 5.631, 5.631),
        (9.768, 9.425, 9.425, 9.100, 9.100, 9.100, 9.100, 7.470, 7.470, 7.470, 7.470, 6.425, 6.425, 6.425, 6.425),
        6.0, 515.0, 50.0,
        {"Oobleck": (7.290, 7.277, 7.229, 7.180, 6.890), "Varuna": (7.270, 7.115, 6.536, 5.826, 1.757)},
    ),
    Measured(
        "GPT-3 6.7B", 1024, 32,
        (5.508, 5.324, 5.141, 4.957, 4.773, 4.809, 4.330, 4.185, 3.947, 4.011, 4.154, 3.712, 3.593, 3.284, 3.531),
        (5.241, 5.241, 5.241, 5.097, 5.097, 5.097, 5.097, 4.503, 4.503, 4.503, 4.503, 3.954, 3.954, 3.954, 3.954),
        10.0, 701.0, 120.0,
        {"Oobleck": (4.329, 4.308, 4.223, 4.112, 3.546), "Varuna": (4.145, 3.963, 2.688, 1.056, 0.255)},
    ),
)  # fmt: skip


class Grid(NamedTuple):
    """Pipelines of equal stages, a node per stage."""

    stages: int
    pipelines: int

    @property
    def nodes(self) -> int:
        return self.stages * self.pipelines


class Stretch(NamedTuple):
    """What a job does between two losses, after a pause at the first."""

    rate: float  # samples per second
    pause_s: float = 0.0


@dataclass(frozen=True)
class Fit:
    """The model of a job: which grids it runs on, and how fast."""

    error: float  # standard deviation, relative to Varuna's measured throughput
    stages: tuple[int, ...]  # a pipeline may have so many; with fewer a stage does not fit into a node
    micro_batches: int  # of a whole step
    full: float  # samples per second on all nodes

    def rate(self, grid: Grid, missing: int = 0) -> float:
        """Return samples per second with some nodes of the grid missing; 0 where a stage has no copy left."""
        return self.full * self.step(self.best(NODES)) / self.step(grid, missing)

    def best(self, nodes: int) -> Grid:
        """Return the fastest whole grid on at most so many nodes."""
        return _best(self.stages, self.micro_batches, nodes)

    def step(self, grid: Grid, missing: int = 0) -> float:
        """Return how long a step takes, in thirds of the time that one node needs for a micro-batch."""
        return _step(grid, self.micro_batches, missing)


def measure_peers(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return our throughput over theirs, for each model and interval; quick: two of each, only the closest fit."""
    models, intervals = ((MODELS[0], MODELS[-1]), ("6h", "10m")) if quick else (MODELS, tuple(INTERVALS_S))
    fits = {model.name: fit_grids(model)[: 1 if quick else None] for model in models}
    return tuple(one for model in models for one in _measure(model, fits[model.name], intervals, note))


def fit_grids(model: Measured) -> tuple[Fit, ...]:
    """Return the fit that comes closest to Varuna's throughput on 30 to 16 nodes, then those nearly as close."""
    stages = [count for count in range(2, NODES // _FEWEST_PIPELINES + 1) if model.layers % count == 0]
    full = min(model.oobleck[0], model.varuna[0])
    tried = sorted(
        (_misfit(model, tuple(stages[first:]), micro_batches), tuple(stages[first:]), micro_batches)
        for first in range(len(stages))
        for micro_batches in _MICRO_BATCHES
        if micro_batches <= model.batch
    )
    return tuple(Fit(*one, full) for one in tried if one[0] <= tried[0][0] + _NEARLY)


def list_dropped(model: Measured, fit: Fit) -> list[Stretch]:
    """Return the stretches when broken pipelines are dropped, at its best: survivors make up whole ones again."""
    stages = fit.best(NODES).stages
    return _pausing([fit.rate(Grid(stages, (NODES - lost) // stages)) for lost in range(LOSSES)], model.copy_s)


def list_rerouted(model: Measured, fit: Fit, grid: Grid | None = None) -> list[Stretch]:
    """Return the stretches when peers do the work of lost nodes, once spares are used up.

    A stage that has lost all copies forces a restart on what is left, from the last checkpoint.
    """
    grid, made = grid or fit.best(NODES), list[Stretch]()
    for lost in range(LOSSES):
        rate = fit.rate(grid, max(0, grid.nodes - (NODES - lost)))
        if rate > 0:
            made.append(Stretch(rate, model.copy_s if lost else 0.0))
            continue
        grid = fit.best(NODES - lost)
        rate = fit.rate(grid)
        made.append(Stretch(rate, model.restart_s + _LOST_STEPS * model.batch / rate))
    return made


def list_planned(model: Measured, fit: Fit, interval_s: float) -> list[Stretch]:
    """Return the stretches when the planner chooses after each loss: a spare, re-routing, or another grid.

    It expects losses as often as it has seen them.
    """
    grid, missing, made = fit.best(NODES), 0, [Stretch(fit.full)]
    for lost in range(1, LOSSES):
        node_days = sum(range(NODES - lost + 1, NODES + 1)) * interval_s / _S_PER_DAY
        live = tuple(Node(f"n{at}", failures_per_day=lost / node_days) for at in range(1, NODES - lost + 1))
        job = _describe(model, fit, grid, missing, made[-1].rate)
        plan = plan_allocation(Cluster(live, (job,))).jobs[0]
        if plan.change == "recycle":
            missing += 1
        elif plan.change != "replace":
            grid, missing = _grid_of(fit, plan.after), 0
        made.append(Stretch(plan.throughput_after, plan.downtime_s + plan.lost_work_s))
    return made


def average(batch: float, stretches: Sequence[Stretch], interval_s: float) -> float:
    """Return samples per second over a trace: of whole steps, until the last of them ends.

    The artifact counts so, too, but takes steps as done that would have ended during a pause; here they are lost.
    """
    done, end_s = 0, _START_S
    for number, stretch in enumerate(stretches):
        start_s = number * interval_s + stretch.pause_s + (0.0 if number else _START_S)
        steps = max(0, int(((number + 1) * interval_s - start_s) * stretch.rate / batch))
        done += steps
        end_s = start_s + steps * batch / stretch.rate if steps else end_s
    return done * batch / (end_s - _START_S) if done else 0.0


def _measure(model: Measured, fits: Sequence[Fit], intervals: Sequence[str], note: Note) -> Iterator[Figure]:
    note(f"Oobleck's traces: {model.name} beside Oobleck, Varuna and Bamboo")
    grid = fits[0].best(NODES)
    reference = (
        f"{grid.pipelines} pipelines of {grid.stages}, {fits[0].micro_batches} micro-batches in a step, "
        f"{fits[0].full:.4g} samples/s on 30 nodes"
    )
    yield Figure(f"{model.name}: error of our model beside Varuna's table", fits[0].error, "", reference=reference)
    for at, (interval, interval_s) in enumerate(INTERVALS_S.items()):
        if interval in intervals:
            yield from _compare(model, fits, at, f"{model.name}, a loss every {interval}", interval_s)


def _compare(model: Measured, fits: Sequence[Fit], at: int, name: str, interval_s: float) -> Iterator[Figure]:
    theirs = {system: values[at] for system, values in model.averages.items()}
    best = max(theirs.values())
    ours = [average(model.batch, list_planned(model, fit, interval_s), interval_s) for fit in fits]
    policies = (list_rerouted(model, fits[0]), list_dropped(model, fits[0]), _pausing(model.oobleck, model.copy_s))
    rerouted, dropped, again = (average(model.batch, policy, interval_s) for policy in policies)
    reference = (
        f"{min(ours) / best:.2f} to {max(ours) / best:.2f} by fit ({len(fits)}); samples/s: planned {ours[0]:.4g}, "
        f"re-routing only {rerouted:.4g}, pipelines dropped {dropped:.4g} (model); "
        + ", ".join(f"{system} {value:.4g}" for system, value in theirs.items())
        + f" (their simulators); Oobleck's table in our replay {again:.4g}"
    )
    yield Figure(f"{name}: ours over the best of theirs", ours[0] / best, "x", reference=reference)
    yield Figure(f"{name}: re-routing over dropping pipelines", rerouted / dropped, "x", 1.0)


def _pausing(rates: Sequence[float], pause_s: float) -> list[Stretch]:
    return [Stretch(rate, pause_s if lost else 0.0) for lost, rate in enumerate(rates)]


def _misfit(model: Measured, stages: tuple[int, ...], micro_batches: int) -> float:
    """Return how far the shape of the curve is off, whatever its height."""
    grids = [_best(stages, micro_batches, NODES - lost) for lost in range(LOSSES)]
    pairs = zip(model.varuna, grids, strict=True)
    return pstdev(log(rate * _step(grid, micro_batches, 0)) for rate, grid in pairs)


def _describe(model: Measured, fit: Fit, grid: Grid, missing: int, rate: float) -> Job:
    """Return the job as the planner sees it when the first of its nodes is lost.

    Every stage has a copy left, so another grid starts from a checkpoint saved at that moment: nothing is done twice.
    """
    held = grid.nodes - missing
    counts = (other.nodes for other in _list_grids(fit.stages, NODES))
    rates = {count: fit.rate(_grid_of(fit, count)) for count in counts} | {held: rate}
    restart_s, save_s, copy_s, further = model.restart_s, model.save_s, model.copy_s, {1: fit.rate(grid, missing + 1)}
    costs = Recovery(restart_s, lost_work_s=save_s, save_s=save_s, peer_s=copy_s, recycle_s=copy_s, recycled=further)
    return Job(model.name, tabulate(rates), tuple(f"n{at}" for at in range(held)), may_stop=False, recovery=costs)


def _grid_of(fit: Fit, nodes: int) -> Grid:
    """Return the fastest grid of exactly so many nodes."""
    return min((grid for grid in _list_grids(fit.stages, nodes) if grid.nodes == nodes), key=fit.step)


def _list_grids(stages: Sequence[int], nodes: int) -> list[Grid]:
    return [Grid(count, pipelines) for count in stages for pipelines in range(1, nodes // count + 1)]


@lru_cache(maxsize=4_096)
def _best(stages: tuple[int, ...], micro_batches: int, nodes: int) -> Grid:
    return min(_list_grids(stages, nodes), key=lambda grid: _step(grid, micro_batches, 0))


@lru_cache(maxsize=65_536)
def _step(grid: Grid, micro_batches: int, missing: int) -> float:
    """Return the length of a step: 1F1B on a whole grid, and never less than that where nodes are missing.

    Dropping a pipeline is re-routing all that it has to do, and a live node can be left idle: whatever is best.
    """
    gone = ceil(missing / grid.stages)  # copies of the stage that has lost most
    if gone >= grid.pipelines:
        return inf
    each = ceil(micro_batches / grid.pipelines)
    whole = 3.0 * (each + grid.stages - 1) / grid.stages  # with more stages, each has fewer layers
    if not missing:
        return whole
    shape, times = Shape(grid.stages, grid.pipelines, each), unit_times(grid.stages)
    split = spread_failures(shape, times, missing)
    assert split is not None  # each stage has a copy left
    made = plan_schedule(shape, times, place_failures(split), ScheduleOptions(memory=grid.stages))
    if missing < gone * grid.stages:
        other = _step(grid, micro_batches, missing + 1)
    else:
        other = _step(Grid(grid.stages, grid.pipelines - gone), micro_batches, 0)
    return max(whole, min(made.period / grid.stages, other))
