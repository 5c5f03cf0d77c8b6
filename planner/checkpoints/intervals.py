"""How often to save, from the failures that were seen: the interval that loses least to saves and to work done twice.

With w seconds per save and N nodes that fail r times per node and day, an interval T from one save to the next loses
w / T + T N r / 2 of the time, which is least at sqrt(2 w / (N r)): Young's interval, in the form of Meta's RSC study.
Assumptions: failures come at a constant rate and are rare beside saves, and a save stops the job. The rate is a
Poisson count over node-days, its bounds are the exact ones (Garwood's).
"""

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from pydantic import Field
from scipy.special import gammaincinv

from lockstep.clock import NS_PER_S
from lockstep.errors import BadInput
from lockstep.verdict import FaultClass, Frozen
from planner.checkpoints.checkpoint import Catalogue

_DAY_S = 86_400.0
_CONFIDENCE = 0.95
_LEAST_SAVES = 3  # of which the gaps tell an interval


class FailureRate(Frozen):
    """Failures per node-day, with the bounds that hold with 95 %."""

    failures: int = Field(ge=0)
    node_days: float = Field(gt=0)
    per_node_day: float = Field(ge=0)
    low: float = Field(ge=0)
    high: float = Field(gt=0, description="where no failure was seen: one-sided, -ln(0.05) over the node-days")

    @property
    def planned(self) -> float:
        """Return the rate to plan with: what was seen, or its upper bound where no failure was."""
        return self.per_node_day if self.failures else self.high


class IntervalAdvice(Frozen):
    """How often to save, and what it saves."""

    interval_s: float = Field(gt=0)
    low_s: float = Field(gt=0, description="at the upper bound of the failure rate")
    high_s: float | None = Field(description="at the lower bound; None: no failure was seen")
    lost_share: float = Field(ge=0, le=1, description="of time, to saving and to work done twice")
    lost_share_now: float | None = Field(None, description="the same at the interval of today; None: not known")
    reason: str


@dataclass(frozen=True, slots=True)
class Saving:
    """How a job saves today."""

    nodes: int
    save_s: float  # that the job stands still for one save
    interval_s: float | None = None  # from one save to the next; None: not known


