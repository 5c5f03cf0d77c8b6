"""Plans as JSON, to be written ahead of a fault and read when it comes; what is read is checked like any input."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from lockstep.errors import BadInput
from lockstep.verdict import Frozen
from planner.recovery.recycle.checking import find_faults
from planner.recovery.recycle.plans import PlanBook
from planner.recovery.recycle.schedule import Kind, Op, Schedule, Shape, Times, Worker

_VERSION = 1

Place = tuple[int, int]  # pipeline, stage


class _Work(Frozen):
    """What one worker does, in its order; the lengths of the pieces follow from the times."""

    worker: Place
    kinds: tuple[Kind, ...]
    pipelines: tuple[int, ...]
    micro_batches: tuple[int, ...]
    starts: tuple[float, ...]


class _Plan(Frozen):
    failed: tuple[Place, ...]
    work: tuple[_Work, ...]


class _Times(Frozen):
    forward: tuple[float, ...]
    input: tuple[float, ...]
    weight: tuple[float, ...]
    transfer: float


class _Book(Frozen):
    version: Annotated[int, Field(ge=_VERSION, le=_VERSION)]
    stages: int
    pipelines: int
    micro_batches: int
    times: _Times
    plans: tuple[_Plan, ...]


def to_json(book: PlanBook) -> dict[str, object]:
    """Return the plans as plain values."""
    times = _Times(
        forward=tuple(book.times.forward),
        input=tuple(book.times.input),
        weight=tuple(book.times.weight),
        transfer=book.times.transfer,
    )
    written = _Book(
        version=_VERSION,
        stages=book.shape.stages,
        pipelines=book.shape.pipelines,
        micro_batches=book.shape.micro_batches,
        times=times,
        plans=tuple(map(_write, book.schedules)),
    )
    return written.model_dump(mode="json")


def from_json(values: object) -> PlanBook:
    """Return the plans that were written; refuse what cannot be run as it stands."""
    try:
        read = _Book.model_validate(values)
    except ValidationError as error:
        raise BadInput(
            f"these are no stored plans: {error.errors()[0]['msg']} at {error.errors()[0]['loc']}"
        ) from error
    shape = Shape(read.stages, read.pipelines, read.micro_batches)
    times = Times(read.times.forward, read.times.input, read.times.weight, read.times.transfer)
    schedules = [_read(shape, times, plan) for plan in read.plans]
    for failures, schedule in enumerate(schedules):
        faults = find_faults(schedule)
        if len(schedule.failed) != failures:
            faults = [f"it has {len(schedule.failed)} failed workers"]
        if faults:
            raise BadInput(f"the stored plan for {failures} failures cannot be run: {faults[0]}")
    return PlanBook(shape, times, schedules)


def _write(schedule: Schedule) -> _Plan:
    work = tuple(_write_work(worker, ops) for worker, ops in schedule.ops.items())
    return _Plan(failed=tuple(sorted(schedule.failed)), work=work)


def _write_work(worker: Worker, ops: Sequence[Op]) -> _Work:
    return _Work(
        worker=worker,
        kinds=tuple(op.kind for op in ops),
        pipelines=tuple(op.pipeline for op in ops),
        micro_batches=tuple(op.micro_batch for op in ops),
        starts=tuple(op.start for op in ops),
    )


def _read(shape: Shape, times: Times, plan: _Plan) -> Schedule:
    ops = {Worker(*work.worker): _read_work(times, work) for work in plan.work}
    if not any(ops.values()):
        raise BadInput("a stored plan has no work")
    return Schedule(shape, times, frozenset(Worker(*place) for place in plan.failed), ops)


def _read_work(times: Times, work: _Work) -> tuple[Op, ...]:
    worker = Worker(*work.worker)
    columns = (work.kinds, work.pipelines, work.micro_batches, work.starts)
    if len({len(column) for column in columns}) != 1 or not 0 <= worker.stage < len(times.forward):
        raise BadInput(
            f"the work of worker {work.worker} in a stored plan has columns of unequal length, or no stage"
        )
    return tuple(
        Op(kind, pipeline, micro_batch, worker.stage, worker, start, start + times.lasts(kind, worker.stage))
        for kind, pipeline, micro_batch, start in zip(*columns, strict=True)
    )
