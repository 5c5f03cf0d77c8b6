"""What is planned over: nodes with their own failure rates, and jobs with what they do on so many of them."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from lockstep.errors import BadInput
from lockstep.topology import Topology, TopologyIndex
from planner.allocation.throughput import Throughput


@dataclass(frozen=True, slots=True)
class Node:
    """A host that jobs can run on."""

    name: str
    leaf: str | None = None  # the leaf switch, or the group of leaves of all rails, that it is cabled to
    block: str | None = None  # what holds several leaves: a pod, or a row of racks
    failures_per_day: float = 0.0  # expected, from the evidence about this very node
    is_usable: bool = True


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long a job stands still on each way to other nodes; None: it cannot go that way.

    The defaults are those of Unicron's case on 256 GPUs (arXiv 2401.00134): 14 minutes to set up, 15 to compute
    again. A planned stop is taken to save in a minute.
    """

    restart_s: float = 840.0  # start processes and load a checkpoint
    lost_work_s: float = 900.0  # since the last checkpoint: done again after a fault
    save_s: float = 60.0  # a checkpoint before a change that nothing forces
    peer_s: float | None = None  # nodes that are new, or processes, get their state from live replicas
    drop_s: float | None = None  # whole replicas are left out, the others share their work
    recycle_s: float | None = None  # peers take over the stages of lost nodes
    recycled: Mapping[int, float] = field(default_factory=dict)  # work per second with so many nodes missing


@dataclass(frozen=True, slots=True)
class Job:
    """A job, what it holds, and what it may be given."""

    id: str
    throughput: Throughput
    nodes: tuple[str, ...] = ()  # that it holds, lost ones too, replica by replica; none: it does not run
    weight: float = 1.0
    minimum: int = 1  # nodes below which it does no work
    least: int = 0  # nodes that a plan may give it, unless it is stopped
    most: int | None = None  # None: as many as its table knows
    may_stop: bool = True  # a plan may leave it without nodes
    was_hit: bool = False  # its processes failed though its nodes are usable
    nodes_per_replica: int | None = None  # None: replicas are not known
    recovery: Recovery = field(default_factory=Recovery)

    def allows(self, counts: np.ndarray) -> np.ndarray:
        """Return which of these counts a plan may give it."""
        most = np.inf if self.most is None else self.most
        allowed: np.ndarray = (counts >= max(self.least, self.minimum, 1)) & (counts <= most)
        return allowed

    def runs_on(self) -> np.ndarray:
        """Return the counts that it can run on and may be given."""
        counts, _ = self.throughput.arrays
        allowed: np.ndarray = counts[self.allows(counts)]
        return allowed

    def work_on(self, count: int) -> float:
        """Return the weighted work per second (WAF) on so many nodes: F(t, x) = w(t) T(t, x)."""
        return self.weight * self.throughput.at(count) if count >= self.minimum else 0.0


@dataclass(frozen=True)
class Cluster:
    """Nodes, the jobs that run or ask to run, and those that are known to come."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    waiting: tuple[Job, ...] = ()  # not planned for until they start
    repairs_per_day: float = 0.0  # nodes that are expected back

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Return the nodes by their name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def usable(self) -> tuple[Node, ...]:
        """Return the nodes that work can be given to."""
        return tuple(node for node in self.nodes if node.is_usable)

    @cached_property
    def holder(self) -> Mapping[str, str]:
        """Return the job that holds a node, by the node's name."""
        return {name: job.id for job in self.jobs for name in job.nodes}

    def job(self, name: str) -> Job:
        for job in self.jobs:
            if job.id == name:
                return job
        raise BadInput(f"there is no job {name} among {', '.join(job.id for job in self.jobs) or 'none'}")

    def is_lost(self, name: str) -> bool:
        """Return whether a node that a job holds cannot be used, or is not there any more."""
        node = self.by_name.get(name)
        return node is None or not node.is_usable


def check_cluster(cluster: Cluster) -> Cluster:
    """Return the cluster when it makes sense; BadInput with the first thing that does not."""
    for complaint in _complain(cluster):
        raise BadInput(complaint)
    return cluster


