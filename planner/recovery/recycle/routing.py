"""Who stands in for a failed worker: its data-parallel peers, each with an even share of its micro-batches.

A peer holds the same stage, so it can do the work of any other pipeline at that stage. Shares are fixed before the
step; which micro-batch goes to which peer is settled by who is free when it comes (dispatching.py), because a peer
whose own micro-batches were re-routed further up has nothing to do at first.
"""

from collections.abc import Collection
from dataclasses import dataclass

from lockstep.errors import BadInput
from planner.recovery.recycle.schedule import Shape, Times, Worker


@dataclass(frozen=True, slots=True)
class Share:
    """How the micro-batches of a stage's failed workers are spread over the live ones."""

    live: tuple[int, ...]  # pipelines whose worker of this stage is live
    each: int  # guests that every live worker takes
    more: int  # so many of the live workers take one guest more, whoever is free first


def share_guests(shape: Shape, failed: Collection[Worker], stage: int) -> Share:
    """Return the even spread of the micro-batches of a stage's failed workers.

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
