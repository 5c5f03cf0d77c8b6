"""What no plan can beat: for each leaf and each pod, what must leave or enter it over the lanes that it has.

This is the fractional optimum of an intact Clos fabric (flows split at will reach it by going over all tops equally).
Where links are missing it may lie below that optimum, never above: a plan that reaches it is proven best.

>>> from lockstep.fabrics import leaf_spine
>>> from planner.paths.flows import Flow, place_flows
>>> from planner.paths.network import build_network
>>> network = build_network(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))
>>> flows = [Flow(id=str(n), src=f"h{n % 2}", dst=f"h{2 + n % 2}", gbps=100.0) for n in range(4)]
>>> find_bound(Roads(network, place_flows(network, flows)))
0.5
"""

import numpy as np

from planner.paths.network import NONE
from planner.paths.roads import Roads


def find_bound(roads: Roads) -> float:
    """Return the least that the highest use of a lane between switches can be."""
    pairs = max((_bound_pairs(roads, level) for level in range(1, len(roads.network.climbs) + 1)), default=0.0)
    return max(pairs, *(_bound_cuts(roads, level) for level in range(len(roads.network.climbs) + 1)))


def _bound_cuts(roads: Roads, level: int) -> float:
    """Return the bound from what crosses the border of each part that is joined below a height."""
    if level >= len(roads.network.climbs):
        return 0.0
    part = roads.network.climbs[level - 1].joined if level else np.arange(len(roads.network.leaves))
    crossing = roads.height > level
    rates = roads.network.gbps
    part_of = np.full(len(rates), NONE)  # that a lane leads out of
    leaf, place = np.nonzero(roads.network.climbs[level].exists)
    part_of[roads.network.climbs[level].lanes[leaf, place, level]] = part[leaf]
    border = np.flatnonzero(part_of != NONE)
    parts = int(part.max()) + 1
    highest = 0.0
    for ends, turn in ((roads.flows.near, 0), (roads.flows.far, 1)):
        demand = np.bincount(part[ends[crossing]], roads.flows.size[crossing], minlength=parts)
        room = np.bincount(part_of[border], rates[border ^ turn], minlength=parts)
        needed = demand > 0
        highest = max(highest, float((demand[needed] / np.maximum(room[needed], 1e-12)).max(initial=0.0)))
    return highest


def _bound_pairs(roads: Roads, level: int) -> float:
    """Return the bound from the two leaves that have the least in common for what they send each other."""
    climbs, rates, usable = roads.network.climbs[level - 1], roads.network.gbps, roads.usable[level - 1]
    up, down = (np.where(usable, rates[climbs.lanes ^ turn].min(axis=2), 0.0) for turn in (0, 1))
    # Two leaves that lack nothing share all that each of them has, which its own border tells already.
    lacks = np.any([(room < room.max(axis=1, keepdims=True)) & climbs.exists for room in (up, down)], axis=0).any(
        axis=1
    )
    near, far = roads.flows.near, roads.flows.far
    at = np.flatnonzero((roads.height == level) & (lacks[near] | lacks[far]))
    if not len(at):
        return 0.0
    leaves = len(roads.network.leaves)
    pair, place = np.unique(near[at] * leaves + far[at], return_inverse=True)
    demand = np.bincount(place, roads.flows.size[at])
    highest = 0.0
    for begin in range(0, len(pair), 4096):  # in blocks: all pairs of a large fabric at once take gigabytes
        src, dst = np.divmod(pair[begin : begin + 4096], leaves)
        room = np.minimum(up[src], down[dst]).sum(axis=1)
        highest = max(highest, float((demand[begin : begin + 4096] / room).max()))
    return highest
