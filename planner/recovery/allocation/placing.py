"""Which nodes each job gets: what it holds stays, the rest is taken close by, from nodes that seldom fail.

A job keeps all usable nodes it holds up to its count, so that the moves are as few as can be. What it needs besides
comes from the leaf where most of its nodes are, then from the same block, then from the leaf that fits best, so that
whole leaves stay whole. Nodes that fail much more often than the others are taken last. Nothing is left to chance.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from lockstep.errors import BadInput
from planner.recovery.allocation.gains import Change
from planner.recovery.allocation.jobs import Cluster, Job, Node

_DOUBTFUL = 3.0  # times the median rate: beyond what chance makes of the rates of equal nodes


@dataclass(frozen=True)
class Placement:
    """The nodes of one job, and why these."""

    job: str
    nodes: tuple[str, ...]  # replica by replica; one that replaces a lost node stands in its place
    reasons: Mapping[str, str] = field(default_factory=dict)  # of each node it has, and each it does not keep
    taken: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()  # lost ones too


def place(cluster: Cluster, counts: Mapping[str, int], changes: Mapping[str, Change]) -> dict[str, Placement]:
    """Return the nodes of each job; BadInput where the counts are more than the usable nodes."""
    if sum(counts.values()) > len(cluster.usable):
        raise BadInput(f"{sum(counts.values())} nodes are asked for, and {len(cluster.usable)} can be used")
    rates = [node.failures_per_day for node in cluster.usable]
    limit = _DOUBTFUL * median(rates) if rates else 0.0
    kept = {job.id: _keep(job, cluster, counts[job.id], changes[job.id], limit) for job in cluster.jobs}
    held = {name for names, _ in kept.values() for name in names}
    pool = _Pool((node for node in cluster.usable if node.name not in held), limit)
    placed: dict[str, Placement] = {}
    for job in sorted(cluster.jobs, key=lambda job: (not kept[job.id][0], -job.weight, job.id)):
        names, reasons = kept[job.id]
        near = [cluster.by_name[name] for name in names]
        taken = pool.take(job.id, near, counts[job.id] - len(names))
        nodes = _put_in_place(job.nodes, names, list(taken))
        given_up = tuple(name for name in job.nodes if name not in names)
        placed[job.id] = Placement(job.id, nodes, reasons | taken, tuple(taken), given_up)
    return placed


def _keep(job: Job, cluster: Cluster, count: int, change: Change, limit: float) -> tuple[set[str], dict[str, str]]:
    """Return the nodes that a job keeps, and the reason for each of those it holds now."""
    reasons = {name: "lost: it cannot be used" for name in job.nodes if cluster.is_lost(name)}
    live = [cluster.by_name[name] for name in job.nodes if name not in reasons]
    surplus = len(live) - count
    if surplus > 0:
        size = job.nodes_per_replica if change == "drop_replica" else None
        reasons |= _give_up(job, live, surplus, size, limit)
    kept = {node.name for node in live if node.name not in reasons}
    return kept, reasons | {name: f"kept: {job.id} runs there" for name in job.nodes if name in kept}


def _give_up(job: Job, live: list[Node], surplus: int, size: int | None, limit: float) -> dict[str, str]:
    """Return the nodes that a job gives up: the rest of replicas that were hit, doubtful ones, then stragglers."""
    place = {name: at for at, name in enumerate(job.nodes)}
    replica = {node.name: place[node.name] // size if size else place[node.name] for node in live}
    whole = Counter(replica.values())
    on_leaf = Counter(node.leaf for node in live)
    worst: Counter[int] = Counter()
    company: dict[int, int] = {}
    for node in live:
        worst[replica[node.name]] += node.failures_per_day > limit
        company[replica[node.name]] = min(company.get(replica[node.name], len(live)), on_leaf[node.leaf])
    order = sorted(
        live,
        key=lambda node: (
            whole[replica[node.name]] == (size or 1),
            -worst[replica[node.name]],
            company[replica[node.name]],
            -replica[node.name],
            -place[node.name],
        ),
    )
    return {
        node.name: _say_given_up(node, whole[replica[node.name]] < (size or 1), limit) for node in order[:surplus]
    }


def _say_given_up(node: Node, is_of_broken: bool, limit: float) -> str:
    if is_of_broken:
        return "given up: its replica lost a node"
    if node.failures_per_day > limit:
        return f"given up: it fails {node.failures_per_day:g} times a day, more than {limit:g}"
    return f"given up: fewest other nodes of the job are near it{f' on {node.leaf}' if node.leaf else ''}"


class _Pool:
    """The nodes that nobody keeps, by leaf; the good ones first."""

    def __init__(self, nodes: Iterable[Node], limit: float) -> None:
        self._shelves: tuple[dict[str, list[Node]], dict[str, list[Node]]] = ({}, {})
        self._limit = limit
        for node in sorted(nodes, key=lambda node: (node.failures_per_day, node.name), reverse=True):
            shelf = self._shelves[node.failures_per_day > limit]
            shelf.setdefault(node.leaf or "", []).append(node)  # the best of a leaf comes last, where it is popped

    def take(self, job: str, near: list[Node], count: int) -> dict[str, str]:
        """Return so many nodes with the reason for each, and have them no more."""
        leaves, blocks = Counter(node.leaf or "" for node in near), Counter(node.block or "" for node in near)
        reasons: dict[str, str] = {}
        for shelf in self._shelves:
            while len(reasons) < count and shelf:
                leaf = _choose_leaf(shelf, leaves, blocks, count - len(reasons))
                for _ in range(min(count - len(reasons), len(shelf[leaf]))):
                    node = shelf[leaf].pop()
                    reasons[node.name] = self._say_taken(job, node, leaves, blocks)
                    leaves[leaf] += 1
                    blocks[node.block or ""] += 1
                if not shelf[leaf]:
                    del shelf[leaf]
        return reasons

    def _say_taken(self, job: str, node: Node, leaves: Counter[str], blocks: Counter[str]) -> str:
        rate = f"{node.failures_per_day:g} failures a day"
        if node.failures_per_day > self._limit:
            return f"taken: nothing better is left, {rate} is much"
        if node.leaf and leaves[node.leaf]:
            return f"taken: on {node.leaf} with {leaves[node.leaf]} of {job}, {rate}"
        if node.block and blocks[node.block]:
            return f"taken: in {node.block} with {blocks[node.block]} of {job}, {rate}"
        return f"taken: {f'{node.leaf} fits best' if node.leaf else 'it is free'}, {rate}"


def _choose_leaf(shelf: dict[str, list[Node]], leaves: Counter[str], blocks: Counter[str], count: int) -> str:
    """Return the leaf to take from: where the job is, or in its block, or the smallest that has all it needs."""

    def rank(leaf: str) -> tuple[int, int, bool, int, str]:
        free = len(shelf[leaf])
        mine = leaves[leaf] if leaf else 0
        block = shelf[leaf][-1].block
        return -mine, -blocks[block] if block else 0, free < count, free if free >= count else -free, leaf

    return min(shelf, key=rank)


def _put_in_place(held: tuple[str, ...], kept: set[str], taken: list[str]) -> tuple[str, ...]:
    """Return the nodes in their order: new ones stand where others left, and at the end."""
    rest = iter(taken)
    filled = [name if name in kept else next(rest, None) for name in held]
    return (*(name for name in filled if name is not None), *rest)
