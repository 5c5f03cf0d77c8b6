"""The schedule of a step around failed workers: greedy ones for many limits of memory and orders, of which the best.

More micro-batches in flight hide more of the pipeline's depth and cost memory. So limits are tried from small to
large, and the first schedule that reaches the lower bound is taken.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from lockstep.errors import BadInput
from planner.recovery.recycle.bounds import find_bound
from planner.recovery.recycle.dispatching import TURNS, URGENT, Dispatch, Rules
from planner.recovery.recycle.routing import check_grid, find_load
from planner.recovery.recycle.schedule import Schedule, Shape, Times, Worker

_NEAR = 3  # limits next to the least useful one that are tried one by one
_GROWTH = 1.5  # beyond them: a limit more or less matters less the larger it is
_EXACT = 1e-9  # relative; sums of floats in another order differ by less


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What a schedule may do, and what it is to be best at."""

    is_decoupled: bool = True
    is_staggered: bool = True  # minimise the period; otherwise the makespan
    memory: int | Sequence[int] | None = None  # micro-batches that a worker holds at a time, of all or of each stage
    keeps_order: bool = False  # backwards always come first, as in 1F1B; otherwise forwards may run ahead


def plan_schedule(
    shape: Shape, times: Times, failed: Collection[Worker] = (), options: ScheduleOptions | None = None
) -> Schedule:
    """Return the best schedule found; the same input gives the same schedule.

    >>> from planner.recovery.recycle.schedule import unit_times
    >>> plan_schedule(Shape(4, 3, 6), unit_times(4), {Worker(1, 2)}).period
    27.0
    """
    options = options or ScheduleOptions()
    check_grid(shape, times, failed)
    limit = spread_limit(options.memory, [find_load(shape, failed, stage) for stage in range(shape.stages)])
    aim = _aim(shape, times, failed, options, limit)
    best: Dispatch | None = None
    for rules in _list_rules(shape, times, failed, options, limit):
        made = Dispatch(shape, times, failed, rules)
        if best is None or _is_better(made, best, options.is_staggered):
            best = made
        if not _is_less(aim, best.period if options.is_staggered else best.makespan):
            break
    assert best is not None  # there is always a limit to try
    return best.to_schedule()


def spread_limit(memory: int | Sequence[int] | None, loads: Sequence[int]) -> list[int]:
    """Return how many micro-batches a worker of each stage may hold: what it is given, at most what it has."""
    given = loads if memory is None else [memory] * len(loads) if isinstance(memory, int) else list(memory)
    if len(given) != len(loads):
        raise BadInput(f"memory is given for {len(given)} stages, the grid has {len(loads)}")
    if min(given) < 1:
        raise BadInput(f"a worker must be able to hold at least one micro-batch, not {min(given)}")
    return [min(pair) for pair in zip(given, loads, strict=True)]


def _aim(
    shape: Shape, times: Times, failed: Collection[Worker], options: ScheduleOptions, held: Sequence[int]
) -> float:
    bound = find_bound(shape, times, failed, options.is_decoupled, held)
    return bound.period if options.is_staggered else bound.makespan


def _list_rules(
    shape: Shape, times: Times, failed: Collection[Worker], options: ScheduleOptions, limit: Sequence[int]
) -> Iterator[Rules]:
    """Yield what is worth a try, little memory first: limits that fall with the stage as in 1F1B, then level ones."""
    levels = list(_list_limits(shape, times, failed, options, limit))
    helds = dict.fromkeys(
        tuple(min(room, max(1, level - fall * stage)) for stage, room in enumerate(limit))
        for level in levels
        for fall in (1, 0)
    )
    turns = TURNS if failed else TURNS[:1]
    yield from (Rules(held, options.is_decoupled, turn) for held, turn in product(helds, turns))
    if not options.keeps_order:
        yield from (Rules(held, options.is_decoupled, urgent=urgent) for urgent, held in product(URGENT[1:], helds))


def _list_limits(
    shape: Shape, times: Times, failed: Collection[Worker], options: ScheduleOptions, limit: Sequence[int]
) -> Iterator[int]:
    """Yield limits from the least that does not forbid the bound by itself."""
    aim = _aim(shape, times, failed, options, limit)
    most = 1
    while most < max(limit):
        held = [min(most, room) for room in limit]
        if not _is_less(aim, _aim(shape, times, failed, options, held)):
            break
        most += 1
    near = most + _NEAR
    while most < max(limit):
        yield most
        most = most + 1 if most < near else int(most * _GROWTH) + 1
    yield max(limit)


def _is_better(one: Dispatch, other: Dispatch, is_staggered: bool) -> bool:
    """Return whether one schedule is shorter, first in what counts and where that is equal in the other."""
    lengths = [(one.period, other.period), (one.makespan, other.makespan)]
    for mine, theirs in lengths if is_staggered else reversed(lengths):
        if _is_less(mine, theirs) or _is_less(theirs, mine):
            return mine < theirs
    return False


def _is_less(one: float, other: float) -> bool:
    return one < other - _EXACT * abs(other)
