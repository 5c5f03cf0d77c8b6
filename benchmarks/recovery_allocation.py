"""How long the planner takes to share nodes among jobs: clusters of three sizes, and the worst case beside them.

A solve is everything from a cluster to counts: standing and choices of each job, horizon, and the optimum. Placing
the nodes, and the table of every next event, are timed apart. The worst case is the dynamic programme when no choice
can be left out. Tables are drawn with a seed: concave with dents, as divisibility makes them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from time import perf_counter, process_time

import numpy as np

from benchmarks.figures import Figure, Note
from planner.recovery.allocation.events import Event, apply
from planner.recovery.allocation.foresight import foresee
from planner.recovery.allocation.gains import list_choices, stand
from planner.recovery.allocation.horizon import expect_running_s
from planner.recovery.allocation.jobs import Cluster, Job, Node, Ways
from planner.recovery.allocation.planning import finish, look_now
from planner.recovery.allocation.solving import solve
from planner.recovery.allocation.throughput import tabulate

_SEED = 8
_PER_LEAF, _PER_BLOCK = 16, 256
_FAILURES_PER_DAY = 0.0065  # of a node: Meta's RSC-1, 6.50 per 1,000 node-days


@dataclass(frozen=True)
class Size:
    """A cluster that is measured."""

    jobs: int
    nodes: int
    window: int | None  # counts up and down from what a job holds that it may have; None: any
    floor_s: float | None
    goal_s: float | None
    runs: int


SIZES = (
    Size(6, 128, None, None, None, 50),
    Size(50, 1_280, None, 0.5, 0.1, 20),
    Size(1_000, 12_500, 20, None, 1.0, 7),
)


def measure_allocation(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of all sizes; quick: fewer runs, and no foresight for the largest."""
    return tuple(figure for size in SIZES for figure in measure_size(size, quick, note))


def measure_size(size: Size, quick: bool, note: Note) -> Iterator[Figure]:
    """Yield the figures of one size, after the loss of a node."""
    name = f"{size.jobs:,} jobs x {size.nodes:,} nodes"
    note(f"sharing nodes among jobs: {name}")
    runs, few = (3, 1) if quick else (size.runs, 3)
    after = apply(draw_cluster(size), Event("node_lost", "h0"))
    outlook = look_now(after)
    yield _time(f"solve, {name}", lambda: look_now(after), runs, size.floor_s, size.goal_s)
    yield _time(f"solve, nothing left out, {name}", lambda: _solve_whole(after), few, size.floor_s, size.goal_s)
    yield _time(f"nodes and alternatives, {name}", lambda: finish(after, outlook), few)
    if not quick or size.window is None:
        yield _time(f"all single next events, {name}", lambda: foresee(after), few)


def draw_cluster(size: Size, seed: int = _SEED) -> Cluster:
    """Return a cluster whose jobs hold all nodes but one in a hundred."""
    rng = np.random.default_rng(seed)
    nodes = tuple(
        Node(f"h{at}", f"leaf{at // _PER_LEAF}", f"block{at // _PER_BLOCK}", float(rate))
        for at, rate in enumerate(rng.gamma(2.0, _FAILURES_PER_DAY / 2, size.nodes))
    )
    cuts = np.sort(rng.choice(np.arange(1, int(size.nodes * 0.99)), size.jobs - 1, replace=False))
    ends = [0, *cuts.tolist(), int(size.nodes * 0.99)]
    jobs = (_draw_job(f"j{at}", range(a, b), size, rng) for at, (a, b) in enumerate(pairwise(ends)))
    return Cluster(nodes, tuple(jobs))


def _draw_job(name: str, held: range, size: Size, rng: np.random.Generator) -> Job:
    first, last = 1, size.nodes
    if size.window is not None:
        first, last = max(1, len(held) - size.window), len(held) + size.window
    counts = np.arange(first, last + 1)
    rates = counts ** rng.uniform(0.75, 0.97) * rng.uniform(0.97, 1.0, len(counts))
    table = tabulate(dict(zip(counts.tolist(), rates.tolist(), strict=True)))
    ways = Ways(peer_s=float(rng.uniform(10, 60))) if rng.random() < 0.5 else Ways()
    made = Job(name, table, tuple(f"h{at}" for at in held), float(rng.uniform(0.5, 2.0)), ways=ways)
    return replace(made, minimum=min(int(rng.integers(1, 5)), len(held)))


def _solve_whole(cluster: Cluster) -> None:
    running_s, capacity = expect_running_s(cluster), len(cluster.usable)
    solve(
        [list_choices(job, stand(job, cluster), running_s, capacity) for job in cluster.jobs], capacity, prune=False
    )


def _time(
    name: str, call: Callable[[], object], runs: int, floor_s: float | None = None, goal_s: float | None = None
) -> Figure:
    """Return the median of several runs; beside it the best, and the processor time of the best."""
    seconds, cpu = [], []
    for _ in range(runs):
        start, busy = perf_counter(), process_time()
        call()
        seconds.append(perf_counter() - start)
        cpu.append(process_time() - busy)
    beside = f"best {min(seconds):.4f} s, CPU {min(cpu):.4f} s, of {runs} runs"
    return Figure(name, median(seconds), "s", floor_s, goal_s, False, beside)
