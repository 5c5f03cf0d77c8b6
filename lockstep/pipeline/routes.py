"""Who hands what to whom in a schedule, and how far a worker may run into a step before the last one is validated."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from lockstep.errors import BadInput
from lockstep.pipeline.schedule import Op, Schedule, Shape, Worker

What = Literal["activation", "gradient"]
_WHATS: tuple[What, ...] = ("activation", "gradient")
_UNDER_WAY = 2  # a step begins when all messages of the step before the last have come
_BACKWARDS = (Counter(["both"]), Counter(["input", "weight"]))


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
