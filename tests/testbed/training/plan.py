"""What a pipeline job is to do and what is done to it, as JSON; and the lines that it tells."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from lockstep.errors import BadInput
from lockstep.pipeline.schedule import Schedule, Shape, Worker
from lockstep.pipeline.schedule_file import StepSchedule, unpack_schedule
from lockstep.verdict import Frozen


class ModelOptions(Frozen):
    """A model small enough for a CPU; every stage holds the same blocks."""

    width: int = Field(12, ge=1)
    blocks: int = Field(2, ge=1, description="of each stage")
    samples: int = Field(3, ge=1, description="of a micro-batch")
    seed: int = 1


class TuningOptions(Frozen):
    """The optimizer, AdamW."""

    learning_rate: float = Field(0.01, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    largest_norm: float = Field(1.0, gt=0, description="gradients of all stages together are clipped to this norm")


class Kill(Frozen):
    """A worker that is killed: before a step, or in its middle after it has done some pieces of work."""

    worker: Worker
    step: int = Field(ge=0)
    after_ops: int | None = Field(None, ge=0, description="None: before the step")


class Rejoin(Frozen):
    """A killed worker that comes back before a step."""

    worker: Worker
    step: int = Field(ge=1)


class Poison(Frozen):
    """A worker whose gradient of a step is not a number, while those of all other stages are."""

    worker: Worker
    step: int = Field(ge=0)


class TrainingPlan(Frozen):
    """The whole job; there is a schedule for every set of failed workers that it will meet."""

    folder: Path = Field(description="where workers meet, and leave their state at the end")
    steps: int = Field(ge=1)
    schedules: tuple[StepSchedule, ...] = Field(min_length=1)
    model: ModelOptions = ModelOptions()
    tuning: TuningOptions = TuningOptions()
    kills: tuple[Kill, ...] = ()
    rejoins: tuple[Rejoin, ...] = ()
    poisons: tuple[Poison, ...] = ()
    timeout_s: float = Field(30.0, gt=0, description="for meeting, and for every message")

    @model_validator(mode="after")
    def _check(self) -> "TrainingPlan":
        failures = [frozenset(schedule.failed) for schedule in self.schedules]
        if frozenset() not in failures or len(set(failures)) < len(failures):
            raise ValueError("there must be one schedule without failures, and one for each set of failed workers")
        if any(schedule.shape != self.shape for schedule in self.schedules):
            raise ValueError("the schedules are for different grids")
        return self

    @property
    def shape(self) -> Shape:
        """The grid, the same in all schedules."""
        return self.schedules[0].shape


class StepLine(Frozen):
    """What a worker says when a step of its stage is settled: validated, or undone and done again."""

    worker: Worker
    step: int
    loss: float = Field(description="share of the step's loss that this worker computed")
    norm: float | None = Field(description="of the gradients of all stages; None: not a number")
    factor: float = Field(description="on the gradients of the step that counts; 0: skipped")
    redone: int = Field(description="pieces of the next step's work done ahead of the validation, and done again")


class LossLine(Frozen):
    """A worker that was killed, and how the job went on."""

    lost: Worker
    exit_code: int
    step: int = Field(description="the step with which the survivors go on")


class Command(Frozen):
    """What the coordinator asks of a worker: some steps by one schedule, or, without steps, to save and leave."""

    generation: int = Field(description="which meeting of the live workers this is")
    failed: tuple[Worker, ...] = ()
    joined: tuple[Worker, ...] = Field((), description="live, but without the state of their stage")
    first: int = 0
    end: int = 0
    stand_at: tuple[int, int] | None = Field(
        None, description="step and pieces of work after which to wait for death"
    )


class Reply(Frozen):
    """How a command went; `settled` steps are behind this worker for good."""

    state: Literal["done", "broken", "standing"]
    settled: int
    reason: str = ""


def find_schedule(plan: TrainingPlan, failed: frozenset[Worker]) -> Schedule:
    """Return the schedule for these failures, as ReCycle's executor looks up a plan; BadInput if there is none."""
    for packed in plan.schedules:
        if frozenset(packed.failed) == failed:
            return unpack_schedule(packed)
    raise BadInput(f"there is no schedule for the failed workers {sorted(failed)}")
