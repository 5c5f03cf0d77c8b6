"""One path for each flow: the highest use of any link as low as it can be, around what is broken, moving little.

The plan starts from the one before, where there is one, or from an even spread; flows without a path, and those whose
path is gone, get the emptiest; then the highest use is lowered step by step towards the bound that no plan can beat.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.paths.colouring import colour_evenly
from planner.paths.flows import UNPLACED, Flow, FlowPaths, FlowTable, find_bound, find_use, place_flows
from planner.paths.network import NONE, Network, UpPaths
from planner.paths.repairing import Repair

_MOST_SIZES = 16  # classes of flows that are shared one by one; with more, each would have too few to be even
_FINEST_SHARE = 8  # rates are taken as whole shares up to this many: 100 and 400 Gbit/s are 1 to 4


@dataclass(frozen=True)
class _Plane:
    """Leaves that are joined, and what is above them."""

    spines: np.ndarray
    groups: np.ndarray  # of each spine
    colours: np.ndarray  # the group that each colour stands for; a group of fast directed links has several


def spread_evenly(paths: FlowPaths) -> np.ndarray:
    """Return a spine for each flow, UNPLACED where there is none to choose or the fabric is of another kind."""
    spine = np.full(len(paths.flows), UNPLACED, np.int64)
    network = paths.network
    if not network.up_paths:
        return spine
    highest = network.up_paths[-1]
    plane_of = highest.joined
    # A pod is what is joined without going all the way up.
    pod_of = network.joined_below(len(network.up_paths) - 1)
    class_of = _sort_by_size(paths.flows.size)
    for number in range(int(plane_of.max(initial=-1)) + 1):
        plane = _describe(network, np.flatnonzero(plane_of == number), highest)
        for kind in range(int(class_of.max(initial=-1)) + 1):
            inside = (class_of == kind) & (plane_of[paths.flows.near] == number) & (paths.height > 0)
            if inside.any() and len(plane.spines):
                _share(paths, np.flatnonzero(inside), plane, pod_of, spine)
    return spine


def _sort_by_size(size: np.ndarray) -> np.ndarray:
    """Return the class of each flow: one per size, or where there are many, classes of about equal volume."""
    sizes, class_of = np.unique(size, return_inverse=True)
    if len(sizes) <= _MOST_SIZES:
        return class_of.reshape(-1)
    volume = np.cumsum(np.bincount(class_of.reshape(-1), size))
    coarse = np.minimum(volume / volume[-1] * _MOST_SIZES, _MOST_SIZES - 1).astype(np.int64)
    grouped: np.ndarray = coarse[class_of.reshape(-1)]
    return grouped


def _describe(network: Network, leaves: np.ndarray, up_paths: UpPaths) -> _Plane:
    spines = np.flatnonzero(up_paths.exists[leaves].any(axis=0))
    first = up_paths.links[np.ix_(leaves, spines)][:, :, 0]
    groups = np.unique(first, axis=1, return_inverse=True)[1].reshape(-1) if len(spines) else spines
    rates = np.array(
        [_middle(network, first[:, groups == group]) for group in range(int(groups.max(initial=-1)) + 1)]
    )
    return _Plane(spines, groups, np.repeat(np.arange(len(rates)), _whole_shares(rates)))


def _middle(network: Network, links: np.ndarray) -> float:
    rates = network.gbps[links[links != NONE]]
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
    best = 1 + next(index for index, error in enumerate(errors) if error <= min(errors) + 0.01)
    return np.where(rates > 0, np.maximum(np.round(parts * best), 1), 0).astype(np.int64)


def _share(paths: FlowPaths, flows: np.ndarray, plane: _Plane, pod_of: np.ndarray, spine: np.ndarray) -> None:
    """Choose spines for flows of one plane and one size."""
    near, far, height = paths.flows.near[flows], paths.flows.far[flows], paths.height[flows]
    highest = len(paths.network.up_paths)
    is_high = height == highest
    # Flows inside a pod load its leaves but not what is above it: they are no part of the pod's share.
    beyond = int(pod_of.max()) + 1
    keys = [[ends, np.where(is_high, pod_of[ends], beyond + pod_of[ends])] for ends in (near, far)]
    group = plane.colours[colour_evenly(keys[0], keys[1], len(plane.colours))]
    _choose_highest(flows[is_high], group[is_high], plane, (pod_of[near[is_high]], pod_of[far[is_high]]), spine)
    for level in range(1, highest):
        at = height == level
        spine[flows[at]] = _find_lower(paths, level, near[at], plane, group[at])


def _choose_highest(
    flows: np.ndarray, group: np.ndarray, plane: _Plane, pods: tuple[np.ndarray, np.ndarray], spine: np.ndarray
) -> None:
    """Share the flows of each group of spines among the spines of that group."""
    members = [plane.spines[plane.groups == number] for number in range(int(plane.groups.max()) + 1)]
    counts = np.array([len(spines) for spines in members])
    for count in np.unique(counts).tolist():
        at = np.flatnonzero(counts[group] == count)
        keys = [[group[at] * (int(ends.max(initial=0)) + 1) + ends[at]] for ends in pods]
        colour = colour_evenly(keys[0], keys[1], count)
        table = np.array([spines if len(spines) == count else np.zeros(count, np.int64) for spines in members])
        spine[flows[at]] = table[group[at], colour]


def _find_lower(paths: FlowPaths, level: int, near: np.ndarray, plane: _Plane, group: np.ndarray) -> np.ndarray:
    """Return the spines at a lower height that are reached over the first directed link of a group."""
    highest, lower = paths.network.up_paths[-1].links, paths.network.up_paths[level - 1].links
    example = np.array(
        [plane.spines[np.argmax(plane.groups == number)] for number in range(int(plane.groups.max()) + 1)]
    )
    spine_over = np.full(paths.network.directed_links + 1, UNPLACED, np.int64)
    leaf, index = np.nonzero(lower[:, :, 0] != NONE)
    spine_over[lower[leaf, index, 0]] = index
    found: np.ndarray = spine_over[highest[near, example[group], 0]]
    return found


_STEPS = 256  # between the bound and what was reached, where flows are of many sizes; eight halvings find the best
_FIRST_ONES = 2  # targets that are tried one by one: plans are mostly at the bound, or one flow above it
_EXACT = 1e-9  # of a use: sums of floats are no exact numbers


_LEAST_GAIN = 0.02  # of the highest use: for less, nothing is moved that need not be
_MOST_TRIED_TWICE = 16_384  # flows for which a second start is worth its time: some 20 us each


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the planner is told."""

    most_moved: float = 0.25  # of the flows may move besides those that must, when there was a plan before


