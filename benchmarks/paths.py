"""The path planner's claims: plans at the integer optimum, quickly, and around a lost link at once.

Large fabrics are measured one by one, each in a process of its own so that its peak memory is its own, beside random
choice (ECMP) and greedy choice. Small ones are many, so that the share at the optimum means something, and beside the
LP and, where it finishes, the MILP. Every plan's roads are checked before it is scored.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, product
from multiprocessing import get_context
from typing import TypeVar

from benchmarks.figures import Figure, Note
from benchmarks.paths_c4p import measure_c4p
from benchmarks.paths_cases import (
    DAMAGES,
    DATA,
    EQUAL,
    FIRST_SEED,
    LARGE,
    NAMESAKES,
    ONE_WAY,
    SMALL,
    TRAFFIC,
    Case,
    has_public_data,
)
from benchmarks.paths_score import Replanned, Score, replan_case, score_case
from benchmarks.paths_table import claim_optimum, claim_replanning, claim_seconds, list_cases, list_groups

_FLOWS = (1_024, 8_192, 65_536)
_SMALL_FLOWS = 512
_SMALL_SEEDS = 2
_MILP_EVERY = 16  # small cases, whether or not anything is left to prove: the MILP takes seconds each
_LINKS_LOST = 10
_REPLAN_FLOWS = 8_192

Result = TypeVar("Result")


def measure(quick: bool, note: Note) -> tuple[Figure, ...]:
    """Return the figures of the planner."""
    large = [_noted(note, case) for case in (quick_cases() if quick else [*large_cases(), *_public_cases(note)])]
    note("planning many small cases")
    small = [score_case(case, milp_always=case.seed % _MILP_EVERY == 0) for case in small_cases(quick)]
    replanned = [one for case in replan_cases(quick) for one in _replan(note, case)]
    return (
        *claim_optimum([*large, *small]),
        *claim_seconds(large),
        *claim_replanning(replanned),
        *measure_c4p(quick, note),
        *list_cases(large),
        *list_groups(small),
    )


def large_cases() -> list[Case]:
    """Return each large fabric with each damage and number of flows; traffic takes turns, so that all is met."""
    seeds, kinds = count(FIRST_SEED), list(TRAFFIC)
    turns = product(LARGE, _FLOWS, DAMAGES)
    return [
        Case(fabric, damage, kinds[(turn + turn // len(DAMAGES)) % len(kinds)], flows, next(seeds))
        for turn, (fabric, flows, damage) in enumerate(turns)
    ]


def quick_cases() -> list[Case]:
    """Return a few cases that show whether anything is amiss."""
    return [
        Case("k=16", "intact", "rings", 8_192, FIRST_SEED),
        Case("rails 64 x 32", "4 % of links missing", "random", 8_192, FIRST_SEED + 1),
        Case("planes 2 x 32 x 16", "4 % of links slow", "four sizes", 1_024, FIRST_SEED + 2),
    ]


def small_cases(quick: bool) -> list[Case]:
    """Return small fabrics with each damage and kind of traffic, several times."""
    fabrics, seeds = (SMALL[:1], 1) if quick else (SMALL, _SMALL_SEEDS)
    kinds = (*EQUAL, "four sizes")
    turns = product(fabrics, DAMAGES, kinds, range(seeds))
    return [
        Case(fabric, damage, traffic, _SMALL_FLOWS, FIRST_SEED + turn)
        for turn, (fabric, damage, traffic, _) in enumerate(turns)
    ]


def replan_cases(quick: bool) -> list[Case]:
    """Return the plans that lose a link."""
    broken = [Case("k=16", "4 % of links missing", "random", _REPLAN_FLOWS, FIRST_SEED + len(LARGE))]
    whole = [Case(fabric, "intact", "rings", _REPLAN_FLOWS, FIRST_SEED + at) for at, fabric in enumerate(LARGE)]
    return whole[:1] if quick else whole + broken


def _public_cases(note: Note) -> Iterator[Case]:
    if not has_public_data():
        note(f"the Lingjun topology is left out: set {DATA} to the folder of third-party data")
        return
    yield Case(ONE_WAY, "intact", "rings", 1_024, FIRST_SEED)
    for at, (traffic, flows) in enumerate(product(("rings", "jobs", "random"), _FLOWS[:2])):
        yield Case(NAMESAKES, "intact", traffic, flows, FIRST_SEED + at)
    yield Case(NAMESAKES, "4 % of links missing", "rings", 8_192, FIRST_SEED)


def _noted(note: Note, case: Case) -> Score:
    note(f"planning {case.name}")
    return _apart(score_case, case)


def _replan(note: Note, case: Case) -> Iterable[Replanned]:
    note(f"losing links of {case.name}")
    return _apart(replan_case, case, _LINKS_LOST)


def _apart(call: Callable[..., Result], *arguments: object) -> Result:
    """Return what a call returns in a fresh interpreter: the peak of one would hide that of the next."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()
