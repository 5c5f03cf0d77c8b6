"""One plan of paths, made and held against its yardsticks: how far from the optimum, and what it cost."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from benchmarks.paths_cases import FIRST_SEED, Case, build_case, fabric_links
from benchmarks.paths_yardsticks import (
    build_program,
    choose_greedily,
    count_variables,
    draw_at_random,
    solve_fraction,
    solve_whole,
)
from planner.paths.network import without
from planner.paths.planning import PathPlan, plan_paths, plan_table
from planner.paths.roads import Roads

Source = Literal["LP", "closed form"]
Result = TypeVar("Result")

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
    above: float  # flows on the worst lane above what the whole optimum can have at best
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
    roads = check_plan(plan)
    bound, source = find_fraction(roads, plan)
    above = count_above(plan, bound)
    equal = len(np.unique(plan.flows.size)) == 1
    ask = equal and (milp_always or above >= _CLOSE)
    whole = _find_whole(roads, float(plan.flows.size[0])) if ask else None
    ecmp = draw_at_random(roads, range(FIRST_SEED, FIRST_SEED + _DRAWS))
    greedy, lost = choose_greedily(roads), len(plan.unreachable)
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


def check_plan(plan: PathPlan) -> Roads:
    """Return the roads of a plan, after all of them were seen to exist and to add up to its loads."""
    roads = Roads(plan.network, plan.flows)
    if not roads.is_valid(plan.top)[roads.height >= 0].all():
        raise AssertionError("a plan has a flow without a road, or over a dead one")
    if not np.allclose(roads.find_loads(plan.top), plan.load):
        raise AssertionError("a plan's loads are not those of its roads")
    return roads


def find_fraction(roads: Roads, plan: PathPlan) -> tuple[float, Source]:
    """Return the LP optimum where it can be had; else, and where the plan reaches it, the closed form."""
    if count_above(plan, plan.bound) < _CLOSE and plan.highest_use <= plan.bound * (1 + _CLOSE):
        return plan.bound, "closed form"  # reached, so it is the optimum
    if count_variables(roads) <= _MOST_VARIABLES:
        found = solve_fraction(build_program(roads), _LP_LIMIT_S)
        if found is not None:
            return max(found, plan.bound), "LP"
    return plan.bound, "closed form"


def count_above(plan: PathPlan, bound: float) -> float:
    """Return how many flows the worst lane has above the whole optimum, at best the ceiling of the bound.

    Where links differ, the ceiling is the lowest use at or above the bound that whole flows give on any of them.
    Where flows differ, there is none: the worst lane's load above the bound is counted in flows of the largest size.
    """
    network, size = plan.network, plan.flows.size
    lanes = network.fabric & (network.gbps > 0)
    rates, load = network.gbps[lanes], plan.load[lanes]
    if not len(size) or not len(rates):
        return 0.0
    if len(np.unique(size)) > 1:
        return max(0.0, float(((load - bound * rates) / size.max()).max()))
    one = float(size[0])
    ceiling = min(math.ceil(bound * rate / one - _CLOSE) * one / rate for rate in np.unique(rates).tolist())
    return max(0.0, float((np.round(load / one) - np.floor(ceiling * rates / one + _CLOSE)).max()))


def with_effort(call: Callable[[], Result], times: int = _TIMES) -> tuple[Result, Effort]:
    """Return what a call returns, and what it took; the peak of memory is that of the call alone."""
    _forget_peak()
    before_mb = _read_status_mb("VmRSS")
    result, wall_s, cpu_s = _clocked(call)
    peak_mb = max(0.0, _read_status_mb("VmHWM") - before_mb)
    again = [_clocked(call) for _ in range(times - 1)]
    return result, Effort(
        min([wall_s, *(one[1] for one in again)]), min([cpu_s, *(one[2] for one in again)]), peak_mb
    )


def _clocked(call: Callable[[], Result]) -> tuple[Result, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def _find_whole(roads: Roads, size: float) -> float | None:
    if count_variables(roads) > _MOST_WHOLE:
        return None
    return solve_whole(build_program(roads), size, _MILP_LIMIT_S)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM (proc(5)), so that setting up does not count


def _read_status_mb(name: str) -> float:
    """Return a size of this process, as the kernel tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))
