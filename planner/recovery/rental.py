"""When a slow part is worth acting on: as in renting skis, once waiting has cost as much as acting would.

Nobody knows how long a slow part stays slow. Whoever acts when the loss so far equals the price of acting never pays
more than twice what somebody who knew would have paid, and cheap cures come before dear ones by themselves.
"""

from dataclasses import dataclass

from lockstep.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class Wait:
    """Whether it is time, and when it will be."""

    is_over: bool
    lost_gpu_hours: float  # so far, by waiting
    due_ns: int | None  # when it will be over at this rate of loss; None: never, or it is already


def weigh_waiting(since_ns: int, now_ns: int, lost_per_hour: float, price_gpu_hours: float) -> Wait:
    """Return whether the loss since the fault began has reached the price of acting.

    >>> weigh_waiting(0, 1800 * NS_PER_S, lost_per_hour=10.0, price_gpu_hours=4.0).is_over
    True
    """
    lost = max(now_ns - since_ns, 0) / NS_PER_S / 3600 * lost_per_hour
    if lost >= price_gpu_hours:
        return Wait(True, lost, None)
    if lost_per_hour <= 0:
        return Wait(False, lost, None)
    return Wait(False, lost, since_ns + int(price_gpu_hours / lost_per_hour * 3600 * NS_PER_S))
