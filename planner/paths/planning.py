"""One road for each flow: the highest use of any link as low as it can be, around what is broken, moving little.

The plan starts from the one before, where there is one, or from an even spread; flows without a road, and those whose
road is gone, get the emptiest; then the highest use is lowered step by step towards the bound that no plan can beat.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.paths.bounds import find_bound
from planner.paths.flows import Flow, FlowTable, place_flows
from planner.paths.network import Network
from planner.paths.repairing import Repair, RepairOptions
from planner.paths.roads import UNPLACED, Roads, find_use
from planner.paths.spreading import spread_evenly

_STEPS = 256  # between the bound and what was reached, where flows are of many sizes; eight halvings find the best
_FIRST_ONES = 2  # targets that are tried one by one: plans are mostly at the bound, or one flow above it
_EXACT = 1e-9  # of a use: sums of floats are no exact numbers


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the planner is told."""

    repair: RepairOptions = field(default_factory=RepairOptions)
    most_moved: float = 0.25  # of the flows may move besides those that must, when there was a plan before
    least_gain: float = 0.02  # of the highest use: for less, nothing is moved that need not be
    most_tried_twice: int = 16_384  # flows for which a second start is worth its time: some 20 us each


@dataclass(frozen=True)
class PathPlan:
    """A road for each flow, with what it costs and what could be had at best."""

    network: Network
    flows: FlowTable
    height: np.ndarray  # how far up each flow goes: 0 inside a leaf, -1 where there is no way
    top: np.ndarray  # over which switch of that height, UNPLACED where there is none
    load: np.ndarray  # Gbit/s of each lane
    bound: float  # no plan has a lower highest use
    must_move: int = 0  # flows whose road was gone
    may_move: int = 0  # flows that moved to make room

    @property
    def highest_use(self) -> float:
        """Return the highest use of a lane between switches."""
        return float(find_use(self.network, self.load)[self.network.fabric].max(initial=0.0))

    @property
    def unreachable(self) -> list[str]:
        """Return the flows for which there is no way."""
        return [self.flows.ids[place] for place in np.flatnonzero(self.height < 0).tolist()]

    def all_lanes(self) -> list[list[int]]:
        """Return the lanes that each flow takes, from its source on; none where there is no way."""
        roads = Roads(self.network, self.flows)
        inner: list[list[int]] = [[] for _ in range(len(self.flows))]
        for level in range(1, len(self.network.climbs) + 1):
            at = np.flatnonzero((self.height == level) & (self.top != UNPLACED))
            for flow, lanes in zip(
                at.tolist(), roads.lanes_of(at, self.top[at]).tolist() if len(at) else (), strict=True
            ):
                inner[flow] = lanes
        ends = self.flows.ends.tolist()
        has_way = ((self.height == 0) | (self.top != UNPLACED)).tolist()
        return [[ends[flow][0], *inner[flow], ends[flow][1]] if has_way[flow] else [] for flow in range(len(ends))]


def plan_paths(
    network: Network, flows: Sequence[Flow], before: PathPlan | None = None, options: PlanOptions | None = None
) -> PathPlan:
    """Return a road for each flow; with a plan `before`, one that moves few of those that were in it."""
    table = place_flows(network, flows)
    return plan_table(network, table, before, options)


def plan_table(
    network: Network, flows: FlowTable, before: PathPlan | None = None, options: PlanOptions | None = None
) -> PathPlan:
    """Return a road for each flow of a table."""
    options = options or PlanOptions()
    if before and before.network.topology is not network.topology and before.network.topology != network.topology:
        before = None  # its lanes are others
    roads = Roads(network, flows)
    bound = find_bound(roads)
    if before is None:
        repair = _plan_afresh(roads, bound, options)
        return PathPlan(network, flows, roads.height, repair.top, repair.load, bound)
    top, had_road = _carry_over(roads, before)
    top[~roads.is_valid(top)] = UNPLACED
    must_move = had_road - int((top != UNPLACED).sum())
    repair = _put_right(Repair(roads, top, _bound_moves(options, len(flows))), bound, options.least_gain)
    return PathPlan(
        network,
        flows,
        roads.height,
        repair.top,
        repair.load,
        bound,
        must_move=must_move,
        may_move=len(repair.moved),
    )


def _plan_afresh(roads: Roads, bound: float, options: PlanOptions) -> Repair:
    """Return the better of two plans: from an even spread, and where that is not the best there is, flow by flow."""
    top = spread_evenly(roads)
    top[~roads.is_valid(top)] = UNPLACED
    spread = _put_right(Repair(roads, top, options.repair), bound)
    if len(roads.flows) > options.most_tried_twice or not len(_find_targets(spread, bound, spread.find_highest())):
        return spread
    one_by_one = _put_right(Repair(roads, np.full(len(top), UNPLACED), options.repair), bound)
    return min(spread, one_by_one, key=Repair.find_highest)


def _put_right(repair: Repair, bound: float, least_gain: float = 0.0) -> Repair:
    """Give every flow a road, and lower the highest use."""
    repair.place(np.flatnonzero((repair.roads.height > 0) & (repair.top == UNPLACED)))
    _lower(repair, bound, least_gain)
    return repair


def _bound_moves(options: PlanOptions, flows: int) -> RepairOptions:
    return replace(options.repair, most_moves=min(int(options.most_moved * flows), options.repair.most_moves))


def _carry_over(roads: Roads, before: PathPlan) -> tuple[np.ndarray, int]:
    """Return the tops of the plan before, UNPLACED for flows that go elsewhere now, and how many flows had one."""
    top = np.full(len(roads.flows), UNPLACED, np.int64)
    if roads.flows.ids == before.flows.ids:
        mine = theirs = np.arange(len(top))
    else:
        known = {name: place for place, name in enumerate(before.flows.ids)}
        found = np.array([known.get(name, -1) for name in roads.flows.ids], np.int64)
        mine = np.flatnonzero(found >= 0)
        theirs = found[mine]
    same = (roads.flows.ends[mine] == before.flows.ends[theirs]).all(axis=1)
    same &= roads.height[mine] == before.height[theirs]
    top[mine[same]] = before.top[theirs[same]]
    had_road = int((before.top[theirs] != UNPLACED).sum())
    return _keep_same_roads(roads, before.network, top), had_road


def _keep_same_roads(roads: Roads, before: Network, top: np.ndarray) -> np.ndarray:
    """Return the tops that still stand for the same lanes: one of several cables may stand in for another now."""
    for level, (old, new) in enumerate(zip(before.climbs, roads.network.climbs, strict=True), start=1):
        if old.lanes is new.lanes:
            continue
        at = np.flatnonzero((roads.height == level) & (top != UNPLACED))
        ends = (roads.flows.near[at], roads.flows.far[at])
        is_same = np.all(
            [(old.lanes[leaf, top[at]] == new.lanes[leaf, top[at]]).all(axis=1) for leaf in ends], axis=0
        )
        top[at[~is_same]] = UNPLACED
    return top


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
    network, sizes = repair.roads.network, np.unique(repair.roads.flows.size)
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
