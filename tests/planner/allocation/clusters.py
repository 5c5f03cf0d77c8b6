"""Small clusters, built in a line or drawn at random."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from planner.allocation.cluster import Cluster, Job, Node, Recovery
from planner.allocation.throughput import Throughput, tabulate


def nodes(count: int, per_leaf: int = 4, rate: float = 0.01) -> tuple[Node, ...]:
    return tuple(Node(f"h{at}", f"leaf{at // per_leaf}", f"block{at // (2 * per_leaf)}", rate) for at in range(count))


def without(those: tuple[Node, ...], *names: str) -> tuple[Node, ...]:
    return tuple(replace(node, is_usable=node.name not in names) for node in those)


def linear(most: int, share: float = 0.9, each: float = 100.0) -> Throughput:
    return tabulate({count: each * count**share for count in range(1, most + 1)})


def job(name: str, first: int = 0, count: int = 0, table: Throughput | None = None, **more: object) -> Job:
    held = tuple(f"h{at}" for at in range(first, first + count))
    return replace(Job(name, table or linear(16), held), **more)  # type: ignore[arg-type]  # fields by their name


@st.composite
def tables(draw: st.DrawFn, most: int) -> Throughput:
    counts = draw(st.sets(st.integers(1, most), min_size=1, max_size=most))
    return tabulate({count: draw(st.floats(0, 500)) for count in counts})


@st.composite
def ways(draw: st.DrawFn) -> Recovery:
    seconds = st.floats(0, 5_000)
    maybe = st.none() | seconds
    recycled = draw(st.dictionaries(st.integers(1, 3), st.floats(0, 500), max_size=2))
    return Recovery(draw(seconds), draw(seconds), draw(seconds), draw(maybe), draw(maybe), draw(maybe), recycled)


@st.composite
def clusters(draw: st.DrawFn, most_nodes: int = 9, most_jobs: int = 4) -> Cluster:
    """Draw a cluster in which some nodes are lost, some jobs are hit, some wait and some have bounds."""
    size = draw(st.integers(1, most_nodes))
    rates = st.sampled_from([0.0, 0.001, 0.01, 0.3, 2.0])
    there = tuple(
        Node(f"h{at}", f"leaf{at // 3}", f"block{at // 6}", draw(rates), draw(st.integers(0, 9)) > 0)
        for at in range(size)
    )
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=most_jobs)))
    runs = [_draw_job(draw, f"j{at}", range(a, b), size) for at, (a, b) in enumerate(pairwise(cuts))]
    waits = [_draw_job(draw, f"w{at}", range(0), size) for at in range(draw(st.integers(0, 2)))]
    return Cluster(there, tuple(runs), tuple(waits), draw(st.sampled_from([0.0, 0.5])))


def _draw_job(draw: st.DrawFn, name: str, held: range, size: int) -> Job:
    table = draw(tables(size + 1))
    made = Job(
        name,
        table,
        tuple(f"h{at}" for at in held),
        weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
        minimum=draw(st.integers(1, 2)),
        most=draw(st.none() | st.integers(1, size)),
        was_hit=draw(st.booleans()),
        nodes_per_replica=draw(st.none() | st.integers(1, 3)),
        recovery=draw(ways()),
    )
    return replace(made, may_stop=draw(st.integers(0, 3)) > 0) if len(made.runs_on()) else made
