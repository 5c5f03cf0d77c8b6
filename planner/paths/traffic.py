"""What links between switches carry beside the plan, what that leaves of them, and what a plan is worth to jobs.

Three things look like strangers and are our own. Steps come in bursts: so what a link carries at this moment is held
against what it carried at most a while ago, and only what it carries at every moment since then against the average
of its flows. A flow that has not moved yet, or never will (advice), is on another link than planned: so no link has
more strangers than cross the border of its leaf or pod, where all paths meet. And a new job is in no plan yet: its
flows are known some seconds later, so until then only a link that is full counts.

What a plan is worth before it is carried out follows from the rates that flows would get, max-min fair shares of the
links as in the simulator. A collective ends when its slowest flow does, so the part of a step that waits for the
network grows as the worst flow's share shrinks.

Cost: array operations over directed links; the rates of a port are the store's work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lockstep.clock import NS_PER_S
from lockstep.fair_rates import fair_rates
from lockstep.store.store import Store
from lockstep.topology import Topology, split_end
from planner.paths.flows import UNPLACED, Flow, FlowPaths, FlowTable
from planner.paths.health import Evidence, LinkHealth
from planner.paths.network import NONE, Network
from planner.paths.planning import PathPlan

_LEAST_LEFT = 0.1  # of a congested link: it works, and other traffic gives way when ours comes
_FULL = 0.9  # of its rate: beyond, a link is full, and below, what others leave is worth a plan
_LASTING_S = 15.0  # before traffic is a stranger's: a new job's flows are read every 10 s, its rows 5 s under way
_MARGIN = 0.2  # by which our own flows may grow before that is worth a plan by itself

# Readings of one asker, oldest first; two readings of one moment count as a millisecond apart. The rates between them
# are those of lately, after `turn`, and those of before; -1: there are none.
_READ = """
SELECT switch, port, tx_now, tx_least, tx_before, rx_now, rx_least, rx_before FROM (
SELECT switch, port,
       arraySort(groupUniqArray((ts_ns, tx_bytes, rx_bytes))) AS told,
       told[-1].1 - {lasting:Int64} AS turn, arrayPopBack(told) AS old, arrayPopFront(told) AS new,
       arrayMap((a, b) -> greatest(b.1 - a.1, 1000000), old, new) AS steps,
       arrayMap((a, b, ns) -> greatest(b.2 - a.2, 0) * 8 / ns, old, new, steps) AS tx,
       arrayMap((a, b, ns) -> greatest(b.3 - a.3, 0) * 8 / ns, old, new, steps) AS rx,
       tx[-1] AS tx_now, arrayMin(arrayFilter((rate, b) -> b.1 > turn, tx, new)) AS tx_lately,
       rx[-1] AS rx_now, arrayMin(arrayFilter((rate, b) -> b.1 > turn, rx, new)) AS rx_lately,
       if(told[1].1 <= turn, tx_lately, -1) AS tx_least, if(told[1].1 <= turn, rx_lately, -1) AS rx_least,
       arrayMax(arrayPushFront(arrayFilter((rate, b) -> b.1 <= turn, tx, new), -1)) AS tx_before,
       arrayMax(arrayPushFront(arrayFilter((rate, b) -> b.1 <= turn, rx, new), -1)) AS rx_before
FROM fabric_counters WHERE ts_ns >= {start:Int64} AND ts_ns < {end:Int64}
GROUP BY switch, port, host HAVING uniqExact(ts_ns) > 1)
"""
_SIDES = ("now", "least", "before")
_RATES = tuple(f"{side}_{when}" for side in ("tx", "rx") for when in _SIDES)


@dataclass(frozen=True)
class Expected:
    """What each directed link carries by the plan, in Gbit/s."""

    mean: np.ndarray
    peak: np.ndarray  # when all of its flows send at once, at most its rate


@dataclass(frozen=True)
class Carried:
    """What each directed link was seen to carry, in Gbit/s; -1 where nobody has counted."""

    now: np.ndarray  # between the last two readings
    least: np.ndarray  # at any time lately
    before: np.ndarray  # at most, earlier than that


def read_traffic(store: Store, start_ns: int, end_ns: int) -> pa.Table:
    """Return the rates of all ports of switches that were read at least twice in a time."""
    window = {"start": start_ns, "end": end_ns, "lasting": int(_LASTING_S * NS_PER_S)}
    rates = store.query(_READ, window)
    return rates.rename_columns(["switch", "port", *_RATES])


def expect_loads(plan: PathPlan, flows: Sequence[Flow]) -> Expected:
    """Return what the directed links of a plan carry on average and at most; `flows` as they were planned."""
    at_once = replace(plan.flows, size=np.array([flow.gbps for flow in flows], np.float64))
    peak = FlowPaths(plan.network, at_once).find_loads(plan.spine)
    return Expected(plan.load, peak)


class TrafficJudge:
    """Knows which directed link a port sends over, and which directed links share a border."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._links = _find_ends(network.topology)
        self._rates = np.repeat([link.gbps for link in network.topology.links], 2)
        self._borders = _find_borders(network)

    def judge(self, readings: pa.Table, planned: Expected, health: LinkHealth, now_ns: int) -> list[Evidence]:
        """Return what strangers leave: of all links that they fill, and of those known to be ill."""
        strange = self._find_strangers(_gather(readings, self._links, len(self._rates)), planned)
        left = np.maximum(1 - strange / self._rates, _LEAST_LEFT)
        left[~self._network.fabric] = 1.0
        return [
            Evidence(now_ns, link.id, "traffic", share, _describe(link.id, share, float(gbps)))
            for link, share, gbps in zip(
                self._network.topology.links,
                left.reshape(-1, 2).min(axis=1).tolist(),
                strange.reshape(-1, 2).max(axis=1).tolist(),
                strict=True,
            )
            if share < _FULL or link.id in health.links
        ]

    def _find_strangers(self, carried: Carried, planned: Expected) -> np.ndarray:
        """Return the Gbit/s of each directed link that cannot be ours."""
        is_full = carried.now >= _FULL * self._rates
        peak = np.minimum(planned.peak, self._rates)
        usual = np.where(carried.before < 0, peak, np.clip(carried.before, planned.mean, peak))
        at_once = self._find_excess(carried.now, usual)
        strange: np.ndarray = np.maximum(
            np.where(is_full, at_once, 0.0), self._find_excess(carried.least, planned.mean)
        )
        return strange

    def _find_excess(self, carried: np.ndarray, planned: np.ndarray) -> np.ndarray:
        """Return what directed links carry beyond what is ours, none of them more than its border does.

        A directed link that nobody counts carries nothing here: so the unseen accuses no other.
        """
        carried, inside, excess = np.maximum(carried, 0.0), self._borders != NONE, np.zeros(len(carried))
        at = self._borders[inside]
        sums = [np.bincount(at, some[inside], minlength=1) for some in (carried, planned)]
        crossing, mine = _subtract(*sums)[at], _subtract(carried[inside], planned[inside])
        excess[inside] = np.minimum(crossing, mine)
        return excess


