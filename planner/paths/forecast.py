"""What a plan is worth before it is carried out: the rates that flows would get, and the step time that follows.

Rates are those of the simulator's flow model: max-min fair shares of the links. A collective ends when its slowest
flow does, so the part of a step that waits for the network grows as the worst flow's share shrinks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.store.store import Store
from planner.paths.flows import UNPLACED, Flow, FlowPaths, FlowTable
from planner.paths.network import Network
from planner.paths.planning import PathPlan
from simulator.network import fair_rates


@dataclass(frozen=True, slots=True)
class Forecast:
    """What flows would get."""

    gbps: np.ndarray  # of each flow; 0 where there is no path
    stretches: np.ndarray  # of each flow: how many times as long as on empty links it takes; infinite without a path

    @property
    def stretch(self) -> float:
        """Return how many times as long as on empty links the slowest flow takes."""
        return float(self.stretches.max(initial=1.0))


def forecast(network: Network, flows: FlowTable, spine: np.ndarray) -> Forecast:
    """Return the max-min fair rate of each flow when all of them send at once over these spines."""
    flow_paths = FlowPaths(network, flows)
    # All flows are of one length, filled up with a directed link that is none and carries everything.
    paths = np.full((len(flows), 2 + 2 * len(network.up_paths)), network.directed_links, np.int64)
    paths[:, :2] = flows.ends
    for at, links in flow_paths.placed(spine):
        paths[at, 2 : 2 + links.shape[1]] = links
    going = (flow_paths.height == 0) | (spine != UNPLACED)
    rates = np.zeros(len(flows))
    rates[going] = fair_rates(paths[going], np.append(network.gbps, np.inf)) if going.any() else 0.0
    alone = network.gbps[flows.ends].min(axis=1, initial=np.inf)
    slow = np.divide(alone, rates, out=np.full(len(flows), np.inf), where=rates > 0)
    return Forecast(rates, np.maximum(slow, 1.0))


def predict_ratio(waiting: float, before: float, after: float) -> float:
    """Return the step time after a change of paths over that before; only the part that waits for the paths changes.

    `before` and `after` are how far the slowest flow is stretched.

    >>> predict_ratio(0.4, before=2.0, after=1.0)
    0.8
    """
    return 1.0 - waiting + waiting * after / before


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
    paths = FlowPaths(plan.network, plan.flows)
    stays = np.where(paths.is_valid(before.spine) & (before.height == plan.height), before.spine, UNPLACED)
    old, new = (forecast(plan.network, plan.flows, spine).stretches for spine in (stays, plan.spine))
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
