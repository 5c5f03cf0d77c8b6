"""What becomes of a step when one replica, or one worker of a pipeline, is gone: who does its work, and how fast.

Each replica adds up the gradients of its own micro-batches; then all replicas are summed, bucket by bucket. Before
the sum, what a lost replica had added up is gone, and all of its micro-batches are computed again by the others.
During the sum, buckets that are done hold the share of the lost one already and are kept; only the others are
completed (Unicron, arXiv 2401.00134, section on transitions). Every micro-batch counts exactly once in every bucket.

The micro-batches of the lost one are dealt to the others so that the fullest has as few as can be, and every one of
them counts exactly once (allocation/micro_batches.py).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Literal

from lockstep.errors import BadInput
from planner.context import Layout

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


_PER_STAGE = 4  # micro-batches a replica where nothing is known: Megatron's advice is at least four times the stages


@dataclass(frozen=True, slots=True)
class Share:
    """How the others share the work of the lost one."""

    each: int  # micro-batches of a replica before
    most: int  # of the fullest replica afterwards
    reason: str


def share_micro_batches(layout: Layout) -> Share:
    """Return who does the micro-batches of one of the replicas, of which there are two or more.

    >>> share_micro_batches(Layout(stages=4, replicas=8, micro_batches=32)).reason
    '32 micro-batches of each step go to 7 replicas: 4 do 37 and 3 do 36'
    """
    each = layout.micro_batches or _PER_STAGE * layout.stages
    replicas = {at: range(at * each, (at + 1) * each) for at in range(layout.replicas)}
    plan = take_over(replicas, lost=[layout.replicas - 1])
    loads = Counter(len(plan.micro_batches_of(replica)) for replica in plan.own)
    message = " and ".join(f"{count} do {load}" for load, count in sorted(loads.items(), reverse=True))
    guessed = "" if layout.micro_batches else ", if there are four for each stage"
    return Share(
        each, max(loads), f"{each} micro-batches of each step go to {len(plan.own)} replicas: {message}{guessed}"
    )


def speed_rerouted(layout: Layout, share: Share) -> float:
    """Return the share of speed with one worker's micro-batches done by its peers (lower bound of ReCycle's period).

    >>> layout = Layout(stages=4, replicas=8, micro_batches=32)
    >>> round(speed_rerouted(layout, share_micro_batches(layout)), 3)
    0.946
    """
    fault_free = share.each + layout.stages - 1
    return fault_free / max(fault_free, share.most)


def speed_without_replica(layout: Layout, share: Share) -> float:
    """Return the share of speed when the other replicas do the whole batch, bubble included.

    >>> layout = Layout(stages=4, replicas=8, micro_batches=32)
    >>> round(speed_without_replica(layout, share_micro_batches(layout)), 3)
    0.875
    """
    return (share.each + layout.stages - 1) / (share.most + layout.stages - 1)
