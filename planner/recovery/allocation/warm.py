"""Keeps the answers to all single next events at hand, so that at the event one is looked up instead of solved.

They are worked out anew when the state of the cluster changes, between events, and never for more than a tenth of the
time: a cluster too large for that is solved at the event. Checkpoints grow older meanwhile, so an answer that was
kept for long is worked out again, too.
"""

import time
from dataclasses import dataclass, replace

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from planner.recovery.allocation.events import Event, apply
from planner.recovery.allocation.foresight import Foresight, foresee
from planner.recovery.allocation.jobs import Cluster, Ways, check_cluster
from planner.recovery.allocation.planning import Allocation, finish, look_now

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
    """The answers to what can happen next to the cluster as it was seen last."""

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
            return finish(after, look_now(after))
        plan = finish(after, kept.foresight.look_up(event))
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
    return replace(cluster, jobs=tuple(replace(job, ways=Ways()) for job in cluster.jobs))