@dataclass(frozen=True)
class PathPlan:
    """A path for each flow, with what it costs and what could be had at best."""

    network: Network
    flows: FlowTable
    height: np.ndarray  # how far up each flow goes: 0 inside a leaf, -1 where there is no path
    spine: np.ndarray  # over which switch of that height, UNPLACED where there is none
    load: np.ndarray  # Gbit/s of each directed link
    bound: float  # no plan has a lower highest use
    must_move: int = 0  # flows whose path was gone
    may_move: int = 0  # flows that moved to make room

    @property
    def highest_use(self) -> float:
        """Return the highest use of a directed link between switches."""
        return float(find_use(self.network, self.load)[self.network.fabric].max(initial=0.0))

    @property
    def unreachable(self) -> list[str]:
        """Return the flows for which there is no path."""
        return [self.flows.ids[index] for index in np.flatnonzero(self.height < 0).tolist()]

    def all_directed_links(self) -> list[list[int]]:
        """Return the directed links that each flow takes, from its source on; none where there is no path."""
        inner: list[list[int]] = [[] for _ in range(len(self.flows))]
        for at, links in FlowPaths(self.network, self.flows).placed(self.spine):
            for flow, path in zip(at.tolist(), links.tolist(), strict=True):
                inner[flow] = path
        ends = self.flows.ends.tolist()
        has_path = ((self.height == 0) | (self.spine != UNPLACED)).tolist()
        return [[ends[flow][0], *inner[flow], ends[flow][1]] if has_path[flow] else [] for flow in range(len(ends))]


def plan_paths(
    network: Network, flows: Sequence[Flow], before: PathPlan | None = None, options: PlanOptions | None = None
) -> PathPlan:
    """Return a path for each flow; with a plan `before`, one that moves few of those that were in it."""
    return plan_table(network, place_flows(network, flows), before, options)


def plan_table(
    network: Network, flows: FlowTable, before: PathPlan | None = None, options: PlanOptions | None = None
) -> PathPlan:
    """Return the same for flows that have their ports."""
    if before and before.network.topology is not network.topology and before.network.topology != network.topology:
        before = None  # its directed links are others
    paths = FlowPaths(network, flows)
    bound = find_bound(paths)
    if before is None:
        repair = _plan_afresh(paths, bound)
        return PathPlan(network, flows, paths.height, repair.spine, repair.load, bound)
    spine, had_path = _carry_over(paths, before)
    spine[~paths.is_valid(spine)] = UNPLACED
    must_move = had_path - int((spine != UNPLACED).sum())
    repair = Repair(paths, spine, int((options or PlanOptions()).most_moved * len(flows)))
    _put_right(repair, bound, _LEAST_GAIN)
    return PathPlan(network, flows, paths.height, repair.spine, repair.load, bound, must_move, len(repair.moved))


