"""Plans written ahead for 0..N failures: on a fault the schedule is looked up, and on a return the one before it.

Workers of a stage are alike, and failures can be moved between stages, so one plan per number of failures is enough.
A plan is in roles: which worker plays which role is settled when it is looked up.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lockstep.errors import BadInput, NotPresent
from planner.recovery.recycle.normalising import (
    LostStage,
    Migration,
    Split,
    find_lost_stage,
    move_failures,
    place_failures,
    split_failures,
    spread_failures,
)
from planner.recovery.recycle.planning import ScheduleOptions, plan_schedule
from planner.recovery.recycle.schedule import Schedule, Shape, Times, Worker


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
    said = f"plan for {len(failed)} failures with {len(migrations)} copies: a step takes {schedule.period:g}"
    return Change(schedule, _cast(book.shape, schedule, failed, migrations), migrations, said)


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
    places = sorted(worker for worker in failed if worker.stage in short)
    place = back if back in places else places[0]
    change = find_plan(book, set(failed) - {place}, stage_bytes)
    if isinstance(change, LostStage):
        return change
    copy = Migration(back, place, stage_bytes[place.stage] if stage_bytes else None)
    said = f"worker {tuple(back)} comes back as {tuple(place)}: a step takes {change.schedule.period:g}"
    return Change(change.schedule, change.roles, (copy, *change.migrations), said)


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
