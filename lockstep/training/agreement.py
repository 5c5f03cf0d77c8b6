"""What the replicas of a new generation agree on, from what each reports: who does which micro-batches of which step.

Every replica comes to the same answer by itself. A bucket of gradients is either reduced, over all micro-batches of
the step, or it is not, and then each replica has its own sum over the micro-batches that it has done. So the
micro-batches of a lost replica are done again only where some bucket is not reduced at any survivor, which is
Unicron's transition, before and in the middle of the reduction.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from lockstep.errors import LockstepError
from lockstep.in_job import Beat, Generation, Member, Place
from lockstep.verdict import Frozen

Source = Literal["live", "memory", "disk", "nothing"]
_NEAREST: tuple[Source, ...] = ("live", "memory", "disk", "nothing")


class Report(Frozen):
    """Where a replica stands as it enters a generation."""

    replica: int
    source: Source = Field(description="of its state; live: it holds the state in which the step begins")
    step: int = Field(ge=0)
    done: tuple[int, ...] = Field((), description="micro-batches whose gradients are in its own sums")
    reduced: tuple[bool, ...] = Field((), description="by bucket of gradients")

    @property
    def is_reduced(self) -> bool:
        """Whether nothing but the optimizer's step is left to do."""
        return bool(self.reduced) and all(self.reduced)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the replicas go on."""

    step: int
    giver: int  # has the nearest state
    takers: tuple[int, ...]  # get it
    behind: frozenset[int]  # have only to finish the step before
    buckets: tuple[int | None, ...]  # the replica that gives each reduced bucket to the others; None: not reduced
    shares: Mapping[int, tuple[int, ...]]  # micro-batches by the replica that is to do them


def agree(reports: Sequence[Report], micro_batches: int, buckets: int) -> Agreement:
    """Return how to go on; LockstepError where replicas are apart in a way that cannot come about."""
    giver = max(
        reports, key=lambda each: (each.source == "live", each.step, -_NEAREST.index(each.source), -each.replica)
    )
    live = [each for each in reports if each.source == "live"]
    behind = frozenset(each.replica for each in live if each.step == giver.step - 1)
    if any(each.step != giver.step and not (each.replica in behind and each.is_reduced) for each in live):
        raise LockstepError(f"replicas are apart: {[(each.replica, each.step, each.is_reduced) for each in live]}")
    level = [each for each in live if each.step == giver.step]
    takers = tuple(sorted(each.replica for each in reports if each.source != "live" and each is not giver))
    givers = tuple(_find_giver(level, bucket) for bucket in range(buckets))
    done = {each.replica: each.done if each in level else () for each in reports}
    is_left = None in givers
    shares = share_micro_batches(micro_batches, done) if is_left else dict.fromkeys(done, ())
    return Agreement(giver.step, giver.replica, takers, behind, givers, shares)


def _find_giver(level: Sequence[Report], bucket: int) -> int | None:
    return min((each.replica for each in level if each.reduced and each.reduced[bucket]), default=None)


def share_micro_batches(count: int, done: Mapping[int, Collection[int]]) -> dict[int, tuple[int, ...]]:
    """Return who does the micro-batches that nobody has done, so that all come to as many as possible alike.

    >>> share_micro_batches(6, {0: [], 1: [], 2: []})
    {0: (0, 3), 1: (1, 4), 2: (2, 5)}
    >>> share_micro_batches(6, {0: [0, 3], 1: [1]})
    {0: (4,), 1: (2, 5)}
    """
    shares: dict[int, list[int]] = {replica: [] for replica in sorted(done)}
    over = {number for numbers in done.values() for number in numbers}
    for number in (number for number in range(count) if number not in over):
        least = min(shares, key=lambda replica: (len(done[replica]) + len(shares[replica]), replica))
        shares[least].append(number)
    return {replica: tuple(share) for replica, share in shares.items()}


def choose_members(
    now: Generation | None, beats: Mapping[Place, Beat], silent: Collection[Member], out: Collection[str]
) -> tuple[Member, ...]:
    """Return who is in the next generation: all that live and were not ordered out, new ones among them."""
    alive = (beat.member for beat in beats.values() if beat.member not in silent and beat.member.node not in out)
    known = set(now.members) if now else set[Member]()
    # A member whose beats cannot be read yet is not lost: only silence is a reason.
    kept = {each for each in known if each.place not in beats and each not in silent and each.node not in out}
    return tuple(sorted({*alive, *kept}, key=lambda member: member.place))
