"""What becomes of a step when one replica, or one worker of a pipeline, is gone: who does its work, and how fast.

The micro-batches of the lost one are dealt to the others so that the fullest has as few as can be, and every one of
them counts exactly once (allocation/micro_batches.py).
"""

from collections import Counter
from dataclasses import dataclass

from planner.recovery.allocation.micro_batches import take_over
from planner.recovery.facts import Layout

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
    said = " and ".join(f"{count} do {load}" for load, count in sorted(loads.items(), reverse=True))
    guessed = "" if layout.micro_batches else ", if there are four for each stage"
    return Share(
        each, max(loads), f"{each} micro-batches of each step go to {len(plan.own)} replicas: {said}{guessed}"
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
