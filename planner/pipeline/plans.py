"""Plans written ahead for 0..N failures: on a fault the schedule is looked up, and on a return the one before it.

Peers of a stage are alike, so what matters is how many each stage has lost. A live worker of a stage with slack can
copy the parameters of a harder hit one from a peer there and take the failed worker's place; its own place is then
the failed one. That costs a copy, so it is done only if it pays before the failed workers are expected back.

Workers of a stage are alike, and failures can be moved between stages, so one plan per number of failures is enough.
A plan is in roles: which worker plays which role is settled when it is looked up.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lockstep.errors import BadInput, NotPresent
from planner.pipeline.checking import find_bound
from planner.pipeline.dispatch import ScheduleOptions, plan_schedule
from planner.pipeline.schedule import Schedule, Shape, Times, Worker, check_grid

Split = tuple[int, ...]  # failed workers of each stage


@dataclass(frozen=True, slots=True)
class Migration:
    """A live worker that leaves its place and takes over another stage's."""

    leaves: Worker
    takes: Worker  # a failed worker's place; a peer of that stage hands over its parameters
    bytes: int | None = None  # parameters and optimizer state to copy, where known


@dataclass(frozen=True, slots=True)
class Normalised:
    """Where the failures are now, and why there."""

    failed: frozenset[Worker]
    migrations: tuple[Migration, ...]
    period_before: float  # the least possible, in the unit of the times
    period: float
    reason: str


@dataclass(frozen=True, slots=True)
class LostStage:
    """Some stage has no copy left: nobody has its parameters, and the answer is a restart."""

    stage: int
    reason: str


@dataclass(frozen=True, slots=True)
class NormaliseOptions:
    """What a copy costs and how long it has to pay."""

    copy_time: float = 0.0  # of one migration, in the unit of the times; they are counted one after the other
    steps: float = float("inf")  # until the failed workers are expected back
    stage_bytes: Sequence[int] | None = None  # parameters and optimizer state of each stage


def normalise(
    shape: Shape, times: Times, failed: Collection[Worker], options: NormaliseOptions | None = None
) -> Normalised | LostStage:
    """Return where the failures should be and who moves for it; the lost stage where one has no copy left."""
    options = options or NormaliseOptions()
    check_grid(shape, times, failed)
    split = split_failures(shape, failed)
    if (lost := find_lost_stage(shape, failed)) is not None:
        return lost
    before = period_of(shape, times, split)
    found = min(_list_splits(shape, times, split), key=lambda to: _cost(shape, times, split, to, options))
    moves = move_failures(shape, failed, found, options.stage_bytes)
    now = period_of(shape, times, found)
    return Normalised(_apply(failed, moves), moves, before, now, _reason(before, now, len(moves), options))


def find_lost_stage(shape: Shape, failed: Collection[Worker]) -> LostStage | None:
    """Return the first stage without a live worker, if there is one."""
    for stage, lost in enumerate(split_failures(shape, failed)):
        if lost >= shape.pipelines:
            return LostStage(
                stage, f"stage {stage} has lost all {shape.pipelines} copies; only a restart brings it back"
            )
    return None


def split_failures(shape: Shape, failed: Collection[Worker]) -> Split:
    """Return how many workers each stage has lost."""
    lost = Counter(worker.stage for worker in failed)
    return tuple(lost[stage] for stage in range(shape.stages))


def spread_failures(shape: Shape, times: Times, failures: int) -> Split | None:
    """Return the split of so many failures with the least period; None where no stage could keep a copy.

    One more failure only adds to one stage, so that plans for n and n - 1 failures differ in one place.
    """
    split = (0,) * shape.stages
    for _ in range(failures):
        more = [_add(split, stage) for stage in range(shape.stages) if split[stage] < shape.pipelines - 1]
        if not more:
            return None
        split = min(more, key=lambda one: (_busiest(shape, times, one), period_of(shape, times, one)))
    return split


def place_failures(split: Split) -> frozenset[Worker]:
    """Return failed workers in places that stand for all with this split: in turn over the pipelines."""
    return frozenset(Worker(number, stage) for stage, lost in enumerate(split) for number in range(lost))


def period_of(shape: Shape, times: Times, split: Split) -> float:
    """Return the least period that a split of failures allows."""
    return find_bound(shape, times, place_failures(split), is_decoupled=True).period


def move_failures(
    shape: Shape, failed: Collection[Worker], to: Split, stage_bytes: Sequence[int] | None = None
) -> tuple[Migration, ...]:
    """Return who takes whose place so that each stage has lost as many as in a split of the same number."""
    now = set(failed)
    moves: list[Migration] = []
    while (split := split_failures(shape, now)) != to:
        over = next(stage for stage in range(shape.stages) if split[stage] > to[stage])
        under = next(stage for stage in range(shape.stages) if split[stage] < to[stage])
        takes = min(worker for worker in now if worker.stage == over)
        leaves = _choose_leaver(shape, now, takes, under)
        moves.append(Migration(leaves, takes, stage_bytes[over] if stage_bytes else None))
        now = now - {takes} | {leaves}
    return tuple(moves)


def _choose_leaver(shape: Shape, failed: Collection[Worker], takes: Worker, stage: int) -> Worker:
    """Prefer pipelines that have lost a worker already: whole ones stay whole."""
    hit = {worker.pipeline for worker in failed}
    live = [Worker(pipeline, stage) for pipeline in range(shape.pipelines) if Worker(pipeline, stage) not in failed]
    return min(live, key=lambda worker: (worker.pipeline != takes.pipeline, worker.pipeline not in hit, worker))


def _apply(failed: Collection[Worker], moves: Sequence[Migration]) -> frozenset[Worker]:
    now = set(failed)
    for move in moves:
        now = now - {move.takes} | {move.leaves}
    return frozenset(now)


