"""What a plan was expected to do for each job's step time, and what it did: kept side by side.

The share of a step that waits for the network is taken to be the share of time in which a rank has operations under
way. That is more than it waits where communication overlaps with computing, so gains are overestimated then: the
scores tell by how much.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.store.store import Store
from planner.paths.flows import Flow
from planner.paths.planning import PathPlan
from planner.paths.roads import UNPLACED, Roads
from planner.paths.what_if import forecast, predict_ratio

_STEPS = """
SELECT job, quantileExact(0.5)(end_ns - start_ns) AS step_ns, count() AS steps
FROM steps WHERE start_ns >= {start:Int64} AND end_ns < {end:Int64} AND end_ns > start_ns GROUP BY job
"""
_WAITING = """
SELECT job, sum(dur_sum_ns) AS busy_ns, uniqExact(host, comm, rank) AS ranks FROM op_stats
WHERE ts_ns >= {start:Int64} AND ts_ns < {end:Int64} GROUP BY job
"""
_FEWEST = 5  # steps, whose middle bears one or two odd ones


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a job went in some seconds."""

    step_ns: float
    waiting: float | None  # share of the time with operations under way, 0 to 1; None: unknown


def read_paces(store: Store, start_ns: int, end_ns: int) -> dict[str, Pace]:
    """Return the pace of each job whose steps are known."""
    window = {"start": start_ns, "end": end_ns}
    waits = {
        row["job"]: min(float(row["busy_ns"]) / max(row["ranks"] * (end_ns - start_ns), 1), 1.0)
        for row in store.query(_WAITING, window).to_pylist()
    }
    return {
        row["job"]: Pace(float(row["step_ns"]), waits.get(row["job"]))
        for row in store.query(_STEPS, window).to_pylist()
        if row["steps"] >= _FEWEST
    }


def predict_paces(
    plan: PathPlan, before: PathPlan | None, flows: Sequence[Flow], paces: Mapping[str, Pace]
) -> dict[str, float]:
    """Return by job the step time under a plan over that of going on as before, on the network as it is now."""
    if before is None or before.flows.ids != plan.flows.ids:
        return {}
    roads = Roads(plan.network, plan.flows)
    stays = np.where(roads.is_valid(before.top) & (before.height == plan.height), before.top, UNPLACED)
    old, new = (forecast(plan.network, plan.flows, top).stretches for top in (stays, plan.top))
    jobs = np.array([flow.job for flow in flows])
    predicted = {}
    for job, pace in paces.items():
        mine = jobs == job
        if pace.waiting is not None and mine.any() and np.isfinite(after := float(new[mine].max())):
            predicted[job] = predict_ratio(pace.waiting, float(old[mine].max()), after)
    return predicted


def compare_paces(before: Mapping[str, Pace], after: Mapping[str, Pace]) -> dict[str, float]:
    """Return by job the step time after over that before."""
    return {job: after[job].step_ns / before[job].step_ns for job in before if job in after}
