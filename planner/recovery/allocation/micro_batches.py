"""Who computes what of a training step after replicas were lost in the middle of it, so that the sum stays the same.

Each replica adds up the gradients of its own micro-batches; then all replicas are summed, bucket by bucket. Before
the sum, what a lost replica had added up is gone, and all of its micro-batches are computed again by the others.
During the sum, buckets that are done hold the share of the lost one already and are kept; only the others are
completed (Unicron, arXiv 2401.00134, section on transitions). Every micro-batch counts exactly once in every bucket.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Literal

from lockstep.errors import BadInput

BucketState = Literal[
    "whole",  # each survivor still has the sum over its own micro-batches
    "reduced",  # the sum over all replicas is done, and a survivor has it
    "torn",  # interrupted in place: the survivors' own sums were written over
]


@dataclass(frozen=True)
class Takeover:
    """What survivors compute besides their own micro-batches, and for which buckets."""

    extra: Mapping[int, tuple[int, ...]]  # by replica: micro-batches that it takes over
    own: Mapping[int, tuple[int, ...]]  # by replica: micro-batches that it has or will have computed anyway
    kept: tuple[int, ...] = ()  # buckets that are summed already
    completed: tuple[int, ...] = ()  # buckets to which only `extra` is added
    repeated: tuple[int, ...] = ()  # buckets for which own micro-batches are computed again, too
    reason: str = field(default="", compare=False)

    def micro_batches_of(self, replica: int) -> tuple[int, ...]:
        """Return all that a replica answers for in this step."""
        return (*self.own.get(replica, ()), *self.extra.get(replica, ()))


def take_over(
    replicas: Mapping[int, Sequence[int]], lost: Sequence[int], buckets: Sequence[BucketState] = ("whole",)
) -> Takeover:
    """Return who takes over the micro-batches of lost replicas; BadInput where no replica is left.

    `replicas` are the micro-batches of each; `buckets` how far the sum over replicas was, all "whole" before it.

    >>> take_over({0: [0, 1], 1: [2, 3], 2: [4, 5]}, lost=[2]).extra
    {0: (4,), 1: (5,)}
    """
    own = _check(replicas, lost)
    gone = [micro_batch for replica in sorted(set(lost)) for micro_batch in replicas[replica]]
    open_buckets = tuple(at for at, state in enumerate(buckets) if state == "whole")
    torn = tuple(at for at, state in enumerate(buckets) if state == "torn")
    kept = tuple(at for at, state in enumerate(buckets) if state == "reduced")
    extra = _deal(own, gone) if open_buckets or torn else dict.fromkeys(own, ())
    return Takeover(extra, own, kept, open_buckets, torn, _say(gone, own, extra, len(kept), len(buckets), len(torn)))


def _check(replicas: Mapping[int, Sequence[int]], lost: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the micro-batches of the survivors."""
    unknown = sorted(set(lost) - set(replicas))
    if unknown:
        raise BadInput(f"replica {unknown[0]} is not one of {', '.join(map(str, sorted(replicas)))}")
    own = {replica: tuple(replicas[replica]) for replica in sorted(set(replicas) - set(lost))}
    if not own:
        raise BadInput(f"all {len(replicas)} replicas are lost, so that none is left to take over")
    dealt = [micro_batch for those in replicas.values() for micro_batch in those]
    if len(set(dealt)) < len(dealt):
        raise BadInput("a micro-batch belongs to two replicas, so that it would count twice")
    return own


def _deal(own: Mapping[int, tuple[int, ...]], gone: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return micro-batches dealt one by one to whoever has the fewest, so that the most is as low as it can be."""
    extra: dict[int, list[int]] = {replica: [] for replica in own}
    heap = [(len(those), replica) for replica, those in own.items()]
    heapify(heap)
    for micro_batch in gone:
        load, replica = heap[0]
        extra[replica].append(micro_batch)
        heapreplace(heap, (load + 1, replica))
    return {replica: tuple(those) for replica, those in extra.items()}


def _say(
    gone: Sequence[int],
    own: Mapping[int, tuple[int, ...]],
    extra: Mapping[int, tuple[int, ...]],
    kept: int,
    buckets: int,
    torn: int,
) -> str:
    if kept == buckets:
        return f"all {buckets} buckets were summed before the loss: nothing is computed again"
    most = max(len(own[replica]) + len(more) for replica, more in extra.items())
    before = max(len(those) for those in own.values())
    again = f", and {torn} torn buckets make the survivors compute their own again" if torn else ""
    return (
        f"{len(gone)} micro-batches go to {len(own)} replicas, the fullest has {most} instead of {before}; "
        f"{kept} of {buckets} buckets are kept{again}"
    )
