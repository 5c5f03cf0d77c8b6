"""A schedule of one training step over a grid of pipelines and stages: who does which piece of work, and when.

Micro-batch m of pipeline d passes stages 0..P-1 forward and back. At home its stage s is worked on by worker (d, s);
where that worker has failed, one of its data-parallel peers (d', s) does it and hands it back to the home pipeline.
Who hands what to whom follows from it, and how far a worker may run into a step before the last one is validated.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lockstep.errors import BadInput
from lockstep.verdict import Frozen

# forward, backward for the input (the stage before waits for it), backward for the weights (nobody waits for it),
# and both backwards in one piece
Kind = Literal["forward", "input", "weight", "both"]
RELEASING: tuple[Kind, ...] = ("weight", "both")  # after these the activations of a micro-batch are let go

What = Literal["activation", "gradient"]
_WHATS: tuple[What, ...] = ("activation", "gradient")
_UNDER_WAY = 2  # a step begins when all messages of the step before the last have come
_BACKWARDS = (Counter(["both"]), Counter(["input", "weight"]))


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


class Piece(NamedTuple):
    """A micro-batch at a stage."""

    pipeline: int
    micro_batch: int
    stage: int

    def at(self, stage: int) -> "Piece":
        """The same micro-batch at another stage."""
        return Piece(self.pipeline, self.micro_batch, stage)


def piece_of(op: Op) -> Piece:
    """Return what the operation works on."""
    return Piece(op.pipeline, op.micro_batch, op.stage)


def tag_of(what: What, step: int, piece: Piece, shape: Shape) -> int:
    """Return the number that names a message; different for all that can be under way at a time.

    >>> tag_of("gradient", 0, Piece(0, 1, 1), Shape(stages=2, pipelines=3, micro_batches=4))
    27
    """
    tag = step % _UNDER_WAY * len(_WHATS) + _WHATS.index(what)
    for digit, base in zip(piece, (shape.pipelines, shape.micro_batches, shape.stages), strict=True):
        tag = tag * base + digit
    return tag


def find_executors(schedule: Schedule) -> dict[Piece, Worker]:
    """Return who works on each piece; BadInput where a piece is missing, done twice, or torn apart."""
    kinds: dict[Piece, list[str]] = {piece: [] for piece in _pieces(schedule)}
    executors: dict[Piece, Worker] = {}
    for op in (op for ops in schedule.ops.values() for op in ops):
        piece = piece_of(op)
        if piece not in kinds:
            raise BadInput(f"{piece} is not in the grid of {schedule.shape}")
        kinds[piece].append(op.kind)
        if executors.setdefault(piece, op.worker) != op.worker:
            raise BadInput(
                f"{piece} is worked on by {executors[piece]} and by {op.worker}: activations cannot follow"
            )
        if op.worker.stage != op.stage or op.worker in schedule.failed:
            raise BadInput(f"{op.worker} cannot work on {piece}: it has failed or holds another stage")
    for piece, done in kinds.items():
        if Counter(done) - Counter(["forward"]) not in _BACKWARDS or done[0] != "forward":
            raise BadInput(f"{piece} needs one forward and one whole backward, and has {done}")
    return executors


def find_heads(schedule: Schedule) -> dict[Worker, int]:
    """Return how many operations each worker can do ahead: forwards, of which everybody knows that they come.

    If the step before is amended, all of them are done again. So both sides of every message must know, without
    asking, whether it was sent: a head is a prefix of forwards whose inputs come from other heads.
    """
    heads = {worker: _count_forwards(ops) for worker, ops in schedule.ops.items()}
    while True:
        ahead = _ahead(schedule, heads)
        shorter = {worker: _count_fed(schedule.ops[worker][:count], ahead) for worker, count in heads.items()}
        if shorter == heads:
            return heads
        heads = shorter


def find_unread(schedule: Schedule, heads: Mapping[Worker, int]) -> set[Piece]:
    """Return the pieces in the heads whose outputs nobody has read in a head of their own."""
    ahead = _ahead(schedule, heads)
    last = schedule.shape.stages - 1
    return {piece for piece in ahead if piece.stage < last and piece.at(piece.stage + 1) not in ahead}


def _pieces(schedule: Schedule) -> list[Piece]:
    shape = schedule.shape
    return [
        Piece(pipeline, micro_batch, stage)
        for pipeline in range(shape.pipelines)
        for micro_batch in range(shape.micro_batches)
        for stage in range(shape.stages)
    ]


def _count_forwards(ops: Sequence[Op]) -> int:
    return next((number for number, op in enumerate(ops) if op.kind != "forward"), len(ops))


def _ahead(schedule: Schedule, heads: Mapping[Worker, int]) -> set[Piece]:
    return {piece_of(op) for worker, count in heads.items() for op in schedule.ops[worker][:count]}


def _count_fed(ops: Sequence[Op], ahead: set[Piece]) -> int:
    hungry = (n for n, op in enumerate(ops) if op.stage and piece_of(op).at(op.stage - 1) not in ahead)
    return next(hungry, len(ops))
