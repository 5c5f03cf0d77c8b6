"""The optimum is the optimum: against brute force where that can be done, and against the whole programme."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from planner.allocation.solve import solve


@dataclass(frozen=True)
class Table:
    counts: np.ndarray
    gains: np.ndarray


def table(choices: dict[int, float]) -> Table:
    counts = sorted(choices)
    return Table(np.array(counts), np.array([choices[count] for count in counts], float))


def menus(most: int = 7) -> st.SearchStrategy[list[dict[int, float]]]:
    gain = st.floats(-100, 100) | st.integers(-3, 3).map(float)
    return st.lists(st.dictionaries(st.integers(0, most), gain, min_size=1, max_size=most), max_size=4)


def best_by_force(choices: list[dict[int, float]], capacity: int) -> float | None:
    sums = [
        sum(menu[count] for menu, count in zip(choices, counts, strict=True))
        for counts in product(*choices)
        if sum(counts) <= capacity
    ]
    return max(sums, default=None)


@given(menus(), st.integers(0, 20), st.booleans())
def test_no_combination_beats_the_optimum(choices: list[dict[int, float]], capacity: int, prune: bool) -> None:
    best = best_by_force(choices, capacity)
    if best is None:
        with pytest.raises(BadInput, match=f"and {capacity} can be used"):
            solve([table(menu) for menu in choices], capacity, prune)
        return
    found = solve([table(menu) for menu in choices], capacity, prune)
    assert found.value == pytest.approx(best, abs=1e-9)
    assert found.counts.sum() <= capacity
    assert found.value == pytest.approx(sum(menu[int(k)] for menu, k in zip(choices, found.counts, strict=True)))
