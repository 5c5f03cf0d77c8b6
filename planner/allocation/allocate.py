"""The plan over all jobs after a fault or another event: counts, ways and nodes, beside what else could be done."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from planner.allocation.cluster import Cluster, Event, Job, Node, Recovery, apply, check_cluster, expect_running_s
from planner.allocation.foresight import Foresight, Outlook, foresee
from planner.allocation.gains import Change, Choices, list_choices, state_of
from planner.allocation.solve import solve

_DOUBTFUL = 3.0  # times the median rate: beyond what chance makes of the rates of equal nodes


@dataclass(frozen=True)
class Placement:
    """The nodes of one job, and why these."""

    job: str
    nodes: tuple[str, ...]  # replica by replica; one that replaces a lost node stands in its place
    reasons: Mapping[str, str] = field(default_factory=dict)  # of each node it has, and each it does not keep
    taken: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()  # lost ones too


def place_jobs(cluster: Cluster, counts: Mapping[str, int], changes: Mapping[str, Change]) -> dict[str, Placement]:
    """Return the nodes of each job; BadInput where the counts are more than the usable nodes.

    A job keeps all usable nodes it holds up to its count, so that the moves are as few as can be. What it needs
    besides comes from the leaf where most of its nodes are, then from the same block, then from the leaf that fits
    best, so that whole leaves stay whole. Nodes that fail much more often than the others are taken last. Nothing is
    left to chance.
    """
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
        # New nodes stand where others left, and at the end.
        rest = iter(taken)
        filled = [name if name in names else next(rest, None) for name in job.nodes]
        nodes = (*(name for name in filled if name is not None), *rest)
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
    index = {name: at for at, name in enumerate(job.nodes)}
    replica = {node.name: index[node.name] // size if size else index[node.name] for node in live}
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
            -index[node.name],
        ),
    )
    gone = order[:surplus]
    return {node.name: _say_given_up(node, whole[replica[node.name]] < (size or 1), limit) for node in gone}


def _say_given_up(node: Node, is_of_broken: bool, limit: float) -> str:
    if is_of_broken:
        return "given up: its replica lost a node"
    if node.failures_per_day > limit:
        return f"given up: it fails {node.failures_per_day:g} times a day, more than {limit:g}"
    return f"given up: fewest other nodes of the job are near it{f' on {node.leaf}' if node.leaf else ''}"


class _Pool:
    """The nodes that nobody keeps, by leaf; the good ones first."""

    def __init__(self, nodes: Iterable[Node], limit: float) -> None:
        self._by_leaf: tuple[dict[str, list[Node]], dict[str, list[Node]]] = ({}, {})
        self._limit = limit
        for node in sorted(nodes, key=lambda node: (node.failures_per_day, node.name), reverse=True):
            by_leaf = self._by_leaf[node.failures_per_day > limit]
            by_leaf.setdefault(node.leaf or "", []).append(node)  # the best of a leaf comes last, where it is popped

    def take(self, job: str, near: list[Node], count: int) -> dict[str, str]:
        """Return so many nodes with the reason for each, and have them no more."""
        leaves, blocks = Counter(node.leaf or "" for node in near), Counter(node.block or "" for node in near)
        reasons: dict[str, str] = {}
        for by_leaf in self._by_leaf:
            while len(reasons) < count and by_leaf:
                leaf = _choose_leaf(by_leaf, leaves, blocks, count - len(reasons))
                for _ in range(min(count - len(reasons), len(by_leaf[leaf]))):
                    node = by_leaf[leaf].pop()
                    reasons[node.name] = self._say_taken(job, node, leaves, blocks)
                    leaves[leaf] += 1
                    blocks[node.block or ""] += 1
                if not by_leaf[leaf]:
                    del by_leaf[leaf]
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


def _choose_leaf(by_leaf: dict[str, list[Node]], leaves: Counter[str], blocks: Counter[str], count: int) -> str:
    """Return the leaf to take from: where the job is, or in its block, or the smallest that has all it needs."""

    def rank(leaf: str) -> tuple[int, int, bool, int, str]:
        free = len(by_leaf[leaf])
        mine = leaves[leaf] if leaf else 0
        block = by_leaf[leaf][-1].block
        return -mine, -blocks[block] if block else 0, free < count, free if free >= count else -free, leaf

    return min(by_leaf, key=rank)


@dataclass(frozen=True)
class JobPlan:
    """What becomes of one job."""

    job: str
    before: int  # nodes, lost ones too
    after: int  # nodes
    change: Change
    downtime_s: float
    lost_work_s: float  # done again
    throughput_before: float  # weighted work per second
    throughput_after: float
    is_measured: bool  # what it does on so many nodes was seen, not modelled
    placement: Placement


@dataclass(frozen=True)
class Alternative:
    """Another plan, and what it is worth beside the one that was chosen."""

    name: str
    throughput_after: float
    value: float  # weighted work until the next plan, less what the changes cost
    changed: int  # jobs
    reason: str


@dataclass(frozen=True)
class Allocation:
    """The best plan over all jobs."""

    running_s: float  # expected until the next plan
    jobs: tuple[JobPlan, ...]
    value: float  # weighted work until the next plan, less what the changes cost
    reason: str
    alternatives: tuple[Alternative, ...] = ()

    @property
    def throughput_before(self) -> float:
        return sum(job.throughput_before for job in self.jobs)

    @property
    def throughput_after(self) -> float:
        """Return the weighted work per second once all changes are made."""
        return sum(job.throughput_after for job in self.jobs)


def plan_allocation(cluster: Cluster) -> Allocation:
    """Return the best plan; BadInput where the jobs must have more nodes than there are."""
    return finish(cluster, solve_now(cluster))


def solve_now(cluster: Cluster) -> Outlook:
    """Return what is best for a cluster as it is, in counts."""
    check_cluster(cluster)
    running_s, capacity = expect_running_s(cluster), len(cluster.usable)
    choices = tuple(list_choices(job, state_of(job, cluster), running_s, capacity) for job in cluster.jobs)
    return Outlook(running_s, choices, solve(choices, capacity))


def finish(cluster: Cluster, outlook: Outlook) -> Allocation:
    """Return the plan with its nodes, reasons and alternatives; the outlook may come from foresight."""
    found, choices = outlook.solution, outlook.choices
    if found is None:
        raise BadInput(f"the jobs must have more than the {len(cluster.usable)} nodes that can be used")
    picked = list(zip(choices, found.picks.tolist(), strict=True))
    counts = {one.job.id: int(one.counts[pick]) for one, pick in picked}
    placed = place_jobs(cluster, counts, {one.job.id: one.change_at(pick) for one, pick in picked})
    jobs = tuple(_plan_job(one, pick, placed[one.job.id]) for one, pick in picked)
    others = tuple(_list_alternatives(choices, len(cluster.usable), found.value))
    return Allocation(outlook.running_s, jobs, found.value, _say(choices, jobs, outlook.running_s), others)


def _plan_job(choices: Choices, pick: int, placement: Placement) -> JobPlan:
    return JobPlan(
        choices.job.id,
        choices.state.held,
        int(choices.counts[pick]),
        choices.change_at(pick),
        float(choices.downtime_s[pick]),
        float(choices.lost_work_s[pick]),
        choices.job.work_on(choices.state.held),
        float(choices.work[pick]),
        int(choices.counts[pick]) in choices.job.throughput.measured,
        placement,
    )


def _list_alternatives(choices: Sequence[Choices], capacity: int, best: float) -> list[Alternative]:
    """Return what else could be done: nothing, and to change only the jobs that were hit."""
    unchanged = [one.only(one.counts == (0 if one.state.is_hit else one.state.held)) for one in choices]
    hit_only = [one if one.state.is_hit else one.only(one.counts == one.state.held) for one in choices]
    named = [("do nothing", "jobs that were hit stand still, the others go on", unchanged)]
    if any(one.state.is_hit for one in choices):
        named.append(("only the jobs that were hit", "no healthy job is touched", hit_only))
    # Possible is what leaves each job a choice, with nodes enough for the smallest of each.
    return [
        _weigh(name, reason, offers, capacity, best)
        for name, reason, offers in named
        if all(len(one.counts) for one in offers) and sum(int(one.counts.min()) for one in offers) <= capacity
    ]


def _weigh(name: str, reason: str, offers: Sequence[Choices], capacity: int, best: float) -> Alternative:
    found = solve(offers, capacity)
    work = sum(float(one.work[pick]) for one, pick in zip(offers, found.picks, strict=True))
    changed = sum(one.change_at(pick) != "none" for one, pick in zip(offers, found.picks, strict=True))
    share = f"{found.value / best:.1%}" if best > 0 else f"{found.value - best:+.3g}"
    return Alternative(name, work, found.value, changed, f"{reason}; worth {share} of the plan")


def _say(choices: Sequence[Choices], jobs: Sequence[JobPlan], running_s: float) -> str:
    """Return the plan in a sentence: who changes and how, and why the others do not."""
    changed = [job for job in jobs if job.change != "none"]
    message = ", ".join(f"{job.job} {job.before} -> {job.after} nodes by {job.change}" for job in changed[:6])
    more = f" and {len(changed) - 6} more" if len(changed) > 6 else ""
    until = f"within the {running_s / 3600:.3g} hours until the next plan is expected"
    if not changed:
        return f"nothing changes: no other plan does more work {until}"
    pairs = zip(choices, jobs, strict=True)
    healthy = [job for one, job in pairs if one.state.held > 0 and not one.state.is_hit]
    moved = sum(job.change != "none" for job in healthy)
    if moved:
        return f"{message}{more}: changing {moved} of {len(healthy)} healthy jobs pays {until}"
    return f"{message}{more}: the {len(healthy)} healthy jobs stay as they are, changing them would not pay {until}"


_MOST_SHARE = 0.1  # of the planner's time
_FRESH_S = 300.0  # after which checkpoints are too old for the costs that were worked out with them
# Jobs times nodes squared, as the programme's cost grows: 50 jobs on 1,280 nodes are 82 million and take 0.8 s of a
# processor. Beyond this a round, in which faults are answered too, would stand still for seconds.
_MOST_WORK = 200_000_000


@dataclass(frozen=True)
class _Kept:
    foresight: Foresight
    state: Cluster
    made_ns: int
    took_s: float


class WarmAnswers:
    """The answers to what can happen next to the cluster as it was seen last.

    They are worked out anew when the state of the cluster changes, between events, and never for more than a tenth of
    the time: a cluster too large for that is solved at the event. Checkpoints grow older meanwhile, so an answer that
    was kept for long is worked out again, too.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def keep(self, cluster: Cluster, now_ns: int) -> bool:
        """Work the answers out where the cluster has changed and there is time; return whether that was done."""
        kept = self._kept
        if len(cluster.jobs) * len(cluster.nodes) ** 2 > _MOST_WORK or not cluster.jobs:
            return False
        if kept is not None:
            rested_s = (now_ns - kept.made_ns) / NS_PER_S
            is_old = rested_s > _FRESH_S or kept.state != _state_of(cluster)
            if not is_old or rested_s < kept.took_s / _MOST_SHARE:
                return False
        began = time.perf_counter()
        try:
            found = foresee(check_cluster(cluster))
        except BadInput:
            return False  # such as a node that two jobs hold for a moment: whoever plans over it says so
        self._kept = _Kept(found, _state_of(cluster), now_ns, time.perf_counter() - began)
        return True

    def answer(self, before: Cluster, event: Event | None, after: Cluster, now_ns: int) -> Allocation:
        """Return the best plan for the cluster after an event: looked up, or solved where nothing fits it.

        BadInput where the jobs must have more nodes than there are.
        """
        kept = self._kept
        if event is None or kept is None or kept.state != _state_of(before) or not _is_foreseen(event, kept, after):
            return plan_allocation(after)
        plan = finish(after, kept.foresight.lookup(event))
        ago_s = max(now_ns - kept.made_ns, 0) / NS_PER_S
        return replace(plan, reason=f"{plan.reason} (looked up: worked out {ago_s:.0f} s before the event)")


def _is_foreseen(event: Event, kept: _Kept, after: Cluster) -> bool:
    """Return whether there is an answer, and nothing but the event has happened.

    A node that nobody knew is planned for like an average one.
    """
    if event not in kept.foresight.cases and event.kind != "node_joins":
        return False
    return apply(kept.state, event).jobs == _state_of(after).jobs


def _state_of(cluster: Cluster) -> Cluster:
    """Return what an answer depends on, without the age of checkpoints, which changes all the time."""
    return replace(cluster, jobs=tuple(replace(job, recovery=Recovery()) for job in cluster.jobs))
