"""The greedy schedule beside the proven one on grids that take a solver seconds each."""

import pytest

from planner.recovery.recycle.planning import ScheduleOptions
from planner.recovery.recycle.schedule import Shape, Times, Worker, unit_times
from tests.planner.recovery.recycle.test_exact import greedy_and_proven

pytestmark = pytest.mark.slow

UNEVEN = Times((2.0, 1.0, 1.0), (1.0, 1.0, 2.0), (1.0, 2.0, 2.0), transfer=1.0)
# With little memory the solver proves the smaller two in seconds; the others it does not settle in a minute.
CASES: list[tuple[Shape, Times, set[Worker], int | None]] = [
    (Shape(3, 2, 3), unit_times(3), {Worker(0, 1)}, None),
    (Shape(3, 3, 2), unit_times(3), {Worker(1, 0), Worker(2, 1)}, None),
    (Shape(3, 3, 2), unit_times(3), {Worker(1, 0), Worker(2, 1)}, 2),
    (Shape(2, 3, 3), unit_times(2), {Worker(2, 0), Worker(2, 1)}, None),
    (Shape(3, 3, 2), UNEVEN, {Worker(0, 2)}, None),
    (Shape(3, 3, 2), UNEVEN, {Worker(0, 2)}, 2),
]


@pytest.mark.parametrize("is_staggered", [True, False])
@pytest.mark.parametrize(("shape", "times", "failed", "memory"), CASES)
def test_greedy_is_within_a_slot(
    shape: Shape, times: Times, failed: set[Worker], memory: int | None, is_staggered: bool
) -> None:
    options = ScheduleOptions(is_staggered=is_staggered, memory=memory)
    greedy, proven = greedy_and_proven(shape, times, failed, options)
    assert proven <= greedy <= proven + 1


def test_coupled_backwards_are_within_a_slot() -> None:
    options = ScheduleOptions(is_decoupled=False, is_staggered=False)
    greedy, proven = greedy_and_proven(Shape(3, 2, 3), unit_times(3), {Worker(0, 1)}, options)
    assert proven <= greedy <= proven + 1
