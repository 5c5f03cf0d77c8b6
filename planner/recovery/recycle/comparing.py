"""What failed workers cost under each way of going on: the figures that a person wants before choosing one."""

from collections.abc import Collection
from dataclasses import dataclass

from planner.recovery.recycle.bounds import Bound, closed_form, find_bound
from planner.recovery.recycle.planning import ScheduleOptions, plan_schedule
from planner.recovery.recycle.schedule import Schedule, Shape, Times, Worker


@dataclass(frozen=True, slots=True)
class Comparison:
    """Length of a step in the unit of the times, for each way of going on."""

    fault_free: float  # 1F1B with all workers
    coupled: Schedule  # re-routed into 1F1B: backwards first, and in one piece
    decoupled: Schedule  # with the weights put off
    staggered: Schedule  # and each stage with an optimizer step of its own
    dropped: float | None  # 1F1B on the pipelines that are whole, with the same global batch; None where none is
    bound: Bound  # of the last two
    promised: float  # the closed form


def compare(shape: Shape, times: Times, failed: Collection[Worker], memory: int | None = None) -> Comparison:
    """Return what a step takes without failures, and with them in each way; memory limits only what is re-routed."""
    plain = ScheduleOptions(is_decoupled=False, is_staggered=False, memory=memory, keeps_order=True)
    one_makespan = ScheduleOptions(is_staggered=False, memory=memory)
    return Comparison(
        fault_free=_one_pipeline(shape, times, shape.micro_batches),
        coupled=plan_schedule(shape, times, failed, plain),
        decoupled=plan_schedule(shape, times, failed, one_makespan),
        staggered=plan_schedule(shape, times, failed, ScheduleOptions(memory=memory)),
        dropped=_drop(shape, times, failed),
        bound=find_bound(shape, times, failed, is_decoupled=True),
        promised=closed_form(shape, times, failed),
    )


def _drop(shape: Shape, times: Times, failed: Collection[Worker]) -> float | None:
    whole = shape.pipelines - len({worker.pipeline for worker in failed})
    return _one_pipeline(shape, times, -(-shape.micro_batches * shape.pipelines // whole)) if whole else None


def _one_pipeline(shape: Shape, times: Times, micro_batches: int) -> float:
    """Return the makespan of plain 1F1B; all whole pipelines do the same."""
    options = ScheduleOptions(is_decoupled=False, is_staggered=False, keeps_order=True)
    return plan_schedule(Shape(shape.stages, 1, micro_batches), times, (), options).makespan
