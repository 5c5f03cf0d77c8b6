"""The paths that each flow may take on a network, and the loads of those that were chosen.

A path is told by its height (how far up it goes) and its spine. Flows inside one leaf have none to choose.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.paths.flows import FlowTable
from planner.paths.network import NONE, Network

UNPLACED = -1  # instead of a spine: no path was chosen, or there is none


@dataclass(frozen=True)
class FlowPaths:
    """What can be chosen."""

    network: Network
    flows: FlowTable
    _known: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)

    @cached_property
    def usable(self) -> list[np.ndarray]:
        """Return by height which leaf can reach which spine, and come back, over links that carry something."""
        return [up_paths.usable(self.network.gbps > 0) for up_paths in self.network.up_paths]

    @cached_property
    def height(self) -> np.ndarray:
        """Return how high each flow has to go up: 0 inside a leaf, NONE where there is no path at all."""
        near, far = self.flows.near, self.flows.far
        height = np.where(near == far, 0, NONE)
        ports_alive = (self.network.gbps[self.flows.ends] > 0).all(axis=1)
        for level, usable in enumerate(self.usable, start=1):
            joined = (usable.astype(np.float32) @ usable.T.astype(np.float32)) > 0
            height = np.where((height == NONE) & joined[near, far], level, height)
        reached: np.ndarray = np.where(ports_alive, height, NONE)
        return reached

    def spines(self, flow: int) -> np.ndarray:
        """Return the spines that a flow may go over."""
        key = int(self.height[flow]), int(self.flows.near[flow]), int(self.flows.far[flow])
        if key not in self._known:
            level, near, far = key
            usable = self.usable[level - 1][[near, far]] if level > 0 else np.zeros((2, 0), bool)
            self._known[key] = np.flatnonzero(usable.all(axis=0))
        return self._known[key]

    def links(self, flow: int, spines: np.ndarray) -> np.ndarray:
        """Return the directed links [spine, step] of a flow over each of some spines."""
        up_paths = self.network.up_paths[int(self.height[flow]) - 1].links
        up, down = up_paths[self.flows.near[flow], spines], up_paths[self.flows.far[flow], spines]
        return np.concatenate([up, down[:, ::-1] ^ 1], axis=1)

    def links_of(self, flows: np.ndarray, spines: np.ndarray) -> np.ndarray:
        """Return the directed links [flow, step] of flows of one height over one spine each."""
        up_paths = self.network.up_paths[int(self.height[flows[0]]) - 1].links
        up, down = up_paths[self.flows.near[flows], spines], up_paths[self.flows.far[flows], spines]
        return np.concatenate([up, down[:, ::-1] ^ 1], axis=1)

    def placed(self, spine: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the flows of each height that have a spine, and their directed links [flow, step] in between."""
        for level in range(1, len(self.network.up_paths) + 1):
            at = np.flatnonzero((self.height == level) & (spine != UNPLACED))
            if len(at):
                yield at, self.links_of(at, spine[at])

    def find_loads(self, spine: np.ndarray) -> np.ndarray:
        """Return the load of each link in Gbit/s when flows go over these spines; hosts' own ports included."""
        size, going = self.flows.size, (self.height == 0) | (spine != UNPLACED)
        load = np.zeros(self.network.directed_links)
        for at, links in ((going, self.flows.ends[going]), *self.placed(spine)):
            load += np.bincount(links.ravel(), np.repeat(size[at], links.shape[1]), minlength=len(load))
        return load

    def is_valid(self, spine: np.ndarray) -> np.ndarray:
        """Return which flows go over a spine that they may use."""
        good: np.ndarray = self.height == 0
        for level, usable in enumerate(self.usable, start=1):
            at = np.flatnonzero((self.height == level) & (spine != UNPLACED) & (spine < usable.shape[1]))
            good[at] = usable[self.flows.near[at], spine[at]] & usable[self.flows.far[at], spine[at]]
        return good