def _plan_afresh(paths: FlowPaths, bound: float) -> Repair:
    """Return the better of two plans: from an even spread, and where that is not the best there is, flow by flow."""
    spine = spread_evenly(paths)
    spine[~paths.is_valid(spine)] = UNPLACED
    spread = _put_right(Repair(paths, spine), bound)
    if len(paths.flows) > _MOST_TRIED_TWICE or not len(_find_targets(spread, bound, spread.find_highest())):
        return spread
    one_by_one = _put_right(Repair(paths, np.full(len(spine), UNPLACED)), bound)
    return min(spread, one_by_one, key=Repair.find_highest)


def _put_right(repair: Repair, bound: float, least_gain: float = 0.0) -> Repair:
    """Give every flow a path, and lower the highest use."""
    repair.place(np.flatnonzero((repair.paths.height > 0) & (repair.spine == UNPLACED)))
    _lower(repair, bound, least_gain)
    return repair


def _carry_over(paths: FlowPaths, before: PathPlan) -> tuple[np.ndarray, int]:
    """Return the spines of the plan before, UNPLACED for flows that go elsewhere now, and how many flows had one."""
    spine = np.full(len(paths.flows), UNPLACED, np.int64)
    if paths.flows.ids == before.flows.ids:
        mine = theirs = np.arange(len(spine))
    else:
        known = {name: index for index, name in enumerate(before.flows.ids)}
        found = np.array([known.get(name, -1) for name in paths.flows.ids], np.int64)
        mine = np.flatnonzero(found >= 0)
        theirs = found[mine]
    same = (paths.flows.ends[mine] == before.flows.ends[theirs]).all(axis=1)
    same &= paths.height[mine] == before.height[theirs]
    spine[mine[same]] = before.spine[theirs[same]]
    had_path = int((before.spine[theirs] != UNPLACED).sum())
    return _keep_same_paths(paths, before.network, spine), had_path


def _keep_same_paths(paths: FlowPaths, before: Network, spine: np.ndarray) -> np.ndarray:
    """Return the spines that still stand for the same links: one of several cables may stand in for another now."""
    for level, (old, new) in enumerate(zip(before.up_paths, paths.network.up_paths, strict=True), start=1):
        if old.links is new.links:
            continue
        at = np.flatnonzero((paths.height == level) & (spine != UNPLACED))
        ends = (paths.flows.near[at], paths.flows.far[at])
        is_same = np.all(
            [(old.links[leaf, spine[at]] == new.links[leaf, spine[at]]).all(axis=1) for leaf in ends], axis=0
        )
        spine[at[~is_same]] = UNPLACED
    return spine


def _lower(repair: Repair, bound: float, least_gain: float) -> None:
    """Lower the highest use as far as it goes: to the best that can be, the next, and then by halves."""
    targets = _find_targets(repair, bound, repair.find_highest() * (1 - least_gain))
    low, high = 0, len(targets)  # below low nothing works, at high it holds already
    while low < high:
        middle = low if low < _FIRST_ONES else (low + high) // 2
        if repair.lower(targets[middle]):
            high = min(middle, int(np.searchsorted(targets, repair.find_highest() * (1 - _EXACT))))
        else:
            low = middle + 1


def _find_targets(repair: Repair, bound: float, highest: float) -> np.ndarray:
    """Return uses between the bound and what was reached, upwards: of equal flows, those that whole ones can give."""
    network, sizes = repair.paths.network, np.unique(repair.paths.flows.size)
    rates = np.unique(network.gbps[network.fabric & (network.gbps > 0)])
    if highest <= bound * (1 + _EXACT) or not len(rates):
        return np.zeros(0)
    if len(sizes) > 1:
        return np.geomspace(bound, highest, _STEPS, endpoint=False)
    whole = [
        np.arange(np.floor(bound * rate / sizes[0]), highest * rate / sizes[0]) * sizes[0] / rate for rate in rates
    ]
    uses = np.unique(np.round(np.concatenate(whole), 12))
    between: np.ndarray = uses[(uses >= bound * (1 - _EXACT)) & (uses < highest * (1 - _EXACT))]
    return between
