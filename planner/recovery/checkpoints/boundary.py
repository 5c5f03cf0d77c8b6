"""Act now, or wait for the next checkpoint? A slow job that is stopped does again what it did since the last one.

Acting now costs that work, at healthy speed; waiting costs the speed that is lost until the next checkpoint, and the
chance that the job dies before it. Restarting costs the same either way and cancels out. A hang or crash never waits.
"""

from dataclasses import dataclass

from pydantic import Field

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.verdict import FaultClass, Frozen
from planner.recovery.checkpoints.checkpoint import Catalogue
from planner.recovery.checkpoints.intervals import find_usual_interval_s, say_time

_SLOW: tuple[FaultClass, ...] = ("comm_slow", "noncomm_slow", "global_slow")
_MOST_LATE = 0.5  # of an interval: then the next save does not come as the ones before did


@dataclass(frozen=True, slots=True)
class Slowness:
    """What is known of a job when a part of it should be taken out."""

    fault_class: FaultClass | None  # None: nothing is faulty, the job only could be faster
    speed: float  # now, as a share of what it would be after acting
    lost_s: float | None  # work since the last complete checkpoint; None: there is none to go back to
    next_save_ns: int | None  # when the next checkpoint will be complete; None: not known
    failures_per_s: float = 0.0  # at which the job dies of the fault or of another while it waits


class Moment(Frozen):
    """When to act, and what that and the other choice cost, in seconds of healthy work."""

    waits: bool
    until_ns: int | None = Field(description="None: until there is a checkpoint, and nothing says when")
    now_cost_s: float | None = Field(description="work done twice when acting now; None: not known")
    wait_cost_s: float | None = Field(description="work lost by waiting; None: it cannot wait")
    reason: str


def choose_moment(job: Slowness, now_ns: int) -> Moment:
    """Return whether to act now or to wait for the next checkpoint, by what costs less."""
    if job.fault_class is not None and job.fault_class not in _SLOW:
        return _act(
            now_ns, f"a {job.fault_class} does not wait: the job makes no progress that a checkpoint would keep"
        )
    if not job.speed >= 0:
        raise BadInput(f"the job goes at {job.speed} of its speed: expected a share of 0 or more")
    now_cost_s = job.lost_s
    if job.next_save_ns is None or job.next_save_ns < now_ns:
        return _act_blindly(now_ns, now_cost_s)
    wait_s = (job.next_save_ns - now_ns) / NS_PER_S
    wait_cost_s = find_wait_cost_s(job, wait_s, now_cost_s or 0.0)
    return _compare(job, now_ns, wait_s, now_cost_s, wait_cost_s)


def find_wait_cost_s(job: Slowness, wait_s: float, now_cost_s: float) -> float:
    """Return the healthy work that waiting loses: speed, and if the job dies meanwhile, all since the last save."""
    speed = min(1.0, job.speed)
    dies = min(1.0, job.failures_per_s * wait_s)
    return wait_s * (1 - speed) + dies * (now_cost_s + wait_s * speed / 2)


def expect_next_save(catalogue: Catalogue, now_ns: int) -> int | None:
    """Return when the next checkpoint should be there, by the gaps between the others; None: they do not tell."""
    usual_s = find_usual_interval_s(catalogue)
    if usual_s is None:
        return None
    usual, last = round(usual_s * NS_PER_S), max(each.saved_ns for each in catalogue.complete)
    return None if now_ns - last - usual > _MOST_LATE * usual else max(now_ns, last + usual)


def _compare(job: Slowness, now_ns: int, wait_s: float, now_cost_s: float | None, wait_cost_s: float) -> Moment:
    waiting = (
        f"the next checkpoint is {say_time(wait_s)} away and waiting costs {say_time(wait_cost_s)} of healthy work"
    )
    if now_cost_s is None:
        return _wait(job.next_save_ns, f"{waiting}, and without it there is none to go back to", None, wait_cost_s)
    redo = f"acting now does {say_time(now_cost_s)} of work again"
    if wait_cost_s < now_cost_s:
        return _wait(job.next_save_ns, f"{waiting}, {redo}", now_cost_s, wait_cost_s)
    return _act(now_ns, f"{redo}, {waiting}", now_cost_s, wait_cost_s)


def _act_blindly(now_ns: int, now_cost_s: float | None) -> Moment:
    unknown = "nothing says when the next checkpoint will be there"
    if now_cost_s is None:
        return _wait(None, f"{unknown}, and without one all work would be lost", None, None)
    return _act(now_ns, f"{unknown}, and {say_time(now_cost_s)} of work is done again", now_cost_s)


def _act(now_ns: int, reason: str, now_cost_s: float | None = None, wait_cost_s: float | None = None) -> Moment:
    said = f"act now: {reason}"
    return Moment(waits=False, until_ns=now_ns, now_cost_s=now_cost_s, wait_cost_s=wait_cost_s, reason=said)


def _wait(until_ns: int | None, reason: str, now_cost_s: float | None, wait_cost_s: float | None) -> Moment:
    said = f"wait: {reason}"
    return Moment(waits=True, until_ns=until_ns, now_cost_s=now_cost_s, wait_cost_s=wait_cost_s, reason=said)
