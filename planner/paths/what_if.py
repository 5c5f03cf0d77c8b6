"""What a plan is worth before it is carried out: the rates that flows would get, and the step time that follows.

Rates are those of the simulator's flow model: max-min fair shares of the links. A collective ends when its slowest
flow does, so the part of a step that waits for the network grows as the worst flow's share shrinks.
"""

from dataclasses import dataclass

import numpy as np

from lockstep.sim.network import fair_rates
from planner.paths.flows import FlowTable
from planner.paths.network import Network
from planner.paths.roads import UNPLACED, Roads


@dataclass(frozen=True, slots=True)
class Forecast:
    """What flows would get."""

    gbps: np.ndarray  # of each flow; 0 where there is no way
    stretches: np.ndarray  # of each flow: how many times as long as on empty links it takes; infinite without a way

    @property
    def worst_gbps(self) -> float:
        return float(self.gbps.min(initial=np.inf))

    @property
    def stretch(self) -> float:
        """Return how many times as long as on empty links the slowest flow takes."""
        return float(self.stretches.max(initial=1.0))


def forecast(network: Network, flows: FlowTable, top: np.ndarray) -> Forecast:
    """Return the max-min fair rate of each flow when all of them send at once over these tops."""
    roads = Roads(network, flows)
    paths = _lay_out(roads, top)
    going = (roads.height == 0) | (top != UNPLACED)
    rates = np.zeros(len(flows))
    capacity = np.append(network.gbps, np.inf)
    rates[going] = fair_rates(paths[going], capacity) if going.any() else 0.0
    alone = network.gbps[flows.ends].min(axis=1, initial=np.inf)
    slow = np.divide(alone, rates, out=np.full(len(flows), np.inf), where=rates > 0)
    return Forecast(rates, np.maximum(slow, 1.0))


def predict_ratio(waiting: float, before: float, after: float) -> float:
    """Return the step time after a change of roads over that before; only the part that waits for the roads changes.

    `before` and `after` are how far the slowest flow is stretched.

    >>> predict_ratio(0.4, before=2.0, after=1.0)
    0.8
    """
    return 1.0 - waiting + waiting * after / before


def _lay_out(roads: Roads, top: np.ndarray) -> np.ndarray:
    """Return the lanes [flow, step] of all flows, filled up with a lane that is none."""
    nowhere, highest = roads.network.lanes, len(roads.network.climbs)
    paths = np.full((len(roads.flows), 2 + 2 * highest), nowhere, np.int64)
    paths[:, :2] = roads.flows.ends
    for level in range(1, highest + 1):
        at = np.flatnonzero((roads.height == level) & (top != UNPLACED))
        if len(at):
            paths[at, 2 : 2 + 2 * level] = roads.lanes_of(at, top[at])
    return paths
