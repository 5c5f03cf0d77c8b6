"""What a plan of paths is held against: the fractional and the whole optimum, random choice, and greedy choice.

Flows between the same two leaves have the same roads, so the programs have one variable for each pair of leaves and
each top that both reach, not one for each flow.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, csr_array, hstack, vstack

from planner.paths.roads import UNPLACED, Roads, find_use

_BLOCK = 4096  # flows whose roads are listed at once: all of a large fabric take gigabytes


@dataclass(frozen=True)
class Program:
    """Shares of pairs of leaves on roads: `sums @ share == demand`, and `lanes @ share` is what each lane carries."""

    demand: np.ndarray  # Gbit/s of each pair
    sums: csr_array
    lanes: csr_array
    gbps: np.ndarray  # of each lane that any road uses

    @property
    def variables(self) -> int:
        return int(self.sums.shape[1])


def count_variables(roads: Roads) -> int:
    """Return how many roads all pairs of leaves have together, without listing them."""
    return sum(int(many.sum()) for _, _, many in _list_roads(roads, _find_pairs(roads)[0]))


def build_program(roads: Roads) -> Program:
    """Return the program of all flows that have roads to choose from."""
    pairs, place, flows = _find_pairs(roads)
    demand = np.bincount(place, roads.flows.size[flows], minlength=len(pairs))
    rows, columns, owner = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    made = 0
    for begin, tops, many in _list_roads(roads, pairs):
        mine = np.repeat(np.arange(begin, begin + len(many)), many)
        lanes = roads.lanes_of(pairs[mine], tops)
        rows.append(lanes.ravel())
        columns.append(np.repeat(made + np.arange(len(tops)), lanes.shape[1]))
        owner.append(mine)
        made += len(tops)
    used, row = np.unique(np.concatenate(rows), return_inverse=True)
    column, pair = np.concatenate(columns), np.concatenate(owner)
    return Program(
        demand,
        csr_array(coo_array((np.ones(made), (pair, np.arange(made))), shape=(len(pairs), made))),
        csr_array(coo_array((np.ones(len(row)), (row, column)), shape=(len(used), made))),
        roads.network.gbps[used],
    )


def solve_fraction(program: Program, limit_s: float) -> float | None:
    """Return the least highest use when flows may be split at will, or None where the time does not suffice."""
    if not len(program.demand):
        return 0.0
    highest = csr_array(-program.gbps[:, None])
    found = linprog(
        np.append(np.zeros(program.variables), 1.0),
        A_ub=hstack([program.lanes, highest]),
        b_ub=np.zeros(len(program.gbps)),
        A_eq=hstack([program.sums, csr_array((len(program.demand), 1))]),
        b_eq=program.demand,
        method="highs-ipm",  # many times faster than the simplex method on these: most roads are equally good
        options={"time_limit": limit_s},
    )
    return float(found.fun) if found.status == 0 else None


def solve_whole(program: Program, size: float, limit_s: float) -> float | None:
    """Return the least highest use of whole flows, all of one size, or None where the time does not suffice."""
    if not len(program.demand):
        return 0.0
    inside = hstack([program.lanes * size, csr_array(-program.gbps[:, None])])
    shares = hstack([program.sums, csr_array((len(program.demand), 1))])
    counts = np.round(program.demand / size)
    found = milp(
        np.append(np.zeros(program.variables), 1.0),
        constraints=LinearConstraint(
            csr_array(vstack([inside, shares])),
            np.concatenate([np.full(len(program.gbps), -np.inf), counts]),
            np.concatenate([np.zeros(len(program.gbps)), counts]),
        ),
        integrality=np.append(np.ones(program.variables), 0),
        bounds=Bounds(0.0, np.inf),
        options={"time_limit": limit_s},
    )
    return float(found.fun) if found.status == 0 else None


def draw_at_random(roads: Roads, seeds: range) -> list[float]:
    """Return the highest use when each flow takes any of its shortest roads, as hashing does, once per seed."""
    draws = [np.random.default_rng(seed).random(len(roads.flows)) for seed in seeds]
    chosen = [np.full(len(roads.flows), UNPLACED, np.int64) for _ in seeds]
    flows = np.flatnonzero(roads.height > 0)
    flows = flows[np.argsort(roads.height[flows], kind="stable")]
    for begin, tops, many in _list_roads(roads, flows):
        at, first = flows[begin : begin + len(many)], np.cumsum(many) - many
        for draw, top in zip(draws, chosen, strict=True):
            top[at] = tops[first + (draw[at] * many).astype(np.int64)]
    return [highest_use(roads, top) for top in chosen]


def choose_greedily(roads: Roads) -> float:
    """Return the highest use when flows, as they come, take the road whose fullest lane is then the least full."""
    top = np.full(len(roads.flows), UNPLACED, np.int64)
    use, size, gbps = np.zeros(roads.network.lanes), roads.flows.size, roads.network.gbps
    for flow in np.flatnonzero(roads.height > 0).tolist():
        tops = roads.tops(flow)
        lanes = roads.lanes(flow, tops)
        best = int(np.argmin((use[lanes] + size[flow] / gbps[lanes]).max(axis=1)))
        use[lanes[best]] += size[flow] / gbps[lanes[best]]
        top[flow] = tops[best]
    return highest_use(roads, top)


def highest_use(roads: Roads, top: np.ndarray) -> float:
    """Return the highest use of a lane between switches."""
    return float(find_use(roads.network, roads.find_loads(top))[roads.network.fabric].max(initial=0.0))


def _find_pairs(roads: Roads) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one flow for each pair of leaves, by height; then which pair each flow is of, and those flows."""
    flows, leaves = np.flatnonzero(roads.height > 0), len(roads.network.leaves)
    key = (roads.height[flows] * leaves + roads.flows.near[flows]) * leaves + roads.flows.far[flows]
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return flows[first], place.reshape(-1), flows


def _list_roads(roads: Roads, flows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the tops of flows, sorted by height, in blocks of one height: where it begins, tops, how many each."""
    ends = np.flatnonzero(np.diff(roads.height[flows])) + 1
    for low, high in zip([0, *ends.tolist()], [*ends.tolist(), len(flows)], strict=True):
        for begin in range(low, high, _BLOCK):
            block = flows[begin : min(begin + _BLOCK, high)]
            usable = roads.usable[int(roads.height[block[0]]) - 1]
            shared = usable[roads.flows.near[block]] & usable[roads.flows.far[block]]
            yield begin, np.nonzero(shared)[1], shared.sum(axis=1)
