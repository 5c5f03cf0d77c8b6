"""A greedy schedule, event by event: whenever a worker is free it begins the most urgent piece of work that is ready.

Backwards come first, since the stage before waits for them; then forwards, while there is memory for activations;
then weights, which nobody waits for and which fill what would be idle. A micro-batch whose worker has failed goes to
the peer that is free first and still has room in its share. No order can get stuck: the last stage can always go on,
so the stage before it can, and so on upwards.

Work is numbered here, since one step of a large grid has 50,000 pieces: micro-batch m of pipeline d at stage s is
item (d M + m) P + s, and worker (d, s) is d P + s. Cost: O(n log n) for n pieces of work.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import product
from typing import Literal, NamedTuple

from lockstep.errors import BadInput
from lockstep.pipeline.checking import find_bound
from lockstep.pipeline.schedule import Kind, Op, Schedule, Shape, Times, Worker, check_grid, find_load, share_guests

_FORWARD, _BACK, _WEIGHT, _DOWN, _UP = range(5)  # what ends at an event; the last two are arrivals at a next stage
_SAME = 1e-9  # of the shortest piece of work: moments closer than this are one, though sums of floats differ

# Which of two ready micro-batches of the same age goes first at a worker.
GuestOrder = Literal["own first", "guests first", "guests last"]
GUEST_ORDERS: tuple[GuestOrder, ...] = ("own first", "guests first", "guests last")

# What a worker does first of what is ready: backwards; forwards, as long as it has room; or forwards, and where it
# lacks the room for one, weights to make it.
Urgent = Literal["backwards", "forwards", "room"]
URGENT: tuple[Urgent, ...] = ("backwards", "forwards", "room")

Queue = list[tuple[int, int]]  # a heap of (priority, item)


@dataclass(frozen=True, slots=True)
class Rules:
    """How a greedy schedule is made."""

    held: Sequence[int]  # of each stage: most micro-batches that a worker holds at a time
    is_decoupled: bool
    guest_order: GuestOrder = "own first"
    urgent: Urgent = "backwards"


class _Begun(NamedTuple):
    kind: int
    item: int
    start: float


class Dispatch:
    """One greedy schedule: made when it is built, turned into a `Schedule` only when it is wanted."""

    def __init__(self, shape: Shape, times: Times, failed: Collection[Worker], rules: Rules) -> None:
        self.shape, self.times, self.failed, self.rules = shape, times, frozenset(failed), rules
        backs: Kind = "input" if rules.is_decoupled else "both"
        self._kinds: tuple[Kind, ...] = ("forward", backs, "weight")
        self._spent = [[times.lasts(kind, stage) for stage in range(shape.stages)] for kind in self._kinds]
        self._same = _SAME * min(min(spent) for spent in self._spent)
        workers = range(shape.pipelines * shape.stages)
        self._room = [rules.held[worker % shape.stages] for worker in workers]
        self._queues: list[list[Queue]] = [[[] for _ in workers] for _ in self._kinds]
        self._is_free = [True] * len(workers)
        self._begun: list[list[_Begun]] = [[] for _ in workers]
        self._events: list[tuple[float, int, int]] = []
        self._stirred: set[int] = set()  # workers that may have something new to do
        self._timestamp = 0.0
        self._number_items()
        self._share_out()
        self._run()

    @property
    def makespan(self) -> float:
        return max(self._end(begun[-1]) for begun in self._begun if begun)

    @property
    def period(self) -> float:
        by_stage = (filter(None, self._begun[stage :: self.shape.stages]) for stage in range(self.shape.stages))
        spans = ([(begun[0].start, self._end(begun[-1])) for begun in stage] for stage in by_stage)
        return max(max(end for _, end in stage) - min(start for start, _ in stage) for stage in spans)

    def to_schedule(self) -> Schedule:
        """Return the schedule with every piece of work by name."""
        by_worker = ((Worker(*divmod(number, self.shape.stages)), begun) for number, begun in enumerate(self._begun))
        ops = {worker: tuple(map(self._name, begun)) for worker, begun in by_worker if worker not in self.failed}
        return Schedule(self.shape, self.times, self.failed, ops)

    def _end(self, begun: _Begun) -> float:
        return begun.start + self._spent[begun.kind][begun.item % self.shape.stages]

    def _name(self, begun: _Begun) -> Op:
        batch, stage = divmod(begun.item, self.shape.stages)
        pipeline, micro_batch = divmod(batch, self.shape.micro_batches)
        worker = Worker(self._doer[begun.item] // self.shape.stages, stage)
        return Op(self._kinds[begun.kind], pipeline, micro_batch, stage, worker, begun.start, self._end(begun))

    # Before the first moment.

    def _number_items(self) -> None:
        """Say who does each item and with which priority; a guest has nobody yet."""
        self._doer: list[int] = []
        self._priority: list[int] = []
        shape = self.shape
        sizes = (shape.pipelines, shape.micro_batches, shape.stages)
        for pipeline, micro_batch, stage in product(*map(range, sizes)):
            is_guest = Worker(pipeline, stage) in self.failed
            self._doer.append(-1 if is_guest else pipeline * shape.stages + stage)
            self._priority.append(self._find_priority(pipeline, micro_batch, is_guest))

    def _find_priority(self, pipeline: int, micro_batch: int, is_guest: bool) -> int:
        age = 2 * micro_batch
        match self.rules.guest_order:
            case "own first":
                age += is_guest
            case "guests first":
                age -= is_guest
            case "guests last":
                age += 2 * self.shape.micro_batches * is_guest
        return age * self.shape.pipelines + pipeline

    def _share_out(self) -> None:
        """Say how many guests each worker still takes, and who of a stage are peers."""
        stages = range(self.shape.stages)
        shares = [share_guests(self.shape, self.failed, stage) for stage in stages]
        self._guests: list[Queue] = [[] for _ in stages]
        self._peers = [[pipeline * self.shape.stages + stage for pipeline in shares[stage].live] for stage in stages]
        self._left = [shares[worker % self.shape.stages].each for worker in range(len(self._room))]
        self._more = [share.more for share in shares]

    # Timing by moment.

    def _run(self) -> None:
        for item in range(0, len(self._doer), self.shape.stages):
            self._come(item)
        while True:
            for worker in sorted(self._stirred, key=self._rank_need):
                if self._is_free[worker]:
                    self._begin_next(worker)
            self._stirred.clear()
            if not self._events:
                return
            self._advance()

    def _rank_need(self, worker: int) -> tuple[bool, int, int]:
        """Those without a forward of their own choose first: guests are for them."""
        return bool(self._queues[_FORWARD][worker]), -self._left[worker], worker

    def _begin_next(self, worker: int) -> None:
        kind = self._choose_kind(worker)
        if kind is None:
            return
        queue = self._choose_forwards(worker) if kind == _FORWARD else self._queues[kind][worker]
        item = heappop(queue)[1]
        if kind == _FORWARD:
            self._room[worker] -= 1
            if self._doer[item] < 0:
                self._take_guest(worker, item)
        begun = _Begun(kind, item, self._timestamp)
        self._is_free[worker] = False
        self._begun[worker].append(begun)
        heappush(self._events, (self._end(begun), kind, item))

    def _choose_kind(self, worker: int) -> int | None:
        backs, weights = self._queues[_BACK][worker], self._queues[_WEIGHT][worker]
        is_last = worker % self.shape.stages == self.shape.stages - 1  # nobody waits for its forwards
        if backs and (is_last or self.rules.urgent == "backwards"):
            return _BACK
        forwards = self._choose_forwards(worker)
        if forwards and self._room[worker]:
            return _FORWARD
        if forwards and weights and self.rules.urgent == "room":
            return _WEIGHT
        return _BACK if backs else _WEIGHT if weights else None

    def _choose_forwards(self, worker: int) -> Queue:
        """Return the queue of which a worker takes its next forward: its own, or the guests of its stage."""
        own, stage = self._queues[_FORWARD][worker], worker % self.shape.stages
        guests = self._guests[stage]
        takes_guests = guests and (self._left[worker] > 0 or (self._left[worker] == 0 and self._more[stage]))
        return guests if takes_guests and (not own or guests[0] < own[0]) else own

    def _take_guest(self, worker: int, item: int) -> None:
        self._doer[item] = worker
        self._left[worker] -= 1
        if self._left[worker] < 0:
            self._more[worker % self.shape.stages] -= 1

    def _advance(self) -> None:
        """Go to the next moment at which something ends or arrives, and take note of all that does."""
        until = self._events[0][0] + self._same
        while self._events and self._events[0][0] <= until:
            self._timestamp, kind, item = heappop(self._events)
            if kind == _DOWN:
                self._come(item)
            elif kind == _UP:
                self._queue(_BACK, item)
            else:
                self._finish(kind, item)

    def _finish(self, kind: int, item: int) -> None:
        worker, stage = self._doer[item], item % self.shape.stages
        self._is_free[worker] = True
        self._stirred.add(worker)
        if kind == _FORWARD and stage == self.shape.stages - 1:
            self._queue(_BACK, item)
        elif kind == _FORWARD:
            heappush(self._events, (self._timestamp + self.times.transfer, _DOWN, item + 1))
        elif kind == _BACK and stage:
            heappush(self._events, (self._timestamp + self.times.transfer, _UP, item - 1))
        if kind == _BACK and self.rules.is_decoupled:
            self._queue(_WEIGHT, item)
        elif kind != _FORWARD:
            self._room[worker] += 1

    def _come(self, item: int) -> None:
        """Have a micro-batch ready for its forward, at its worker or at all peers of a failed one."""
        if self._doer[item] >= 0:
            self._queue(_FORWARD, item)
        else:
            stage = item % self.shape.stages
            heappush(self._guests[stage], (self._priority[item], item))
            self._stirred.update(self._peers[stage])

    def _queue(self, kind: int, item: int) -> None:
        worker = self._doer[item]
        heappush(self._queues[kind][worker], (self._priority[item], item))
        self._stirred.add(worker)


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

    More micro-batches in flight hide more of the pipeline's depth and cost memory. So limits are tried from small to
    large, and the first schedule that reaches the lower bound is taken.

    >>> from lockstep.pipeline.schedule import unit_times
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
    orders = GUEST_ORDERS if failed else GUEST_ORDERS[:1]
    yield from (Rules(held, options.is_decoupled, order) for held, order in product(helds, orders))
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
