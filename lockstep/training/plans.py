"""By which schedule a generation works: one for each split of losses over the stages, whoever it was that was lost.

Failures are normalised as in ReCycle: peers of a stage hold the same state, so it does not matter which of them is
lost, and the live ones take the roles of the live workers of a plan. Plans are files of the job's folder; one that
somebody else has put there, such as `schedule` of `lockstep plan schedule --json`, is taken if it can be run.
"""

from collections.abc import Collection
from dataclasses import dataclass
from warnings import warn

from lockstep.in_job import JobFolder
from lockstep.pipeline.checking import Split, find_bound, find_faults, place_failures
from lockstep.pipeline.dispatch import ScheduleOptions, plan_schedule, spread_limit
from lockstep.pipeline.schedule import (
    Schedule,
    Shape,
    StepSchedule,
    Times,
    Worker,
    find_load,
    pack_schedule,
    unpack_schedule,
)


def find_split(shape: Shape, live: Collection[Worker]) -> Split:
    """Return how many workers of each stage are lost.

    >>> find_split(Shape(stages=2, pipelines=2, micro_batches=4), [Worker(0, 0), Worker(0, 1), Worker(1, 1)])
    (1, 0)
    """
    return tuple(shape.pipelines - sum(worker.stage == stage for worker in live) for stage in range(shape.stages))


def plan_name(split: Split) -> str:
    """Return the file of the plan for so many losses at each stage."""
    return f"plans/{'-'.join(map(str, split))}.json"


@dataclass(frozen=True, slots=True)
class Grid:
    """What plans are made for."""

    shape: Shape
    times: Times
    memory: int | None = None  # micro-batches that a worker may hold at a time

    def forecast(self) -> float | None:
        """Return the share of its speed that the job keeps without one worker, of the stage where it costs most.

        The job works by staggered schedules when it is whole, too: few bubbles are left for the lost one's work.

        >>> Grid(Shape(stages=2, pipelines=4, micro_batches=8), Times((1, 1), (1, 1), (1, 1))).forecast() == 24 / 33
        True
        """
        if self.shape.pipelines < 2:
            return None
        whole, *lost = map(self._bound, [None, *range(self.shape.stages)])
        return whole / max(lost)

    def _bound(self, stage: int | None) -> float:
        failed = () if stage is None else (Worker(0, stage),)
        loads = [find_load(self.shape, failed, each) for each in range(self.shape.stages)]
        held = spread_limit(self.memory, loads)
        return find_bound(self.shape, self.times, failed, is_decoupled=True, memory=held).period


def find_plan(folder: JobFolder, grid: Grid, split: Split) -> StepSchedule:
    """Return the plan that lies in the folder, or a new one, which is kept there."""
    name = plan_name(split)
    found = folder.read(name, StepSchedule)
    if found is not None:
        complaints = _find_complaints(unpack_schedule(found), grid, split)
        if not complaints:
            return found
        warn(f"{name} cannot be run, and another plan is made: {complaints[0]}", stacklevel=2)
    options = ScheduleOptions(memory=grid.memory)
    made = pack_schedule(plan_schedule(grid.shape, grid.times, place_failures(split), options))
    folder.write(name, made)
    return made


def _find_complaints(schedule: Schedule, grid: Grid, split: Split) -> list[str]:
    if schedule.shape != grid.shape or find_split(grid.shape, _roles_of(schedule)) != split:
        return [f"it is for {schedule.shape} without {sorted(schedule.failed)}"]
    return find_faults(schedule, grid.memory)


def assign_roles(schedule: Schedule, live: Collection[Worker]) -> dict[Worker, Worker]:
    """Return who of the live workers plays which live worker of the schedule.

    >>> whole = plan_schedule(Shape(1, 3, 3), Times((1,), (1,), (1,)), {Worker(0, 0)})
    >>> assign_roles(whole, [Worker(0, 0), Worker(2, 0)])[Worker(1, 0)]
    Worker(pipeline=0, stage=0)
    """
    roles = sorted(_roles_of(schedule), key=lambda worker: (worker.stage, worker.pipeline))
    return dict(zip(roles, sorted(live, key=lambda worker: (worker.stage, worker.pipeline)), strict=True))


def _roles_of(schedule: Schedule) -> set[Worker]:
    shape = schedule.shape
    grid = {Worker(pipeline, stage) for pipeline in range(shape.pipelines) for stage in range(shape.stages)}
    return grid - schedule.failed