def _complain(cluster: Cluster) -> Iterator[str]:
    yield from _list_twice("node", "listed", (node.name for node in cluster.nodes))
    for node in cluster.nodes:
        if not 0 <= node.failures_per_day < float("inf"):
            yield f"node {node.name} has {node.failures_per_day} failures per day, expected a number of 0 or more"
    if not 0 <= cluster.repairs_per_day < float("inf"):
        yield f"{cluster.repairs_per_day} repairs per day, expected a number of 0 or more"
    yield from _list_twice("job", "listed", (job.id for job in (*cluster.jobs, *cluster.waiting)))
    yield from _list_twice("node", "held", (name for job in cluster.jobs for name in job.nodes))
    for job in (*cluster.jobs, *cluster.waiting):
        yield from _complain_about(job)


def _list_twice(what: str, how: str, names: Iterable[str]) -> Iterator[str]:
    return (f"{what} {name} is {how} {times} times" for name, times in Counter(names).items() if times > 1)


def _complain_about(job: Job) -> Iterator[str]:
    if not 0 < job.weight < float("inf"):
        yield f"job {job.id} has weight {job.weight}, expected a number above 0"
    if job.least < 0 or (job.most is not None and job.most < job.least):
        yield f"job {job.id} may have {job.least} to {job.most} nodes, which is no range"
    if not job.may_stop and not len(job.runs_on()):
        yield f"job {job.id} may not stop, and its table holds no count of nodes that it may be given"
    if job.nodes_per_replica is not None and job.nodes_per_replica < 1:
        yield f"job {job.id} has {job.nodes_per_replica} nodes in each replica, expected 1 or more"
    seconds = {name: getattr(job.recovery, name) for name in ("restart_s", "lost_work_s", "save_s")}
    seconds |= {name: getattr(job.recovery, name) or 0.0 for name in ("peer_s", "drop_s", "recycle_s")}
    for name, value in seconds.items():
        if not 0 <= value < float("inf"):
            yield f"job {job.id} has {name} {value}, expected seconds of 0 or more"


_FLEET_FAILURES_PER_DAY = 0.0065  # where nothing failed yet: Meta's RSC-1, 6.50 per 1,000 node-days


def estimate_failure_rates(failures: Mapping[str, int], days_seen: Mapping[str, float]) -> dict[str, float]:
    """Return failures per day of each node that was watched: that of all nodes, moved by the node's own record.

    The rate is the mean of a gamma distribution that starts with the weight of one failure at the rate of the fleet,
    so that a node without a record is like the others, and one that failed three times is not.

    >>> rates = estimate_failure_rates({"h0": 3}, {"h0": 100.0, "h1": 100.0})
    >>> round(rates["h0"] / rates["h1"], 6)
    4.0
    """
    days = sum(days_seen.values())
    failed = sum(failures.get(name, 0) for name in days_seen)
    fleet = failed / days if failed and days > 0 else _FLEET_FAILURES_PER_DAY
    return {name: (failures.get(name, 0) + 1) / (seen + 1 / fleet) for name, seen in days_seen.items()}


