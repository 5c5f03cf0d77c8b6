"""A schedule of one training step over a grid of pipelines and stages: who does which piece of work, and when.

Micro-batch m of pipeline d passes stages 0..P-1 forward and back. At home its stage s is worked on by worker (d, s);
where that worker has failed, one of its data-parallel peers (d', s) does it and hands it back to the home pipeline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
        return max(self._span(stage) for stage in range(self.shape.stages))

    def most_held(self, worker: Worker) -> int:
        """Return the most micro-batches whose activations a worker holds at a time, from forward to weights."""
        held = most = 0
        for op in self.ops[worker]:
            held += op.kind == "forward"
            most = max(most, held)
            held -= op.kind in RELEASING
        return most

    def _span(self, stage: int) -> float:
        ops = [op for worker, ops in self.ops.items() if worker.stage == stage for op in ops]
        return max(op.end for op in ops) - min(op.start for op in ops)
