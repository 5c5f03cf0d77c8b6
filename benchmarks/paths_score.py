"""One plan of paths, made and held against its yardsticks: how far from the optimum, and what it cost."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, csr_array, hstack, vstack

from benchmarks.figures import Made as Result
from benchmarks.figures import clocked
from benchmarks.paths_cases import FIRST_SEED, Case, build_case, fabric_links
from planner.paths.flows import UNPLACED, FlowPaths, find_use
from planner.paths.network import without
from planner.paths.planning import PathPlan, plan_paths, plan_table

_BLOCK = 4096  # flows whose paths are listed at once: all of a large fabric take gigabytes


@dataclass(frozen=True)
class Program:
    """Shares of pairs of leaves on paths: `sums @ share == demand`, and `links @ share` is what each link carries."""

    demand: np.ndarray  # Gbit/s of each pair
    sums: csr_array
    links: csr_array
    gbps: np.ndarray  # of each directed link that any path uses

    @property
    def variables(self) -> int:
        return int(self.sums.shape[1])


def count_variables(paths: FlowPaths) -> int:
    """Return how many paths all pairs of leaves have together, without listing them."""
    return sum(int(many.sum()) for _, _, many in _list_paths(paths, _find_pairs(paths)[0]))


def build_program(paths: FlowPaths) -> Program:
    """Return the program of all flows that have paths to choose from."""
    pairs, index, flows = _find_pairs(paths)
    demand = np.bincount(index, paths.flows.size[flows], minlength=len(pairs))
    rows, columns, owner = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    made = 0
    for begin, spines, many in _list_paths(paths, pairs):
        mine = np.repeat(np.arange(begin, begin + len(many)), many)
        links = paths.links_of(pairs[mine], spines)
        rows.append(links.ravel())
        columns.append(np.repeat(made + np.arange(len(spines)), links.shape[1]))
        owner.append(mine)
        made += len(spines)
    used, row = np.unique(np.concatenate(rows), return_inverse=True)
    column, pair = np.concatenate(columns), np.concatenate(owner)
    return Program(
        demand,
        csr_array(coo_array((np.ones(made), (pair, np.arange(made))), shape=(len(pairs), made))),
        csr_array(coo_array((np.ones(len(row)), (row, column)), shape=(len(used), made))),
        paths.network.gbps[used],
    )


def solve_fraction(program: Program, limit_s: float) -> float | None:
    """Return the least highest use when flows may be split at will, or None where the time does not suffice."""
    if not len(program.demand):
        return 0.0
    highest = csr_array(-program.gbps[:, None])
    found = linprog(
        np.append(np.zeros(program.variables), 1.0),
        A_ub=hstack([program.links, highest]),
        b_ub=np.zeros(len(program.gbps)),
        A_eq=hstack([program.sums, csr_array((len(program.demand), 1))]),
        b_eq=program.demand,
        method="highs-ipm",  # many times faster than the simplex method on these: most paths are equally good
        options={"time_limit": limit_s},
    )
    return float(found.fun) if found.status == 0 else None


def solve_whole(program: Program, size: float, limit_s: float) -> float | None:
    """Return the least highest use of whole flows, all of one size, or None where the time does not suffice."""
    if not len(program.demand):
        return 0.0
    inside = hstack([program.links * size, csr_array(-program.gbps[:, None])])
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


def draw_at_random(paths: FlowPaths, seeds: range) -> list[float]:
    """Return the highest use when each flow takes any of its shortest paths, as hashing does, once per seed."""
    draws = [np.random.default_rng(seed).random(len(paths.flows)) for seed in seeds]
    chosen = [np.full(len(paths.flows), UNPLACED, np.int64) for _ in seeds]
    flows = np.flatnonzero(paths.height > 0)
    flows = flows[np.argsort(paths.height[flows], kind="stable")]
    for begin, spines, many in _list_paths(paths, flows):
        at, first = flows[begin : begin + len(many)], np.cumsum(many) - many
        for draw, spine in zip(draws, chosen, strict=True):
            spine[at] = spines[first + (draw[at] * many).astype(np.int64)]
    return [highest_use(paths, spine) for spine in chosen]


def choose_greedily(paths: FlowPaths) -> float:
    """Return the highest use when flows, as they come, take the path whose fullest link is then the least full."""
    spine = np.full(len(paths.flows), UNPLACED, np.int64)
    use, size, gbps = np.zeros(paths.network.directed_links), paths.flows.size, paths.network.gbps
    for flow in np.flatnonzero(paths.height > 0).tolist():
        spines = paths.spines(flow)
        links = paths.links(flow, spines)
        best = int(np.argmin((use[links] + size[flow] / gbps[links]).max(axis=1)))
        use[links[best]] += size[flow] / gbps[links[best]]
        spine[flow] = spines[best]
    return highest_use(paths, spine)


def highest_use(paths: FlowPaths, spine: np.ndarray) -> float:
    """Return the highest use of a directed link between switches."""
    return float(find_use(paths.network, paths.find_loads(spine))[paths.network.fabric].max(initial=0.0))


def _find_pairs(paths: FlowPaths) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one flow for each pair of leaves, by height; then which pair each flow is of, and those flows."""
    flows, leaves = np.flatnonzero(paths.height > 0), len(paths.network.leaves)
    key = (paths.height[flows] * leaves + paths.flows.near[flows]) * leaves + paths.flows.far[flows]
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return flows[first], index.reshape(-1), flows