def _list_splits(shape: Shape, times: Times, split: Split) -> Iterator[Split]:
    """Yield the split as it is, then after each move from the busiest stage to where it hurts least."""
    yield split
    for _ in range(sum(split)):
        lost = [stage for stage in range(shape.stages) if split[stage]]
        over = max(lost, key=lambda stage: _load(shape, times, stage, split[stage]))
        less = _add(split, over, -1)
        room = [stage for stage in range(shape.stages) if less[stage] < shape.pipelines - 1]
        under = min(room, key=lambda stage: _load(shape, times, stage, less[stage] + 1))
        if under == over:
            return
        split = _add(less, under)
        yield split


def _cost(shape: Shape, times: Times, split: Split, to: Split, options: NormaliseOptions) -> tuple[float, int]:
    """Return what going on with a split costs: copies, then steps; with no end in snapshot only the steps count."""
    moves = sum(max(0, was - will) for was, will in zip(split, to, strict=True))
    period = period_of(shape, times, to)
    return (period if options.steps == float("inf") else options.steps * period + moves * options.copy_time), moves


def _busiest(shape: Shape, times: Times, split: Split) -> float:
    return max(_load(shape, times, stage, lost) for stage, lost in enumerate(split) if lost)


def _load(shape: Shape, times: Times, stage: int, lost: int) -> float:
    return -(-shape.micro_batches * shape.pipelines // (shape.pipelines - lost)) * times.work(stage)


def _add(split: Split, stage: int, number: int = 1) -> Split:
    return (*split[:stage], split[stage] + number, *split[stage + 1 :])


def _reason(before: float, now: float, moves: int, options: NormaliseOptions) -> str:
    if not moves:
        return f"no move pays: the least period is {before:g}, and a copy takes {options.copy_time:g}"
    message = "1 move shortens" if moves == 1 else f"{moves} moves shorten"
    return f"{message} the least period from {before:g} to {now:g}"


@dataclass(frozen=True, slots=True)
class PlanBook:
    """The stored schedules of one job by number of failures; each has one empty place more than the one before."""

    shape: Shape
    times: Times
    schedules: Sequence[Schedule]  # of 0, 1, 2 … failures

    def split(self, failures: int) -> Split:
        return split_failures(self.shape, self.schedules[failures].failed)


@dataclass(frozen=True, slots=True)
class Change:
    """What to do to go over to a stored plan."""

    schedule: Schedule
    roles: Mapping[Worker, Worker]  # role in the schedule -> the live worker that plays it
    migrations: tuple[Migration, ...]  # copies to be made first
    reason: str


def make_plans(shape: Shape, times: Times, most: int, options: ScheduleOptions | None = None) -> PlanBook:
    """Return plans for 0 to `most` failures, fewer where a stage would have no copy left."""
    schedules = []
    for failures in range(most + 1):
        split = spread_failures(shape, times, failures)
        if split is None:
            break
        schedules.append(plan_schedule(shape, times, place_failures(split), options))
    return PlanBook(shape, times, schedules)


def find_plan(
    book: PlanBook, failed: Collection[Worker], stage_bytes: Sequence[int] | None = None
) -> Change | LostStage:
    """Return how to go on with some workers gone; the lost stage where no peer can stand in."""
    if (lost := find_lost_stage(book.shape, failed)) is not None:
        return lost
    if len(failed) >= len(book.schedules):
        most = len(book.schedules) - 1
        raise NotPresent(f"there are plans for up to {most} failures, and {len(failed)} workers have failed")
    migrations = move_failures(book.shape, failed, book.split(len(failed)), stage_bytes)
    schedule = book.schedules[len(failed)]
    message = f"plan for {len(failed)} failures with {len(migrations)} copies: a step takes {schedule.period:g}"
    return Change(schedule, _cast(book.shape, schedule, failed, migrations), migrations, message)


def take_back(
    book: PlanBook, failed: Collection[Worker], back: Worker, stage_bytes: Sequence[int] | None = None
) -> Change | LostStage:
    """Return the plan with one failure less when a worker rejoins; it copies the stage it takes over from a peer.

    `failed` are the places that are empty while it is away, after all migrations, so its own old place may be taken.
    """
    if not failed:
        raise BadInput(f"worker {tuple(back)} cannot come back: no place is empty")
    split, target = split_failures(book.shape, failed), book.split(len(failed) - 1)
    short = [stage for stage in range(book.shape.stages) if split[stage] > target[stage]]
    indices = sorted(worker for worker in failed if worker.stage in short)
    index = back if back in indices else indices[0]
    change = find_plan(book, set(failed) - {index}, stage_bytes)
    if isinstance(change, LostStage):
        return change
    copy = Migration(back, index, stage_bytes[index.stage] if stage_bytes else None)
    message = f"worker {tuple(back)} comes back as {tuple(index)}: a step takes {change.schedule.period:g}"
    return Change(change.schedule, change.roles, (copy, *change.migrations), message)


def _cast(
    shape: Shape, schedule: Schedule, failed: Collection[Worker], migrations: Sequence[Migration]
) -> dict[Worker, Worker]:
    """Return who plays each role, each worker its own where it can; a worker that moved has its new place's name."""
    empty = set(failed)
    for move in migrations:
        empty = empty - {move.takes} | {move.leaves}
    cast: dict[Worker, Worker] = {}
    for stage in range(shape.stages):
        roles = {Worker(pipeline, stage) for pipeline in range(shape.pipelines)} - schedule.failed
        live = {Worker(pipeline, stage) for pipeline in range(shape.pipelines)} - empty
        cast |= {worker: worker for worker in roles & live}
        cast |= dict(zip(sorted(roles - live), sorted(live - roles), strict=True))
    return cast
