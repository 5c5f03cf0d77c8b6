"""Times of each stage from a job's own sends and receives: what a schedule needs to know, without a profiler.

A stage that has received from the stage before does one forward, and one that has received from the stage after does
one backward; then it communicates again. So the time from the end of a receive to the rank's next operation is the
compute in between. Three things cannot be seen, and are stated instead:

- the first stage receives no activations: its forward is the time between two sends without a receive in between;
- the last stage does forward and backward in one stretch: it is parted as in the other stages;
- the two halves of a backward are never apart in a job that does not part them: `weight_share` says how much of it
  is for the weights.

Other collectives inside a stage (tensor parallel) count as work of the stage: re-routing does not remove them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lockstep.errors import NotPresent
from planner.recovery.recycle.schedule import Times

Moments = NDArray[np.int64]

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

    `collectives` are rows of that table, and `pipelines` the communicators whose ranks are the stages in order.
    """
    options = options or ProfileOptions()
    seen = [one for comm in pipelines for one in _look(collectives, comm)]
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


def _look(collectives: pa.Table, comm: int) -> Iterator[_Seen]:
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
        yield _see(rank, rank == ranks[-1], {name: column[order] for name, column in columns.items()})


def _see(stage: int, is_last: bool, rows: Mapping[str, NDArray[np.generic]]) -> _Seen:
    starts, ends, peers = (rows[name].astype(np.int64) for name in ("start_ns", "end_ns", "peer"))
    is_receive = rows["func"] == "Recv"
    after_down = _gaps(starts, ends[is_receive & (peers < stage)])
    after_up = _gaps(starts, ends[is_receive & (peers > stage)])
    sends = starts[~is_receive]
    alone = np.searchsorted(starts[is_receive], sends[1:]) == np.searchsorted(starts[is_receive], sends[:-1])
    forward = _shortest(np.diff(sends)[alone] if stage == 0 else after_down)
    ways = [_shortest((ends - starts)[~is_receive & side]) for side in (peers < stage, peers > stage)]
    return _Seen(
        stage=stage,
        forward=None if is_last else forward,
        backward=None if is_last else _shortest(after_up),
        both=_shortest(after_down) if is_last else None,
        transfer=max(way for way in ways if way is not None) if any(ways) else None,
    )


def _gaps(starts: Moments, ends: Moments) -> Moments:
    """Return the time from each end to the next start of anything."""
    place = np.searchsorted(starts, ends)
    is_known = place < len(starts)
    return starts[place[is_known]] - ends[is_known]


def _shortest(spans: Moments) -> float | None:
    """Return the usual length of the short ones; the long ones hold more than one piece of work, or a pause."""
    if len(spans) < _FEWEST:
        return None
    short = spans[spans <= _NEAR * np.percentile(spans, _SHORT)]
    return float(np.median(short)) if len(short) else None


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
