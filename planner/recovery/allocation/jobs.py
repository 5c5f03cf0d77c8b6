"""What is planned over: nodes with their own failure rates, and jobs with what they do on so many of them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lockstep.errors import BadInput
from planner.recovery.allocation.throughput import Throughput


@dataclass(frozen=True, slots=True)
class Node:
    """A host that jobs can run on."""

    name: str
    leaf: str | None = None  # the leaf switch, or the group of leaves of all rails, that it is cabled to
    block: str | None = None  # what holds several leaves: a pod, or a row of racks
    failures_per_day: float = 0.0  # expected, from the evidence about this very node
    is_usable: bool = True


@dataclass(frozen=True, slots=True)
class Ways:
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
    ways: Ways = field(default_factory=Ways)

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
        """Return a job that is planned for."""
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
    for name, times in Counter(node.name for node in cluster.nodes).items():
        if times > 1:
            yield f"node {name} is listed {times} times"
    for node in cluster.nodes:
        if not 0 <= node.failures_per_day < float("inf"):
            yield f"node {node.name} has {node.failures_per_day} failures per day, expected a number of 0 or more"
    if not 0 <= cluster.repairs_per_day < float("inf"):
        yield f"{cluster.repairs_per_day} repairs per day, expected a number of 0 or more"
    for name, times in Counter(job.id for job in (*cluster.jobs, *cluster.waiting)).items():
        if times > 1:
            yield f"job {name} is listed {times} times"
    for name, times in Counter(name for job in cluster.jobs for name in job.nodes).items():
        if times > 1:
            yield f"node {name} is held {times} times"
    for job in (*cluster.jobs, *cluster.waiting):
        yield from _complain_about(job)


def _complain_about(job: Job) -> Iterator[str]:
    if not 0 < job.weight < float("inf"):
        yield f"job {job.id} has weight {job.weight}, expected a number above 0"
    if job.least < 0 or (job.most is not None and job.most < job.least):
        yield f"job {job.id} may have {job.least} to {job.most} nodes, which is no range"
    if not job.may_stop and not len(job.runs_on()):
        yield f"job {job.id} may not stop, and its table holds no count of nodes that it may be given"
    if job.nodes_per_replica is not None and job.nodes_per_replica < 1:
        yield f"job {job.id} has {job.nodes_per_replica} nodes in each replica, expected 1 or more"
    seconds = {name: getattr(job.ways, name) for name in ("restart_s", "lost_work_s", "save_s")}
    seconds |= {name: getattr(job.ways, name) or 0.0 for name in ("peer_s", "drop_s", "recycle_s")}
    for name, value in seconds.items():
        if not 0 <= value < float("inf"):
            yield f"job {job.id} has {name} {value}, expected seconds of 0 or more"
