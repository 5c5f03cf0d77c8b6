"""A schedule as it travels, as JSON: from `lockstep plan schedule --json` to whoever carries it out."""

from collections import defaultdict

from lockstep.pipeline.schedule import Op, Schedule, Shape, Times, Worker
from lockstep.verdict import Frozen


class StepSchedule(Frozen):
    """A schedule as it travels: its pieces of work in one list, those of a worker in their order."""

    shape: Shape
    times: Times
    failed: tuple[Worker, ...]
    ops: tuple[Op, ...]


def pack_schedule(schedule: Schedule) -> StepSchedule:
    """Return the schedule as it travels."""
    ops = tuple(op for worker in sorted(schedule.ops) for op in schedule.ops[worker])
    return StepSchedule(shape=schedule.shape, times=schedule.times, failed=tuple(sorted(schedule.failed)), ops=ops)


def unpack_schedule(packed: StepSchedule) -> Schedule:
    """Return the schedule that `pack_schedule` was given."""
    ops: dict[Worker, list[Op]] = defaultdict(list)
    for op in packed.ops:
        ops[op.worker].append(op)
    return Schedule(packed.shape, packed.times, frozenset(packed.failed), ops)
