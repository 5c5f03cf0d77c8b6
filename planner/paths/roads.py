"""The roads that each flow may take on a network, and the loads of those that were chosen.

A road is told by its height (how far up it goes) and its top. Flows inside one leaf have none to choose.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.paths.flows import FlowTable
from planner.paths.network import NONE, Network

UNPLACED = -1  # instead of a top: no road was chosen, or there is none


@dataclass(frozen=True)
class Roads:
    """What can be chosen."""

    network: Network
    flows: FlowTable
    _known: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)

    @cached_property
    def usable(self) -> list[np.ndarray]:
        """Return by height which leaf can reach which top, and come back, over lanes that carry something."""
        alive = self.network.gbps > 0
        return [
            climbs.exists & alive[climbs.lanes].all(axis=2) & alive[climbs.lanes ^ 1].all(axis=2)
            for climbs in self.network.climbs
        ]

    @cached_property
    def height(self) -> np.ndarray:
        """Return how high each flow has to climb: 0 inside a leaf, NONE where there is no way at all."""
        near, far = self.flows.near, self.flows.far
        height = np.where(near == far, 0, NONE)
        ports_alive = (self.network.gbps[self.flows.ends] > 0).all(axis=1)
        for level, usable in enumerate(self.usable, start=1):
            joined = (usable.astype(np.float32) @ usable.T.astype(np.float32)) > 0
            height = np.where((height == NONE) & joined[near, far], level, height)
        reached: np.ndarray = np.where(ports_alive, height, NONE)
        return reached

    def tops(self, flow: int) -> np.ndarray:
        """Return the tops that a flow may go over."""
        key = int(self.height[flow]), int(self.flows.near[flow]), int(self.flows.far[flow])
        if key not in self._known:
            level, near, far = key
            usable = self.usable[level - 1] if level > 0 else np.zeros((1, 0), bool)
            self._known[key] = np.flatnonzero(usable[near] & usable[far]) if level > 0 else np.zeros(0, np.int64)
        return self._known[key]

    def lanes(self, flow: int, tops: np.ndarray) -> np.ndarray:
        """Return the lanes [top, step] of a flow over each of some tops."""
        climbs = self.network.climbs[int(self.height[flow]) - 1].lanes
        up, down = climbs[self.flows.near[flow], tops], climbs[self.flows.far[flow], tops]
        return np.concatenate([up, down[:, ::-1] ^ 1], axis=1)

    def lanes_of(self, flows: np.ndarray, tops: np.ndarray) -> np.ndarray:
        """Return the lanes [flow, step] of flows of one height over one top each."""
        climbs = self.network.climbs[int(self.height[flows[0]]) - 1].lanes
        up, down = climbs[self.flows.near[flows], tops], climbs[self.flows.far[flows], tops]
        return np.concatenate([up, down[:, ::-1] ^ 1], axis=1)

    def find_loads(self, top: np.ndarray) -> np.ndarray:
        """Return the load of each lane in Gbit/s when flows go over these tops; hosts' own ports included."""
        size, placed = self.flows.size, (self.height == 0) | (top != UNPLACED)
        load = np.bincount(
            self.flows.ends[placed].ravel(), np.repeat(size[placed], 2), minlength=self.network.lanes
        ).astype(np.float64)
        for level in range(1, len(self.network.climbs) + 1):
            at = np.flatnonzero((self.height == level) & (top != UNPLACED))
            if len(at):
                lanes = self.lanes_of(at, top[at])
                load += np.bincount(lanes.ravel(), np.repeat(size[at], lanes.shape[1]), minlength=len(load))
        return load

    def is_valid(self, top: np.ndarray) -> np.ndarray:
        """Return which flows go over a top that they may use."""
        good: np.ndarray = self.height == 0
        for level, usable in enumerate(self.usable, start=1):
            at = np.flatnonzero((self.height == level) & (top != UNPLACED) & (top < usable.shape[1]))
            good[at] = usable[self.flows.near[at], top[at]] & usable[self.flows.far[at], top[at]]
        return good


def find_use(network: Network, load: np.ndarray) -> np.ndarray:
    """Return the load of each lane over its rate; infinite where something goes over a dead one."""
    use = np.zeros(len(load))
    np.divide(load, network.gbps, out=use, where=network.gbps > 0)
    use[(network.gbps <= 0) & (load > 0)] = np.inf
    return use
