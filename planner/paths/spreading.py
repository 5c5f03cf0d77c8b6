"""A first plan for a whole fabric at once: all flows spread evenly over all tops, as if every link were up.

In the first stage flows are shared among *groups* of tops, those that each leaf reaches over one and the same lane: a
spine of two tiers, or all cores behind one switch of the pod. In the second, each group's flows are shared among its
tops, now pod by pod. Both are even colourings, so on an intact fabric of equal links and equal flows the result is
the integer optimum. Flows of different sizes are shared class by class.

Where links are missing or slow, what this cannot know is put right afterwards (repairing.py).
"""

from dataclasses import dataclass

import numpy as np

from planner.paths.colouring import colour_evenly
from planner.paths.network import NONE, Climbs, Network
from planner.paths.roads import UNPLACED, Roads

_MOST_SIZES = 16  # classes of flows that are shared one by one; with more, each would have too few to be even
_FINEST_SHARE = 8  # rates are taken as whole shares up to this many: 100 and 400 Gbit/s are 1 to 4


@dataclass(frozen=True)
class _Plane:
    """Leaves that are joined, and what is above them."""

    tops: np.ndarray
    groups: np.ndarray  # of each top
    colours: np.ndarray  # the group that each colour stands for; a group of fast lanes has several


def spread_evenly(roads: Roads) -> np.ndarray:
    """Return a top for each flow, UNPLACED where there is none to choose or the fabric is of another kind."""
    top = np.full(len(roads.flows), UNPLACED, np.int64)
    network = roads.network
    if not network.climbs:
        return top
    highest = network.climbs[-1]
    plane_of, pod_of = highest.joined, _find_pods(network)
    class_of = _sort_by_size(roads.flows.size)
    for number in range(int(plane_of.max(initial=-1)) + 1):
        plane = _describe(network, np.flatnonzero(plane_of == number), highest)
        for kind in range(int(class_of.max(initial=-1)) + 1):
            inside = (class_of == kind) & (plane_of[roads.flows.near] == number) & (roads.height > 0)
            if inside.any() and len(plane.tops):
                _share(roads, np.flatnonzero(inside), plane, pod_of, top)
    return top


def _sort_by_size(size: np.ndarray) -> np.ndarray:
    """Return the class of each flow: one per size, or where there are many, classes of about equal volume."""
    sizes, class_of = np.unique(size, return_inverse=True)
    if len(sizes) <= _MOST_SIZES:
        return class_of.reshape(-1)
    volume = np.cumsum(np.bincount(class_of.reshape(-1), size))
    coarse = np.minimum(volume / volume[-1] * _MOST_SIZES, _MOST_SIZES - 1).astype(np.int64)
    grouped: np.ndarray = coarse[class_of.reshape(-1)]
    return grouped


def _find_pods(network: Network) -> np.ndarray:
    """Return the pod of each leaf: what is joined without going all the way up."""
    return network.climbs[-2].joined if len(network.climbs) > 1 else np.arange(len(network.leaves))


def _describe(network: Network, leaves: np.ndarray, climbs: Climbs) -> _Plane:
    tops = np.flatnonzero(climbs.exists[leaves].any(axis=0))
    first = climbs.lanes[np.ix_(leaves, tops)][:, :, 0]
    groups = np.unique(first, axis=1, return_inverse=True)[1].reshape(-1) if len(tops) else tops
    rates = np.array(
        [_middle(network, first[:, groups == group]) for group in range(int(groups.max(initial=-1)) + 1)]
    )
    return _Plane(tops, groups, np.repeat(np.arange(len(rates)), _whole_shares(rates)))


def _middle(network: Network, lanes: np.ndarray) -> float:
    rates = network.gbps[lanes[lanes != NONE]]
    return float(np.median(rates[rates > 0])) if (rates > 0).any() else 0.0


def _whole_shares(rates: np.ndarray) -> np.ndarray:
    """Return small whole numbers that are to each other as the rates are, as nearly as such numbers can be.

    >>> _whole_shares(np.array([400.0, 100.0, 400.0, 0.0])).tolist()
    [4, 1, 4, 0]
    """
    if not len(rates) or rates.max() <= 0:
        return np.ones(len(rates), np.int64)
    parts = rates / rates.max()
    errors = [float(np.abs(parts * whole - np.round(parts * whole)).max()) for whole in range(1, _FINEST_SHARE + 1)]
    best = 1 + next(place for place, error in enumerate(errors) if error <= min(errors) + 0.01)
    return np.where(rates > 0, np.maximum(np.round(parts * best), 1), 0).astype(np.int64)


def _share(roads: Roads, flows: np.ndarray, plane: _Plane, pod_of: np.ndarray, top: np.ndarray) -> None:
    """Choose tops for flows of one plane and one size."""
    near, far, height = roads.flows.near[flows], roads.flows.far[flows], roads.height[flows]
    highest = len(roads.network.climbs)
    is_high = height == highest
    # Flows inside a pod load its leaves but not what is above it: they are no part of the pod's share.
    beyond = int(pod_of.max()) + 1
    keys = [[ends, np.where(is_high, pod_of[ends], beyond + pod_of[ends])] for ends in (near, far)]
    group = plane.colours[colour_evenly(keys[0], keys[1], len(plane.colours))]
    _choose_highest(flows[is_high], group[is_high], plane, (pod_of[near[is_high]], pod_of[far[is_high]]), top)
    for level in range(1, highest):
        at = height == level
        top[flows[at]] = _find_lower(roads, level, near[at], plane, group[at])


def _choose_highest(
    flows: np.ndarray, group: np.ndarray, plane: _Plane, pods: tuple[np.ndarray, np.ndarray], top: np.ndarray
) -> None:
    """Share the flows of each group of tops among the tops of that group."""
    members = [plane.tops[plane.groups == number] for number in range(int(plane.groups.max()) + 1)]
    counts = np.array([len(tops) for tops in members])
    for count in np.unique(counts).tolist():
        at = np.flatnonzero(counts[group] == count)
        keys = [[group[at] * (int(ends.max(initial=0)) + 1) + ends[at]] for ends in pods]
        turn = colour_evenly(keys[0], keys[1], count)
        table = np.array([tops if len(tops) == count else np.zeros(count, np.int64) for tops in members])
        top[flows[at]] = table[group[at], turn]


def _find_lower(roads: Roads, level: int, near: np.ndarray, plane: _Plane, group: np.ndarray) -> np.ndarray:
    """Return the tops at a lower height that are reached over the first lane of a group."""
    highest, lower = roads.network.climbs[-1].lanes, roads.network.climbs[level - 1].lanes
    example = np.array(
        [plane.tops[np.argmax(plane.groups == number)] for number in range(int(plane.groups.max()) + 1)]
    )
    top_over = np.full(roads.network.lanes + 1, UNPLACED, np.int64)
    leaf, place = np.nonzero(lower[:, :, 0] != NONE)
    top_over[lower[leaf, place, 0]] = place
    found: np.ndarray = top_over[highest[near, example[group], 0]]
    return found
