"""On small grids the greedy schedule is as short as the proven one, or a slot longer."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from lockstep.errors import NotPresent
from planner.pipeline.checking import find_bound, find_faults
from planner.pipeline.dispatch import ScheduleOptions, plan_schedule, spread_limit
from planner.pipeline.schedule import (
    RELEASING,
    Kind,
    Op,
    Schedule,
    Shape,
    Times,
    Worker,
    check_grid,
    find_load,
    share_guests,
    unit_times,
)
from tests.tiers import long_except

_IMPOSSIBLE = 2  # scipy's status of a problem without a solution


class _Piece(NamedTuple):
    kind: Kind
    pipeline: int
    micro_batch: int
    stage: int


class _Start(NamedTuple):
    piece: _Piece
    worker: Worker
    slot: int


Row = tuple[dict[int, float], float, float]  # coefficients by variable, least, most


@dataclass(frozen=True, slots=True)
class _Grid:
    shape: Shape
    times: Times
    failed: frozenset[Worker]
    is_decoupled: bool
    held: tuple[int, ...]  # most micro-batches at a time, of each stage
    slots: int  # in which everything ends
    period: int  # slots in which each stage begins and ends

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return ("forward", "input", "weight") if self.is_decoupled else ("forward", "both")

    def lasts(self, piece: _Piece) -> int:
        return round(self.times.lasts(piece.kind, piece.stage))

    def pieces(self) -> Iterator[_Piece]:
        shape = self.shape
        indices = np.ndindex(shape.pipelines, shape.micro_batches, shape.stages)
        return (_Piece(kind, *index) for index in indices for kind in self.kinds)

    def workers(self, piece: _Piece) -> list[Worker]:
        home = Worker(piece.pipeline, piece.stage)
        if home not in self.failed:
            return [home]
        return [Worker(live, piece.stage) for live in share_guests(self.shape, self.failed, piece.stage).live]

    def before(self, piece: _Piece) -> Iterator[tuple[_Piece, int]]:
        """Yield what has to end before a piece of work begins, and how long before."""
        kind, *_, stage = piece
        hop = round(self.times.transfer)
        if kind == "forward" and stage:
            yield piece._replace(stage=stage - 1), hop
        if kind == "weight":
            yield piece._replace(kind="input"), 0
        if kind in ("input", "both"):
            yield piece._replace(kind="forward"), 0
            if stage < self.shape.stages - 1:
                yield piece._replace(stage=stage + 1), hop
        if kind == "forward" and not stage and piece.micro_batch:  # alike, so in this order; none has to end
            yield piece._replace(micro_batch=piece.micro_batch - 1), -round(self.times.forward[0])


def solve_schedule(
    shape: Shape,
    times: Times,
    failed: Collection[Worker],
    options: ScheduleOptions,
    longest: int,  # no schedule of more slots is looked at
    limit_s: float = 60.0,  # per question
) -> Schedule:
    """Return a schedule with the least makespan, or with the least period among those that end in time."""
    check_grid(shape, times, failed)
    loads = [find_load(shape, failed, stage) for stage in range(shape.stages)]
    held = tuple(spread_limit(options.memory, loads))
    bound = find_bound(shape, times, failed, options.is_decoupled, held)
    for length in range(round(bound.period if options.is_staggered else bound.makespan), longest + 1):
        slots = longest if options.is_staggered else length
        grid = _Grid(shape, times, frozenset(failed), options.is_decoupled, held, slots, length)
        if (chosen := _solve(_Model(grid), limit_s)) is not None:
            return _read(grid, chosen)
    raise NotPresent(f"there is no schedule of {longest} slots or less")


class _Model:
    """The rows of the MILP. Variables: the starts, then for each stage and slot whether it has begun by then."""

    def __init__(self, grid: _Grid) -> None:
        self.grid = grid
        self.starts = [
            _Start(piece, worker, slot)
            for piece in grid.pieces()
            for worker in grid.workers(piece)
            for slot in range(grid.slots - grid.lasts(piece) + 1)
        ]
        self.by_piece: dict[_Piece, dict[int, list[int]]] = {}
        self.by_worker: dict[Worker, list[int]] = defaultdict(list)
        for number, (piece, worker, slot) in enumerate(self.starts):
            self.by_piece.setdefault(piece, {}).setdefault(slot, []).append(number)
            self.by_worker[worker].append(number)
        self.width = len(self.starts) + grid.shape.stages * grid.slots

    def rows(self) -> Iterator[Row]:
        for piece, slots in self.by_piece.items():
            yield {number: 1.0 for numbers in slots.values() for number in numbers}, 1.0, 1.0
            yield from self._order(piece)
            yield from self._stay(piece)
            yield from self._frame(piece, slots)
        for worker in self.by_worker:
            yield from self._one_at_a_time(worker)
            yield from self._fit_memory(worker)
        for stage in range(self.grid.shape.stages):
            for slot in range(1, self.grid.slots):
                yield {self._has_begun(stage, slot - 1): 1.0, self._has_begun(stage, slot): -1.0}, -np.inf, 0.0

    def _has_begun(self, stage: int, slot: int) -> int:
        return len(self.starts) + stage * self.grid.slots + slot

    def _order(self, piece: _Piece) -> Iterator[Row]:
        """By any slot, a piece of work has begun only if what comes before had ended."""
        for other, gap in self.grid.before(piece):
            delay = self.grid.lasts(other) + gap
            row: dict[int, float] = {}
            for slot in range(self.grid.slots):
                row |= dict.fromkeys(self.by_piece[piece].get(slot, []), 1.0)
                row |= dict.fromkeys(self.by_piece[other].get(slot - delay, []), -1.0)
                yield dict(row), -np.inf, 0.0

    def _stay(self, piece: _Piece) -> Iterator[Row]:
        """Backwards are done where the forward was."""
        forward = piece._replace(kind="forward")
        workers = self.grid.workers(piece)
        if piece == forward or len(workers) == 1:
            return
        for worker in workers:
            row: dict[int, float] = {}
            for one, sign in ((piece, 1.0), (forward, -1.0)):
                numbers = [number for some in self.by_piece[one].values() for number in some]
                row |= {number: sign for number in numbers if self.starts[number].worker == worker}
            yield row, 0.0, 0.0

    def _frame(self, piece: _Piece, slots: Mapping[int, Sequence[int]]) -> Iterator[Row]:
        """Work begins once its stage has begun, and ends within the period from then."""
        for slot, numbers in slots.items():
            row = dict.fromkeys(numbers, 1.0)
            yield {**row, self._has_begun(piece.stage, slot): -1.0}, -np.inf, 0.0
            too_early = slot + self.grid.lasts(piece) - self.grid.period - 1
            if too_early >= 0:
                yield {**row, self._has_begun(piece.stage, too_early): 1.0}, -np.inf, 1.0

    def _one_at_a_time(self, worker: Worker) -> Iterator[Row]:
        for slot in range(self.grid.slots):
            at_work = [n for n in self.by_worker[worker] if 0 <= slot - self.starts[n].slot < self._lasts(n)]
            yield dict.fromkeys(at_work, 1.0), -np.inf, 1.0

    def _fit_memory(self, worker: Worker) -> Iterator[Row]:
        numbers, limit = self.by_worker[worker], self.grid.held[worker.stage]
        for slot in range(self.grid.slots):
            held = {n: 1.0 for n in numbers if self.starts[n].piece.kind == "forward" and self.starts[n].slot <= slot}
            ended = [n for n in numbers if self.starts[n].slot + self._lasts(n) <= slot]
            let_go = {n: -1.0 for n in ended if self.starts[n].piece.kind in RELEASING}
            yield held | let_go, -np.inf, float(limit)

    def _lasts(self, number: int) -> int:
        return self.grid.lasts(self.starts[number].piece)


def _solve(model: _Model, limit_s: float) -> list[_Start] | None:
    """Return the starts of a schedule, None where there is proven to be none."""
    rows = list(model.rows())
    indices = [(row, column, value) for row, (some, _, _) in enumerate(rows) for column, value in some.items()]
    row, column, value = (np.array(side) for side in zip(*indices, strict=True))
    matrix = csr_array((value, (row, column)), shape=(len(rows), model.width))
    least, most = (np.array([one[side] for one in rows]) for side in (1, 2))
    answer = milp(
        np.zeros(model.width),
        constraints=LinearConstraint(matrix, least, most),
        integrality=np.ones(model.width),
        bounds=Bounds(0.0, 1.0),
        options={"time_limit": limit_s},
    )
    if answer.status == _IMPOSSIBLE:
        return None
    if answer.status != 0:
        raise NotPresent(f"no answer for {model.grid.period} slots within {limit_s:g} s: {answer.message}")
    return [model.starts[number] for number in np.flatnonzero(answer.x[: len(model.starts)] > 0.5)]


def _read(grid: _Grid, chosen: Sequence[_Start]) -> Schedule:
    ops: dict[Worker, list[Op]] = defaultdict(list)
    for piece, worker, slot in sorted(chosen, key=lambda start: start.slot):
        ops[worker].append(Op(*piece, worker, float(slot), float(slot + grid.lasts(piece))))
    return Schedule(grid.shape, grid.times, grid.failed, {worker: tuple(some) for worker, some in ops.items()})


UNEVEN = Times((1.0, 2.0), (2.0, 1.0), (1.0, 2.0), transfer=1.0)


def greedy_and_proven(
    shape: Shape, times: Times, failed: set[Worker], options: ScheduleOptions
) -> tuple[float, float]:
    """Return the length of both; of the proven one among schedules at most two slots longer than the greedy one."""
    greedy = plan_schedule(shape, times, failed, options)
    proven = solve_schedule(shape, times, failed, options, longest=round(greedy.makespan) + 2 * options.is_staggered)
    assert find_faults(greedy, options.memory) == find_faults(proven, options.memory) == []
    return (greedy.period, proven.period) if options.is_staggered else (greedy.makespan, proven.makespan)


@pytest.mark.parametrize("is_decoupled", [True, False])
@pytest.mark.parametrize("is_staggered", [True, False])
@pytest.mark.parametrize("times", [unit_times(2), UNEVEN])
def test_two_stages_with_a_failure_are_within_a_slot(times: Times, is_decoupled: bool, is_staggered: bool) -> None:
    options = ScheduleOptions(is_decoupled, is_staggered)
    greedy, proven = greedy_and_proven(Shape(2, 2, 2), times, {Worker(0, 1)}, options)
    assert proven <= greedy <= proven + 1


@pytest.mark.parametrize("is_staggered", [True, False])
def test_tight_memory_is_within_a_slot(is_staggered: bool) -> None:
    options = ScheduleOptions(is_staggered=is_staggered, memory=2)
    greedy, proven = greedy_and_proven(Shape(2, 2, 3), unit_times(2), set(), options)
    assert (greedy, proven) == (10.0, 10.0)


UNEVEN_THREE = Times((2.0, 1.0, 1.0), (1.0, 1.0, 2.0), (1.0, 2.0, 2.0), transfer=1.0)
# With little memory the solver proves the smaller two in seconds; the others it does not settle in a minute.
CASES: list[tuple[Shape, Times, set[Worker], int | None]] = [
    (Shape(3, 2, 3), unit_times(3), {Worker(0, 1)}, None),
    (Shape(3, 3, 2), unit_times(3), {Worker(1, 0), Worker(2, 1)}, None),
    (Shape(3, 3, 2), unit_times(3), {Worker(1, 0), Worker(2, 1)}, 2),
    (Shape(2, 3, 3), unit_times(2), {Worker(2, 0), Worker(2, 1)}, None),
    (Shape(3, 3, 2), UNEVEN_THREE, {Worker(0, 2)}, None),
    (Shape(3, 3, 2), UNEVEN_THREE, {Worker(0, 2)}, 2),
]


@pytest.mark.slow
@pytest.mark.parametrize("is_staggered", long_except([True], [True, False]))
@pytest.mark.parametrize("case", long_except((CASES[0], CASES[5]), CASES))
def test_greedy_is_within_a_slot(case: tuple[Shape, Times, set[Worker], int | None], is_staggered: bool) -> None:
    shape, times, failed, memory = case
    options = ScheduleOptions(is_staggered=is_staggered, memory=memory)
    greedy, proven = greedy_and_proven(shape, times, failed, options)
    assert proven <= greedy <= proven + 1


@pytest.mark.slow
def test_coupled_backwards_are_within_a_slot() -> None:
    options = ScheduleOptions(is_decoupled=False, is_staggered=False)
    greedy, proven = greedy_and_proven(Shape(3, 2, 3), unit_times(3), {Worker(0, 1)}, options)
    assert proven <= greedy <= proven + 1
