"""A schedule of one training step over a grid of pipelines and stages: who does which piece of work, and when.

Micro-batch m of pipeline d passes stages 0..P-1 forward and back. At home its stage s is worked on by worker (d, s);
where that worker has failed, one of its data-parallel peers (d', s) does it and hands it back to the home pipeline.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lockstep.errors import BadInput, NotPresent

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


Timestamps = NDArray[np.int64]

_NEAR = 1.25  # of the shortest: gaps of one piece of work; those of two pieces, or with a pause, are longer
_SHORT = 5  # percentile that stands for the shortest; single rows may be wrong
_FEWEST = 3  # gaps; from fewer nothing is said


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What is stated because it cannot be seen."""

    weight_share: float = 0.5  # of a backward: both halves are one matrix product each
    forward_share: float = 1 / 3  # of forward and backward, where no stage shows them apart


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one rank of a pipeline shows, in nanoseconds; None where it shows nothing."""

    stage: int
    forward: float | None
    backward: float | None
    both: float | None  # in one stretch
    transfer: float | None  # to the slower of its neighbours


def profile_stages(collectives: pa.Table, pipelines: Sequence[int], options: ProfileOptions | None = None) -> Times:
    """Return the times of each stage in seconds, the median over pipelines.

    A stage that has received from the stage before does one forward, and one that has received from the stage after
    does one backward; then it communicates again. So the time from the end of a receive to the rank's next
    operation is the compute in between. Three things cannot be seen, and are stated instead:

    - the first stage receives no activations: its forward is the time between two sends without a receive in between;
    - the last stage does forward and backward in one stretch: it is parted as in the other stages;
    - the two halves of a backward are never apart in a job that does not part them: `weight_share` says how much of
      it is for the weights.

    Other collectives inside a stage (tensor parallel) count as work of the stage: re-routing does not remove them.

    `collectives` are rows of that table, and `pipelines` the communicators whose ranks are the stages in order.
    """
    options = options or ProfileOptions()
    seen = [one for comm in pipelines for one in _profile_ranks(collectives, comm)]
    stages = 1 + max((one.stage for one in seen), default=-1)
    if stages < 2:
        raise NotPresent(f"no sends and receives between stages are recorded for {len(pipelines)} pipelines")
    by_stage = [[one for one in seen if one.stage == stage] for stage in range(stages)]
    forward, backward = _part(by_stage, options)
    # Between hosts it takes longer than inside one, and a peer that stands in may be on another.
    slowest = max(_middle([one.transfer for one in some]) or 0.0 for some in by_stage)
    return Times(
        forward=forward,
        input=tuple(one * (1 - options.weight_share) for one in backward),
        weight=tuple(one * options.weight_share for one in backward),
        transfer=slowest / 1e9,
    )


def _part(stages: Sequence[Sequence[_Seen]], options: ProfileOptions) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return forward and backward seconds of each stage; the last shows them in one stretch and is parted."""
    forwards = [_middle([one.forward for one in some]) for some in stages]
    backwards = [_middle([one.backward for one in some]) for some in stages]
    pairs = [(ahead, back) for ahead, back in zip(forwards, backwards, strict=True) if ahead and back]
    share = float(np.median([ahead / (ahead + back) for ahead, back in pairs])) if pairs else options.forward_share
    both = _middle([one.both for one in stages[-1]])
    if both:
        forwards[-1], backwards[-1] = share * both, (1 - share) * both
    missing = [stage for stage, pair in enumerate(zip(forwards, backwards, strict=True)) if None in pair]
    if missing:
        raise NotPresent(f"stage {missing[0]} has too few sends and receives on record to tell its times")
    return tuple(one / 1e9 for one in forwards if one), tuple(one / 1e9 for one in backwards if one)


def _profile_ranks(collectives: pa.Table, comm: int) -> Iterator[_Seen]:
    is_mine = pc.equal(collectives["comm"], pa.scalar(comm, pa.uint64()))
    is_pair = pc.is_in(collectives["func"], pa.array(["Send", "Recv"]))
    is_timed = pc.and_(pc.is_valid(collectives["start_ns"]), pc.is_valid(collectives["end_ns"]))
    mine = collectives.filter(pc.and_(pc.and_(is_pair, is_timed), is_mine))
    columns = {name: mine[name].to_numpy() for name in ("rank", "peer", "func")}
    columns |= {name: pc.cast(mine[name], pa.int64()).to_numpy() for name in ("start_ns", "end_ns")}
    ranks = np.unique(columns["rank"])
    for rank in ranks.tolist():
        order = np.flatnonzero(columns["rank"] == rank)
        order = order[np.argsort(columns["start_ns"][order], kind="stable")]
        yield _profile_rank(rank, rank == ranks[-1], {name: column[order] for name, column in columns.items()})


def _profile_rank(stage: int, is_last: bool, rows: Mapping[str, NDArray[np.generic]]) -> _Seen:
    starts, ends, peers = (rows[name].astype(np.int64) for name in ("start_ns", "end_ns", "peer"))
    is_receive = rows["func"] == "Recv"
    after_down = _gaps(starts, ends[is_receive & (peers < stage)])
    after_up = _gaps(starts, ends[is_receive & (peers > stage)])
    sends = starts[~is_receive]
    alone = np.searchsorted(starts[is_receive], sends[1:]) == np.searchsorted(starts[is_receive], sends[:-1])
    forward = _shortest(np.diff(sends)[alone] if stage == 0 else after_down)
    shortest = [_shortest((ends - starts)[~is_receive & side]) for side in (peers < stage, peers > stage)]
    return _Seen(
        stage=stage,
        forward=None if is_last else forward,
        backward=None if is_last else _shortest(after_up),
        both=_shortest(after_down) if is_last else None,
        transfer=max(time for time in shortest if time is not None) if any(shortest) else None,
    )


def _gaps(starts: Timestamps, ends: Timestamps) -> Timestamps:
    """Return the time from each end to the next start of anything."""
    index = np.searchsorted(starts, ends)
    is_known = index < len(starts)
    return starts[index[is_known]] - ends[is_known]


def _shortest(spans: Timestamps) -> float | None:
    """Return the usual length of the short ones; the long ones hold more than one piece of work, or a pause."""
    if len(spans) < _FEWEST:
        return None
    short = spans[spans <= _NEAR * np.percentile(spans, _SHORT)]
    return float(np.median(short)) if len(short) else None


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