def _subtract(carried: np.ndarray, planned: np.ndarray) -> np.ndarray:
    return np.where(carried > (1 + _MARGIN) * planned, carried - planned, 0.0)


def _gather(readings: pa.Table, links: Mapping[tuple[str, str], int], count: int) -> Carried:
    """Return what each directed link carries by the ports at its ends: an end that counts nothing hides nothing."""
    ends = zip(readings["switch"].to_pylist(), readings["port"].to_pylist(), strict=True)
    out = np.array([links.get(end, NONE) for end in ends], np.int64)
    known, out = out != NONE, out[out != NONE]
    column = {name: np.asarray(readings[name]).astype(np.float64)[known] for name in _RATES}
    seen = {when: np.full(count, -1.0) for when in _SIDES}
    for when, most in seen.items():
        np.maximum.at(most, out, column[f"tx_{when}"])
        np.maximum.at(most, out ^ 1, column[f"rx_{when}"])
    return Carried(**seen)


def _find_ends(topology: Topology) -> dict[tuple[str, str], int]:
    """Return the directed link out of each port; where no port is named, it goes by what it leads to."""
    ends: dict[tuple[str, str], int] = {}
    for index, link in enumerate(topology.links):
        for near, far, directed_link in ((link.a, link.b, 2 * index), (link.b, link.a, 2 * index + 1)):
            node, port = split_end(near)
            ends[node, port or far] = directed_link
    return ends


def _find_borders(network: Network) -> np.ndarray:
    """Return a number for each link, equal where links lead out of, or into, the same leaf or pod."""
    borders, count = np.full(network.directed_links, NONE), 0
    for level, up_paths in enumerate(network.up_paths):
        part = network.joined_below(level)
        leaf, spine = np.nonzero(up_paths.exists)
        upward = up_paths.links[leaf, spine, level]
        borders[upward], borders[upward ^ 1] = count + 2 * part[leaf], count + 2 * part[leaf] + 1
        count += 2 * (int(part.max(initial=-1)) + 1)
    return borders


def _describe(link: str, left: float, strange_gbps: float) -> str:
    if left == 1.0:
        return f"{link} carries nothing but what is planned"
    return f"{link} carries {strange_gbps:g} Gbit/s that no plan knows"


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
