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

from planner.allocation.cluster import Cluster, Job

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


class JobState(NamedTuple):
    """How a job stands when a plan is made."""

    held: int  # nodes, lost ones too
    lost: int  # of them
    replicas_hit: int  # replicas with a lost node; 0 where replicas are not known
    is_hit: bool  # something forces a change


@dataclass(frozen=True)
class Choices:
    """What a job may choose from, one entry for each count."""

    job: Job
    state: JobState
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
        columns = (self.counts, self.gains, self.work, self.downtime_s, self.lost_work_s, self.change)
        return Choices(self.job, self.state, *(column[keep] for column in columns))


def state_of(job: Job, cluster: Cluster) -> JobState:
    """Return how a job stands: a node it holds is lost when it cannot be used or is not in the cluster any more."""
    lost = [index for index, name in enumerate(job.nodes) if cluster.is_lost(name)]
    replicas = {index // job.nodes_per_replica for index in lost} if job.nodes_per_replica else set()
    return JobState(len(job.nodes), len(lost), len(replicas), bool(job.nodes) and (job.was_hit or bool(lost)))


def list_choices(job: Job, state: JobState, running_s: float, capacity: int) -> Choices:
    """Return each count that a job may have, up to `capacity`, with what it gains and the best way there."""
    counts = _list_counts(job, state, capacity)
    options = list(_list_options(job, state, counts))
    before = job.work_on(state.held)
    gained = (option.work * running_s - before * (option.downtime_s + option.lost_work_s) for option in options)
    gains = np.array([np.where(one.is_allowed, gain, -np.inf) for one, gain in zip(options, gained, strict=True)])
    best = gains.argmax(axis=0)
    at = (best, np.arange(len(counts)))
    return Choices(
        job,
        state,
        counts,
        gains[at],
        np.array([option.work for option in options])[at],
        np.array([option.downtime_s for option in options])[best],
        np.array([option.lost_work_s for option in options])[best],
        np.array([_CHANGES.index(option.change) for option in options])[best],
    )


def _list_counts(job: Job, state: JobState, capacity: int) -> np.ndarray:
    """Return the counts that a job can run on within its bounds, and none where it may stop.

    A job that may not stop keeps also counts above the capacity: the solver says when there are not enough nodes.
    """
    counts = job.runs_on()
    if state.lost and _can_recycle(job, state):
        survivors = np.array([state.held - state.lost])
        counts = np.union1d(counts, survivors[job.allows(survivors)])
    return np.concatenate([[0], counts[counts <= capacity]]) if job.may_stop else counts


def _can_recycle(job: Job, state: JobState) -> bool:
    are_enough = state.held - state.lost >= max(job.minimum, 1)
    return are_enough and job.recovery.recycle_s is not None and state.lost in job.recovery.recycled


class _Option(NamedTuple):
    """One way of change: to which counts it leads, and at what cost."""

    change: Change
    is_allowed: np.ndarray
    work: np.ndarray
    downtime_s: float
    lost_work_s: float = 0.0


def _list_options(job: Job, state: JobState, counts: np.ndarray) -> Iterator[_Option]:
    """Yield the ways to each count; of equally good ones the first is taken."""
    costs, work = job.recovery, _work_at(job, counts)
    held, is_same, is_running = state.held, counts == state.held, counts > 0
    forced = costs.lost_work_s if state.is_hit else 0.0
    save_s = 0.0 if state.is_hit else costs.save_s
    name_of_same: Change = "replace" if state.lost else "restart_process"
    if not state.is_hit:
        yield _Option("none", is_same, work, 0.0)
    if held == 0:
        yield _Option("start", is_running, work, costs.restart_s)
        return
    # A job that is stopped owes the restart: without it, stopping would look cheap where failures are frequent.
    yield _Option("stop", ~is_running, work, save_s + costs.restart_s, forced)
    if state.lost and costs.recycle_s is not None and _can_recycle(job, state):
        recycled = np.full(len(counts), job.weight * costs.recycled[state.lost])
        yield _Option("recycle", counts == held - state.lost, recycled, costs.recycle_s)
    if costs.drop_s is not None and job.nodes_per_replica:
        # The replicas with a lost node, and maybe more of them, are left out.
        fewer, size = held - counts, job.nodes_per_replica
        is_whole = is_running & (fewer >= max(size * state.replicas_hit, 1)) & (fewer % size == 0)
        yield _Option("drop_replica", is_whole, work, costs.drop_s)
    if _has_live_replica(job, state) and costs.peer_s is not None:
        is_whole = (counts - held) % (job.nodes_per_replica or 1) == 0
        yield _Option(name_of_same, is_same & state.is_hit, work, costs.peer_s)
        yield _Option("grow", (counts > held) & is_whole, work, costs.peer_s)
    yield _Option(name_of_same, is_same & state.is_hit, work, costs.restart_s, forced)
    yield _Option("reconfigure", is_running & ~is_same, work, save_s + costs.restart_s, forced)


def _work_at(job: Job, counts: np.ndarray) -> np.ndarray:
    """Return the weighted work per second on each count, 0 where the job cannot run."""
    known, rates = job.throughput.arrays
    if not len(known):
        return np.zeros(len(counts))
    indices = np.minimum(np.searchsorted(known, counts), len(known) - 1)
    return np.where((known[indices] == counts) & (counts >= job.minimum), job.weight * rates[indices], 0.0)


def _has_live_replica(job: Job, state: JobState) -> bool:
    """Return whether somebody still holds all of a job's state; where replicas are not known, `peer_s` says so."""
    if state.lost == state.held:
        return False
    return job.nodes_per_replica is None or state.replicas_hit * job.nodes_per_replica < state.held
