"""What links between switches carry beside the plan, told apart from our own load, and what that leaves of them.

Three things look like strangers and are our own. Steps come in bursts: so what a link carries at this moment is held
against what it carried at most a while ago, and only what it carries at every moment since then against the average
of its flows. A flow that has not moved yet, or never will (advice), is on another link than planned: so no link has
more strangers than cross the border of its leaf or pod, where all paths meet. And a new job is in no plan yet: its
flows are known some seconds later, so until then only a link that is full counts.

Cost: array operations over directed links; the rates of a port are the store's work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lockstep.clock import NS_PER_S
from lockstep.store.store import Store
from lockstep.topology import Topology, split_end
from planner.paths.flows import Flow, FlowPaths
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
