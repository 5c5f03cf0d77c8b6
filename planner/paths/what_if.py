"""What a plan is worth before it is carried out: the rates that flows would get, and the step time that follows.

Rates are those of the simulator's flow model: max-min fair shares of the links. A collective ends when its slowest
flow does, so the part of a step that waits for the network grows as the worst flow's share shrinks. What was
predicted is kept beside what was measured then, as a score.
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
    stretch: float  # how many times as long as on empty links the slowest flow takes

    @property
    def worst_gbps(self) -> float:
        return float(self.gbps.min(initial=np.inf))


@dataclass(frozen=True, slots=True)
class Score:
    """A forecast of a step time held against what was measured."""

    predicted_ns: float
    measured_ns: float

    @property
    def error(self) -> float:
        """Return by which share of the measured time the forecast was off; above 0: it was too long."""
        return self.predicted_ns / self.measured_ns - 1.0


def forecast(network: Network, flows: FlowTable, top: np.ndarray) -> Forecast:
    """Return the max-min fair rate of each flow when all of them send at once over these tops."""
    roads = Roads(network, flows)
    paths = _lay_out(roads, top)
    going = (roads.height == 0) | (top != UNPLACED)
    rates = np.zeros(len(flows))
    capacity = np.append(network.gbps, np.inf)
    rates[going] = fair_rates(paths[going], capacity) if going.any() else 0.0
    wanted = np.minimum(flows.size, network.gbps[flows.ends].min(axis=1, initial=np.inf))
    slow = np.divide(wanted, rates, out=np.full(len(flows), np.inf), where=rates > 0)
    return Forecast(rates, float(np.maximum(slow, 1.0).max(initial=1.0)))


def predict_step_ns(step_ns: float, waiting_ns: float, before: Forecast, after: Forecast) -> float:
    """Return the step time after a change of roads: only the part that waits for the network changes."""
    return step_ns - waiting_ns + waiting_ns * after.stretch / before.stretch


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