def find_use(network: Network, load: np.ndarray) -> np.ndarray:
    """Return the load of each directed link over its rate; infinite where something goes over a dead one."""
    use = np.zeros(len(load))
    np.divide(load, network.gbps, out=use, where=network.gbps > 0)
    use[(network.gbps <= 0) & (load > 0)] = np.inf
    return use


def find_bound(paths: FlowPaths) -> float:
    """Return the least that the highest use of a directed link between switches can be."""
    pairs = max((_bound_pairs(paths, level) for level in range(1, len(paths.network.up_paths) + 1)), default=0.0)
    return max(pairs, *(_bound_cuts(paths, level) for level in range(len(paths.network.up_paths) + 1)))


def _bound_cuts(paths: FlowPaths, level: int) -> float:
    """Return the bound from what crosses the border of each part that is joined below a height."""
    if level >= len(paths.network.up_paths):
        return 0.0
    part = paths.network.joined_below(level)
    crossing = paths.height > level
    rates = paths.network.gbps
    part_of = np.full(len(rates), NONE)  # that a directed link leads out of
    leaf, index = np.nonzero(paths.network.up_paths[level].exists)
    part_of[paths.network.up_paths[level].links[leaf, index, level]] = part[leaf]
    border = np.flatnonzero(part_of != NONE)
    parts = int(part.max()) + 1
    highest = 0.0
    for ends, direction in ((paths.flows.near, 0), (paths.flows.far, 1)):
        demand = np.bincount(part[ends[crossing]], paths.flows.size[crossing], minlength=parts)
        room = np.bincount(part_of[border], rates[border ^ direction], minlength=parts)
        needed = demand > 0
        highest = max(highest, float((demand[needed] / np.maximum(room[needed], 1e-12)).max(initial=0.0)))
    return highest


def _bound_pairs(paths: FlowPaths, level: int) -> float:
    """Return the bound from the two leaves that have the least in common for what they send each other."""
    up_paths, rates, usable = paths.network.up_paths[level - 1], paths.network.gbps, paths.usable[level - 1]
    up, down = (np.where(usable, rates[up_paths.links ^ direction].min(axis=2), 0.0) for direction in (0, 1))
    # Two leaves that lack nothing share all that each of them has, which its own border tells already.
    lacks = np.any([(room < room.max(axis=1, keepdims=True)) & up_paths.exists for room in (up, down)], axis=0).any(
        axis=1
    )
    near, far = paths.flows.near, paths.flows.far
    at = np.flatnonzero((paths.height == level) & (lacks[near] | lacks[far]))
    if not len(at):
        return 0.0
    leaves = len(paths.network.leaves)
    pair, index = np.unique(near[at] * leaves + far[at], return_inverse=True)
    demand = np.bincount(index, paths.flows.size[at])
    highest = 0.0
    for begin in range(0, len(pair), 4096):  # in blocks: all pairs of a large fabric at once take gigabytes
        src, dst = np.divmod(pair[begin : begin + 4096], leaves)
        room = np.minimum(up[src], down[dst]).sum(axis=1)
        highest = max(highest, float((demand[begin : begin + 4096] / room).max()))
    return highest


def choose_by_chance(paths: FlowPaths, seed: int) -> np.ndarray:
    """Return a spine for each flow, all that it may use equally likely."""
    rng = np.random.default_rng(seed)
    spine = np.full(len(paths.flows), UNPLACED, np.int64)
    for level, usable in enumerate(paths.usable, start=1):
        at = np.flatnonzero(paths.height == level)
        for begin in range(0, len(at), 4096):  # in blocks: all flows times all spines at once take gigabytes
            block = at[begin : begin + 4096]
            open_to = usable[paths.flows.near[block]] & usable[paths.flows.far[block]]
            spine[block] = np.where(open_to, rng.random(open_to.shape), -1.0).argmax(axis=1)
    return spine