def _list_paths(paths: FlowPaths, flows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the spines of flows, sorted by height, in blocks of one height: its begin, spines, how many each."""
    ends = np.flatnonzero(np.diff(paths.height[flows])) + 1
    for low, high in zip([0, *ends.tolist()], [*ends.tolist(), len(flows)], strict=True):
        for begin in range(low, high, _BLOCK):
            block = flows[begin : min(begin + _BLOCK, high)]
            usable = paths.usable[int(paths.height[block[0]]) - 1]
            shared = usable[paths.flows.near[block]] & usable[paths.flows.far[block]]
            yield begin, np.nonzero(shared)[1], shared.sum(axis=1)


Source = Literal["LP", "closed form"]

_CLOSE = 1e-6  # of a flow: the LP is solved by floats
_DRAWS = 20  # of ECMP
_MOST_VARIABLES = 30_000  # of an LP that HiGHS solves in seconds; twice as many take ten times as long
_LP_LIMIT_S = 60.0
_TIMES = 3  # that each plan is made
_MOST_WHOLE = 10_000  # variables of a MILP that has a chance to finish
_MILP_LIMIT_S = 5.0  # what finishes at all mostly does so in four


@dataclass(frozen=True)
class Effort:
    """What a call took, the quickest of several times: neighbours on the machine only ever make it slower."""

    wall_s: float
    cpu_s: float
    peak_mb: float  # of memory beyond what was there before the first time


@dataclass(frozen=True)
class Score:
    """A plan beside its yardsticks; uses are shares of a link's rate."""

    case: Case
    use: float
    bound: float  # of fractions
    bound_by: Source
    above: float  # flows on the worst directed link above what the whole optimum can have at best
    whole: float | None  # the optimum of whole flows by MILP, None where unknown
    ecmp: tuple[float, ...]
    greedy: float
    effort: Effort
    unreachable: int

    @property
    def is_optimal(self) -> bool:
        """Return whether no plan of whole flows is better, as far as that is proven."""
        return self.above < _CLOSE or (self.whole is not None and self.use <= self.whole * (1 + _CLOSE))

    @property
    def has_equal_flows(self) -> bool:
        return "sizes" not in self.case.traffic


@dataclass(frozen=True)
class Replanned:
    """A link lost: what planning anew took, and how many flows moved."""

    case: Case
    wall_s: float
    without_s: float  # of that, to take the link out of the network
    must_move: int
    may_move: int
    above: float


def score_case(case: Case, milp_always: bool = False) -> Score:
    """Return the score of a case; the MILP is asked where it may finish and something is still to be proven."""
    network, flows = build_case(case)
    plan, effort = with_effort(lambda: plan_paths(network, flows))
    paths = check_plan(plan)
    bound, source = find_fraction(paths, plan)
    above = count_above(plan, bound)
    equal = len(np.unique(plan.flows.size)) == 1
    ask = equal and (milp_always or above >= _CLOSE)
    may_finish = ask and count_variables(paths) <= _MOST_WHOLE
    whole = solve_whole(build_program(paths), float(plan.flows.size[0]), _MILP_LIMIT_S) if may_finish else None
    ecmp = draw_at_random(paths, range(FIRST_SEED, FIRST_SEED + _DRAWS))
    greedy, lost = choose_greedily(paths), len(plan.unreachable)
    return Score(case, plan.highest_use, bound, source, above, whole, tuple(ecmp), greedy, effort, lost)


def replan_case(case: Case, links: int) -> list[Replanned]:
    """Return what it takes to plan around each of some links, the others being as they were."""
    network, flows = build_case(case)
    before = plan_paths(network, flows)
    names = fabric_links(network.topology)
    rng = np.random.default_rng(case.seed)
    return [_lose(case, before, names[at]) for at in rng.choice(len(names), links, replace=False).tolist()]


def _lose(case: Case, before: PathPlan, link: str) -> Replanned:
    begin = time.perf_counter()
    network = without(before.network, [link])
    known = time.perf_counter()
    plan = plan_table(network, before.flows, before)
    end = time.perf_counter()
    above = count_above(plan, plan.bound)
    check_plan(plan)
    return Replanned(case, end - begin, known - begin, plan.must_move, plan.may_move, above)


def check_plan(plan: PathPlan) -> FlowPaths:
    """Return the paths of a plan, after all of them were seen to exist and to add up to its loads."""
    paths = FlowPaths(plan.network, plan.flows)
    if not paths.is_valid(plan.spine)[paths.height >= 0].all():
        raise AssertionError("a plan has a flow without a path, or over a dead one")
    if not np.allclose(paths.find_loads(plan.spine), plan.load):
        raise AssertionError("a plan's loads are not those of its paths")
    return paths


def find_fraction(paths: FlowPaths, plan: PathPlan) -> tuple[float, Source]:
    """Return the LP optimum where it can be had; else, and where the plan reaches it, the closed form."""
    if count_above(plan, plan.bound) < _CLOSE and plan.highest_use <= plan.bound * (1 + _CLOSE):
        return plan.bound, "closed form"  # reached, so it is the optimum
    if count_variables(paths) <= _MOST_VARIABLES:
        found = solve_fraction(build_program(paths), _LP_LIMIT_S)
        if found is not None:
            return max(found, plan.bound), "LP"
    return plan.bound, "closed form"


def count_above(plan: PathPlan, bound: float) -> float:
    """Return how many flows the worst directed link has above the whole optimum, at best the ceiling of the bound.

    Where links differ, the ceiling is the lowest use at or above the bound that whole flows give on any of them.
    Where flows differ, there is none: the worst link's load above the bound is counted in flows of the largest size.
    """
    network, size = plan.network, plan.flows.size
    links = network.fabric & (network.gbps > 0)
    rates, load = network.gbps[links], plan.load[links]
    if not len(size) or not len(rates):
        return 0.0
    if len(np.unique(size)) > 1:
        return max(0.0, float(((load - bound * rates) / size.max()).max()))
    one = float(size[0])
    ceiling = min(math.ceil(bound * rate / one - _CLOSE) * one / rate for rate in np.unique(rates).tolist())
    return max(0.0, float((np.round(load / one) - np.floor(ceiling * rates / one + _CLOSE)).max()))


def with_effort(call: Callable[[], Result], times: int = _TIMES) -> tuple[Result, Effort]:
    """Return what a call returns, and what it took; the peak of memory is that of the call alone."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM (proc(5)), so that setting up does not count
    before_mb = _read_status_mb("VmRSS")
    result, wall_s, cpu_s = clocked(call)
    peak_mb = max(0.0, _read_status_mb("VmHWM") - before_mb)
    again = [clocked(call) for _ in range(times - 1)]
    return result, Effort(
        min([wall_s, *(one[1] for one in again)]), min([cpu_s, *(one[2] for one in again)]), peak_mb
    )


def _read_status_mb(name: str) -> float:
    """Return a size of this process, as the kernel tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))
