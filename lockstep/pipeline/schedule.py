"""A schedule of one training step over a grid of pipelines and stages: who does which piece of work, and when.

Micro-batch m of pipeline d passes stages 0..P-1 forward and back. At home its stage s is worked on by worker (d, s);
where that worker has failed, one of its data-parallel peers (d', s) does it and hands it back to the home pipeline.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lockstep.errors import BadInput
from lockstep.verdict import Frozen

# forward, backward for the input (the stage before waits for it), backward for the weights (nobody waits for it),
# and both backwards in one piece
Kind = Literal["forward", "input", "weight", "both"]
RELEASING: tuple[Kind, ...] = ("weight", "both")  # after these the activations of a micro-batch are let go


class Worker(NamedTuple):
    """One worker of the grid; may span several GPUs of a tensor-parallel group."""

    pipeline: int
    stage: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The grid and its batch."""

    stages: int
    pipelines: int
    micro_batches: int  # per pipeline and step


@dataclass(frozen=True, slots=True)
class Times:
    """How long one piece of work takes at each stage, in any one unit."""

    forward: Sequence[float]
    input: Sequence[float]
    weight: Sequence[float]
    transfer: float = 0.0  # from a worker to the next stage's, and the same to a peer on the way

    def lasts(self, kind: Kind, stage: int) -> float:
        """Return how long one piece of work of a kind takes at a stage.

        >>> unit_times(4).lasts("both", 0)
        2.0
        """
        match kind:
            case "forward":
                return self.forward[stage]
            case "input":
                return self.input[stage]
            case "weight":
                return self.weight[stage]
            case "both":
                return self.input[stage] + self.weight[stage]

    def work(self, stage: int) -> float:
        """Return how long a stage works on one micro-batch in all."""
        return self.forward[stage] + self.input[stage] + self.weight[stage]


def unit_times(stages: int, transfer: float = 0.0) -> Times:
    """Return times of one slot for each piece of work, as in the worked examples."""
    slots = (1.0,) * stages
    return Times(slots, slots, slots, transfer)


@dataclass(frozen=True, slots=True)
class Op:
    """One piece of work; `pipeline` is the home of the micro-batch, `worker` is who does it."""

    kind: Kind
    pipeline: int
    micro_batch: int
    stage: int
    worker: Worker
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every piece of work of one step."""

    shape: Shape
    times: Times
    failed: frozenset[Worker]
    ops: Mapping[Worker, Sequence[Op]]  # of each live worker, in the order in which it does them

    @property
    def makespan(self) -> float:
        """From the first piece of work to the end of the last: the step with one optimizer for all."""
        return max(op.end for ops in self.ops.values() for op in ops)

    @property
    def period(self) -> float:
        """The step in the steady state with a staggered optimizer: the longest that any stage is at work.

        All peers of a stage meet in its gradient all-reduce, so a stage counts as one.
        """
        by_stage: dict[int, list[Op]] = {}
        for worker, ops in self.ops.items():
            by_stage.setdefault(worker.stage, []).extend(ops)
        return max(max(op.end for op in ops) - min(op.start for op in ops) for ops in by_stage.values())

    def most_held(self, worker: Worker) -> int:
        """Return the most micro-batches whose activations a worker holds at a time, from forward to weights."""
        held = most = 0
        for op in self.ops[worker]:
            held += op.kind == "forward"
            most = max(most, held)
            held -= op.kind in RELEASING
        return most


@dataclass(frozen=True, slots=True)
class Share:
    """How the micro-batches of a stage's failed workers are spread over the live ones."""

    live: tuple[int, ...]  # pipelines whose worker of this stage is live
    each: int  # guests that every live worker takes
    more: int  # so many of the live workers take one guest more, whoever is free first


def share_guests(shape: Shape, failed: Collection[Worker], stage: int) -> Share:
    """Return the even spread of the micro-batches of a stage's failed workers.

    A peer holds the same stage, so it can do the work of any other pipeline at that stage. Shares are fixed before
    the step; which micro-batch goes to which peer is settled by who is free when it comes, because a peer whose own
    micro-batches were re-routed further up has nothing to do at first.

    >>> share_guests(Shape(stages=4, pipelines=3, micro_batches=5), {Worker(1, 2)}, 2)
    Share(live=(0, 2), each=2, more=1)
    """
    live = tuple(pipeline for pipeline in range(shape.pipelines) if Worker(pipeline, stage) not in failed)
    if not live:
        raise BadInput(f"stage {stage} has lost all {shape.pipelines} copies: no peer can stand in, only a restart")
    each, more = divmod(shape.micro_batches * (shape.pipelines - len(live)), len(live))
    return Share(live, each, more)


def find_load(shape: Shape, failed: Collection[Worker], stage: int) -> int:
    """Return how many micro-batches the busiest worker of a stage has, its own and its guests.

    >>> find_load(Shape(stages=4, pipelines=3, micro_batches=6), {Worker(1, 2)}, 2)
    9
    """
    share = share_guests(shape, failed, stage)
    return shape.micro_batches + share.each + (share.more > 0)


def check_grid(shape: Shape, times: Times, failed: Collection[Worker]) -> None:
    """Refuse a grid without work, times that do not fit it, and failed workers that are not on it."""
    if min(shape.stages, shape.pipelines, shape.micro_batches) < 1:
        raise BadInput(f"a grid needs at least one stage, pipeline and micro-batch, not {shape}")
    for name, spent in (("forward", times.forward), ("input", times.input), ("weight", times.weight)):
        if len(spent) != shape.stages:
            raise BadInput(f"{name} times are given for {len(spent)} stages, the grid has {shape.stages}")
        if not all(0 < one < float("inf") for one in spent):
            raise BadInput(f"{name} times must be above zero and finite: {list(spent)}")
    if not 0 <= times.transfer < float("inf"):
        raise BadInput(f"a transfer cannot take {times.transfer}")
    for worker in sorted(failed):
        if not (0 <= worker.pipeline < shape.pipelines and 0 <= worker.stage < shape.stages):
            raise BadInput(f"worker {tuple(worker)} is not on a grid of {shape.pipelines} x {shape.stages}")


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