def place_nodes(topology: Topology, failures_per_day: Mapping[str, float]) -> tuple[Node, ...]:
    """Return the hosts of a topology as nodes; those on the leaves of the same rails are on one leaf here."""
    index = TopologyIndex(topology)
    typical = sorted(failures_per_day.values())[len(failures_per_day) // 2] if failures_per_day else 0.0
    return tuple(
        Node(
            host.id,
            "+".join(sorted({leaf for nic in host.nics if (leaf := index.leaf_of(host.id, nic.id))})) or None,
            host.rack,
            failures_per_day.get(host.id, typical),
        )
        for host in topology.hosts
    )


_DAY_S = 86_400.0
_LONGEST_S = 28 * _DAY_S  # nobody plans further ahead; also keeps a cluster without failures finite
_STEP = 1.1  # rates estimated from rare failures are no better known; and most single events keep their step


def expect_running_s(cluster: Cluster) -> float:
    """Return the seconds until the next plan, rounded to a step of a tenth so that small changes change nothing.

    The rate is that of the nodes' own evidence, not one MTBF for all. Which nodes a plan will use is known only after
    it is made, so this is an approximation: the average rate of all usable nodes times the number of nodes that the
    jobs can use at most. It is exact where the jobs can use all nodes, and off by how unlike the average the idle
    ones are. Failures are taken to be independent and without memory.
    """
    return running_s_of(
        len(cluster.usable),
        math.fsum(node.failures_per_day for node in cluster.usable),
        sum(most_useful(job) for job in cluster.jobs),
        cluster.repairs_per_day,
    )


def running_s_of(usable: int, failures_per_day: float, useful: int, repairs_per_day: float) -> float:
    """Return the seconds until the next plan of so many usable nodes with that sum of rates, of which so many are
    of use to jobs.

    >>> running_s_of(8, 0.82, 100, 0.0) == running_s_of(8, 0.83, 100, 0.0)
    True
    """
    failures = failures_per_day / max(usable, 1) * min(usable, useful)
    seconds = min(_DAY_S / max(failures + repairs_per_day, 1e-9), _LONGEST_S)
    return float(_STEP ** round(math.log(seconds, _STEP)))


def most_useful(job: Job) -> int:
    """Return the most nodes that a job can be given."""
    known = [*job.throughput.counts[-1:], len(job.nodes)]
    return min(max(known), job.most) if job.most is not None else max(known)


EventKind = Literal["node_lost", "node_joins", "job_ends", "job_starts"]


class Event(NamedTuple):
    """One thing that happens to one node or job."""

    kind: EventKind
    name: str


ANY_NODE = ""  # joins that the cluster does not know yet: every new node is planned for in the same way


def parse_event(text: str) -> Event:
    """Return the event that a person wrote, such as node_lost:h3."""
    kind, sign, name = text.partition(":")
    for known in get_args(EventKind):
        if sign and name and kind == known:
            return Event(known, name)
    raise BadInput(f"event {text}: expected KIND:NAME with a kind of {', '.join(get_args(EventKind))}")


def apply(cluster: Cluster, event: Event) -> Cluster:
    """Return the cluster after an event; BadInput where it cannot happen there."""
    match event.kind:
        case "node_lost":
            return _set_usable(cluster, event.name, is_usable=False)
        case "node_joins":
            return _join(cluster, event.name)
        case "job_ends":
            gone = cluster.job(event.name)
            return replace(cluster, jobs=tuple(job for job in cluster.jobs if job is not gone))
        case "job_starts":
            return _start(cluster, event.name)


def list_events(cluster: Cluster) -> Iterator[Event]:
    """Yield every single event that can come next."""
    yield from (Event("node_lost", node.name) for node in cluster.usable)
    yield from (Event("node_joins", node.name) for node in cluster.nodes if not node.is_usable)
    yield Event("node_joins", ANY_NODE)
    yield from (Event("job_ends", job.id) for job in cluster.jobs)
    yield from (Event("job_starts", job.id) for job in cluster.waiting)


def _set_usable(cluster: Cluster, name: str, is_usable: bool) -> Cluster:
    node = cluster.by_name.get(name)
    if node is None:
        raise BadInput(f"there is no node {name} in this cluster of {len(cluster.nodes)}")
    if node.is_usable == is_usable:
        raise BadInput(f"node {name} is {'usable' if is_usable else 'lost'} already")
    changed = (replace(node, is_usable=is_usable) if node.name == name else node for node in cluster.nodes)
    return replace(cluster, nodes=tuple(changed))


def _join(cluster: Cluster, name: str) -> Cluster:
    """Return the cluster with a node more: one that was out, or a new one of average quality."""
    if name in cluster.by_name:
        return _set_usable(cluster, name, is_usable=True)
    usable = cluster.usable
    average = sum(node.failures_per_day for node in usable) / max(len(usable), 1)
    return replace(cluster, nodes=(*cluster.nodes, Node(name, failures_per_day=average)))


def _start(cluster: Cluster, name: str) -> Cluster:
    for job in cluster.waiting:
        if job.id == name:
            rest = tuple(other for other in cluster.waiting if other is not job)
            return replace(cluster, jobs=(*cluster.jobs, job), waiting=rest)
    waiting = ", ".join(job.id for job in cluster.waiting) or "none"
    raise BadInput(f"there is no job {name} among those that wait: {waiting}")
