"""What a job gains with each node count until the next plan, and the cheapest way to get there.

    G(t, x') = F(t, x') * D_running - [changed or hit] * F(t, x) * D_transition(t, x -> x', way)

F(t, x) is the weighted work per second on x nodes, 0 where the job cannot run (Unicron, arXiv 2401.00134). Unlike
there, D_transition is that of the best way for this very change: nothing, peers that take over a lost node's stages,
whole replicas left out, state copied from live replicas, or a restart from a checkpoint. Work that is lost with the
fault counts as time, too. A job that was hit pays also when it keeps its count; one that is not touched pays nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from planner.recovery.allocation.jobs import Cluster, Job

Change = Literal[
    "none",  # it goes on as it is, or goes on waiting
    "restart_process",  # on the nodes it has
    "replace",  # lost nodes by others
    "recycle",  # live peers take over the stages of lost nodes
    "drop_replica",  # whole replicas are left out
    "grow",  # by nodes that get their state from live replicas
    "reconfigure",  # another count, from a checkpoint
    "start",  # it did not run
    "stop",  # it has no nodes from now on
]
_CHANGES: tuple[Change, ...] = get_args(Change)


class Standing(NamedTuple):
    """How a job stands when a plan is made."""

    held: int  # nodes, lost ones too
    lost: int  # of them
    replicas_hit: int  # replicas with a lost node; 0 where replicas are not known
    is_hit: bool  # something forces a change


@dataclass(frozen=True)
class Choices:
    """What a job may choose from, one entry for each count."""

    job: Job
    standing: Standing
    counts: np.ndarray  # nodes, upwards
    gains: np.ndarray  # weighted work until the next plan, less what the change costs
    work: np.ndarray  # weighted work per second afterwards
    downtime_s: np.ndarray
    lost_work_s: np.ndarray
    change: np.ndarray  # index into the names of changes

    def change_at(self, pick: int) -> Change:
        """Return the way to a choice."""
        return _CHANGES[int(self.change[pick])]

    def only(self, keep: np.ndarray) -> "Choices":
        """Return a part of the choices."""
        columns = (self.counts, self.gains, self.work, self.downtime_s, self.lost_work_s, self.change)
        return Choices(self.job, self.standing, *(column[keep] for column in columns))


def stand(job: Job, cluster: Cluster) -> Standing:
    """Return how a job stands: a node it holds is lost when it cannot be used or is not in the cluster any more."""
    lost = [place for place, name in enumerate(job.nodes) if cluster.is_lost(name)]
    replicas = {place // job.nodes_per_replica for place in lost} if job.nodes_per_replica else set()
    return Standing(len(job.nodes), len(lost), len(replicas), bool(job.nodes) and (job.was_hit or bool(lost)))


def list_choices(job: Job, standing: Standing, running_s: float, capacity: int) -> Choices:
    """Return each count that a job may have, up to `capacity`, with what it gains and the best way there."""
    counts = _list_counts(job, standing, capacity)
    ways = list(_list_ways(job, standing, counts))
    before = job.work_on(standing.held)
    gains = np.array(
        [
            np.where(way.is_open, way.work * running_s - before * (way.downtime_s + way.lost_work_s), -np.inf)
            for way in ways
        ]
    )
    best = gains.argmax(axis=0)
    at = (best, np.arange(len(counts)))
    return Choices(
        job,
        standing,
        counts,
        gains[at],
        np.array([way.work for way in ways])[at],
        np.array([way.downtime_s for way in ways])[best],
        np.array([way.lost_work_s for way in ways])[best],
        np.array([_CHANGES.index(way.change) for way in ways])[best],
    )


def _list_counts(job: Job, standing: Standing, capacity: int) -> np.ndarray:
    """Return the counts that a job can run on within its bounds, and none where it may stop.

    A job that may not stop keeps also counts above the capacity: the solver says when there are not enough nodes.
    """
    counts = job.runs_on()
    if standing.lost and _can_recycle(job, standing):
        survivors = np.array([standing.held - standing.lost])
        counts = np.union1d(counts, survivors[job.allows(survivors)])
    return np.concatenate([[0], counts[counts <= capacity]]) if job.may_stop else counts


def _can_recycle(job: Job, standing: Standing) -> bool:
    are_enough = standing.held - standing.lost >= max(job.minimum, 1)
    return are_enough and job.ways.recycle_s is not None and standing.lost in job.ways.recycled


class _Way(NamedTuple):
    """One way of change: to which counts it leads, and at what cost."""

    change: Change
    is_open: np.ndarray
    work: np.ndarray
    downtime_s: float
    lost_work_s: float = 0.0


def _list_ways(job: Job, standing: Standing, counts: np.ndarray) -> Iterator[_Way]:
    """Yield the ways to each count; of equally good ones the first is taken."""
    ways, work = job.ways, _work_at(job, counts)
    held, is_same, is_running = standing.held, counts == standing.held, counts > 0
    forced = ways.lost_work_s if standing.is_hit else 0.0
    save_s = 0.0 if standing.is_hit else ways.save_s
    if not standing.is_hit:
        yield _Way("none", is_same, work, 0.0)
    if held == 0:
        yield _Way("start", is_running, work, ways.restart_s)
        return
    # A job that is stopped owes the restart: without it, stopping would look cheap where failures are frequent.
    yield _Way("stop", ~is_running, work, save_s + ways.restart_s, forced)
    if standing.lost and ways.recycle_s is not None and _can_recycle(job, standing):
        recycled = np.full(len(counts), job.weight * ways.recycled[standing.lost])
        yield _Way("recycle", counts == held - standing.lost, recycled, ways.recycle_s)
    if ways.drop_s is not None and job.nodes_per_replica:
        yield _Way("drop_replica", _whole_replicas_fewer(job.nodes_per_replica, standing, counts), work, ways.drop_s)
    if _has_live_replica(job, standing) and ways.peer_s is not None:
        yield _Way(_name_of_same(standing), is_same & standing.is_hit, work, ways.peer_s)
        yield _Way("grow", (counts > held) & ((counts - held) % (job.nodes_per_replica or 1) == 0), work, ways.peer_s)
    yield _Way(_name_of_same(standing), is_same & standing.is_hit, work, ways.restart_s, forced)
    yield _Way("reconfigure", is_running & ~is_same, work, save_s + ways.restart_s, forced)


def _name_of_same(standing: Standing) -> Change:
    return "replace" if standing.lost else "restart_process"


def _work_at(job: Job, counts: np.ndarray) -> np.ndarray:
    """Return the weighted work per second on each count, 0 where the job cannot run."""
    known, rates = job.throughput.arrays
    if not len(known):
        return np.zeros(len(counts))
    places = np.minimum(np.searchsorted(known, counts), len(known) - 1)
    return np.where((known[places] == counts) & (counts >= job.minimum), job.weight * rates[places], 0.0)


def _whole_replicas_fewer(size: int, standing: Standing, counts: np.ndarray) -> np.ndarray:
    """Return the counts that are left when the replicas with a lost node, and maybe more of them, are left out."""
    fewer = standing.held - counts
    at_least = max(size * standing.replicas_hit, 1)
    is_open: np.ndarray = (counts > 0) & (fewer >= at_least) & (fewer % size == 0)
    return is_open


def _has_live_replica(job: Job, standing: Standing) -> bool:
    """Return whether somebody still holds all of a job's state; where replicas are not known, `peer_s` says so."""
    if standing.lost == standing.held:
        return False
    return job.nodes_per_replica is None or standing.replicas_hit * job.nodes_per_replica < standing.held