def find_usual_interval_s(catalogue: Catalogue) -> float | None:
    """Return the median of the gaps between complete checkpoints; None: there are too few."""
    times = sorted(each.saved_ns for each in catalogue.complete)
    gaps = sorted(after - before for before, after in pairwise(times))
    usual = gaps[len(gaps) // 2] if len(times) >= _LEAST_SAVES else 0
    return usual / NS_PER_S if usual > 0 else None


def find_failure_rate(failures: int, node_days: float) -> FailureRate:
    """Return the rate of failures with its bounds, also where none was seen.

    >>> rate = find_failure_rate(0, 1000.0)
    >>> round(rate.high * 1000, 2)
    3.0
    """
    if failures < 0 or not 0 < node_days < float("inf"):
        raise BadInput(
            f"{failures} failures in {node_days} node-days are no rate: it takes none or more, and some days"
        )
    tail = (1 - _CONFIDENCE) / (2 if failures else 1)
    return FailureRate(
        failures=failures,
        node_days=node_days,
        per_node_day=failures / node_days,
        low=float(gammaincinv(failures, tail)) / node_days if failures else 0.0,
        high=float(gammaincinv(failures + 1, 1 - tail)) / node_days,
    )


def advise_interval(rate: FailureRate, saving: Saving) -> IntervalAdvice:
    """Return the interval that loses least time, with what it loses and what today's loses."""
    if saving.nodes < 1 or not 0 < saving.save_s < float("inf"):
        raise BadInput(f"{saving}: it takes a node and a save that lasts")
    mttf_s = _DAY_S / (saving.nodes * rate.planned)
    interval_s = find_interval_s(saving, rate.planned)
    now = saving.interval_s
    advice = IntervalAdvice(
        interval_s=interval_s,
        low_s=find_interval_s(saving, rate.high),
        high_s=find_interval_s(saving, rate.low) if rate.low else None,
        lost_share=find_lost_share(interval_s, saving.save_s, mttf_s),
        lost_share_now=find_lost_share(now, saving.save_s, mttf_s) if now else None,
        reason="",
    )
    return advice.model_copy(update={"reason": _explain(advice, rate, saving, mttf_s)})


def find_interval_s(saving: Saving, per_node_day: float) -> float:
    """Return Young's interval, or where that is shorter, the time that a save takes: none can begin before."""
    mttf_s = _DAY_S / (saving.nodes * per_node_day)
    return max(sqrt(2 * saving.save_s * mttf_s), saving.save_s)


def find_lost_share(interval_s: float, save_s: float, mttf_s: float) -> float:
    """Return the share of time that saves take, plus that of work done twice: half an interval per failure."""
    return min(1.0, save_s / interval_s + interval_s / 2 / mttf_s)


def _explain(advice: IntervalAdvice, rate: FailureRate, saving: Saving, mttf_s: float) -> str:
    span = (
        f"{say_time(advice.low_s)} to {say_time(advice.high_s)}"
        if advice.high_s
        else f"{say_time(advice.low_s)} or more"
    )
    message = (
        f"save every {say_time(advice.interval_s)}: a save holds {saving.nodes} nodes up for "
        f"{say_time(saving.save_s)}, and one of them fails every {say_time(mttf_s)} ({_say_rate(rate)}), "
        f"so that {advice.lost_share:.1%} of the time is lost to saves and to work done twice"
    )
    if advice.lost_share_now is not None and saving.interval_s:
        message += f", and {advice.lost_share_now:.1%} at the {say_time(saving.interval_s)} of today"
    return f"{message}; with the doubt about the rate, {span} is right"


def _say_rate(rate: FailureRate) -> str:
    seen = f"{rate.failures} failures in {rate.node_days:,.0f} node-days"
    if not rate.failures:
        return f"no failure was seen in {rate.node_days:,.0f} node-days, so this is the upper bound with 95 %"
    thousand = (rate.per_node_day * 1000, rate.low * 1000, rate.high * 1000)
    return "{}: {:.3g} in 1,000, and with 95 % between {:.3g} and {:.3g}".format(seen, *thousand)


def say_time(seconds: float) -> str:
    """Return a time in the unit that a person would use."""
    if seconds < 90:
        return f"{seconds:.3g} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 48 * 3600 else f"{seconds / _DAY_S:.1f} days"


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


@dataclass(frozen=True, slots=True)
class Timing:
    """When to act, and why."""

    waits: bool
    until_ns: int | None  # None: until there is a checkpoint, and nothing says when
    reason: str


def choose_timing(job: Slowness, now_ns: int) -> Timing:
    """Return whether to act now or to wait for the next checkpoint, by what costs less.

    Acting now costs that work, at healthy speed; waiting costs the speed that is lost until the next checkpoint, and
    the chance that the job dies before it. Restarting costs the same either way and cancels out. A hang or crash
    never waits.
    """
    if job.fault_class is not None and job.fault_class not in _SLOW:
        why = f"a {job.fault_class} does not wait: the job makes no progress that a checkpoint would keep"
        return Timing(False, now_ns, f"act now: {why}")
    if not job.speed >= 0:
        raise BadInput(f"the job goes at {job.speed} of its speed: expected a share of 0 or more")
    if job.next_save_ns is None or job.next_save_ns < now_ns:
        unknown = "nothing says when the next checkpoint will be there"
        if job.lost_s is None:
            return Timing(True, None, f"wait: {unknown}, and without one all work would be lost")
        return Timing(False, now_ns, f"act now: {unknown}, and {say_time(job.lost_s)} of work is done again")
    wait_s = (job.next_save_ns - now_ns) / NS_PER_S
    cost_s = find_wait_cost_s(job, wait_s)
    waiting = f"the next checkpoint is {say_time(wait_s)} away and waiting costs {say_time(cost_s)} of healthy work"
    if job.lost_s is None:
        return Timing(True, job.next_save_ns, f"wait: {waiting}, and without it there is none to go back to")
    redo = f"acting now does {say_time(job.lost_s)} of work again"
    if cost_s < job.lost_s:
        return Timing(True, job.next_save_ns, f"wait: {waiting}, {redo}")
    return Timing(False, now_ns, f"act now: {redo}, {waiting}")


def find_wait_cost_s(job: Slowness, wait_s: float) -> float:
    """Return the healthy work that waiting loses: speed, and if the job dies meanwhile, all since the last save."""
    speed = min(1.0, job.speed)
    dies = min(1.0, job.failures_per_s * wait_s)
    return wait_s * (1 - speed) + dies * ((job.lost_s or 0.0) + wait_s * speed / 2)


def expect_next_save(catalogue: Catalogue, now_ns: int) -> int | None:
    """Return when the next checkpoint should be there, by the gaps between the others; None: they do not tell."""
    usual_s = find_usual_interval_s(catalogue)
    if usual_s is None:
        return None
    usual, last = round(usual_s * NS_PER_S), max(each.saved_ns for each in catalogue.complete)
    return None if now_ns - last - usual > _MOST_LATE * usual else max(now_ns, last + usual)
