"""What a fault has cost its job so far: time beyond what its steps take usually, and time in which it stood still.

A slow job loses (length - usual) with each step, a standing one all of the time since it stands; a step that contains
a standstill tells both in one, so it takes the place of what was reckoned while nobody knew its end. Steps of usual
length add nothing, so it does not matter when exactly a fault is noticed or declared to be over, and noise of
single steps cancels out. Where steps are unknown, the share of time that a stage reckons stands in; with neither, the
cost is unknown. Faults that overlap carry the whole loss each: healing one of them would not bring it back.
"""

from dataclasses import dataclass, replace

import numpy as np

from analyzer.steps.history import StepHistory, find_before, find_newest
from analyzer.windows.window import Context, Finding
from lockstep.clock import NS_PER_S
from lockstep.verdict import STANDING, Impact

_LEAST_CHANGE = 0.02  # of a step: smaller ones do not show in single steps when they began
_OUTLYING = 2.0  # times the middle: a checkpoint among the usual steps
_USUAL_STEPS = 100  # before a fault whose mean is usual: known to a tenth of what single steps differ


@dataclass(frozen=True, slots=True)
class Account:
    """The running cost of one fault, in time of the whole job."""

    began_ns: int
    until_ns: int  # up to here everything was charged
    settled_ns: int  # up to here whole steps were
    usual_ns: float | None = None  # length of a step before it began; None: unknown
    by_steps_ns: float = 0.0  # lost by those whole steps
    lost_ns: float | None = None  # so far, and never less; None: unknown
    ratio: float | None = None  # step time now over the usual
    peak: float | None = None

    @property
    def mean(self) -> float | None:
        """Return the time so far over what its work takes usually; None: unknown, or nothing was done."""
        lasted = self.until_ns - self.began_ns
        if self.usual_ns is None or self.lost_ns is None or self.lost_ns >= lasted:
            return None
        return lasted / (lasted - self.lost_ns)


def is_standing(finding: Finding) -> bool:
    """Return whether the job does nothing at all because of it."""
    return finding.stands_still or finding.fault_class in STANDING


def open_account(history: StepHistory, since_ns: int, finding: Finding) -> Account:
    """Return the account of a fault that was first seen at that time; slow steps before it are its own."""
    began = len(history.start_ns[history.start_ns < since_ns])
    if not is_standing(finding):
        began = _find_onset(history, since_ns, began)
    usual = find_before(history, int(history.start_ns[began]) if began < len(history) else since_ns)
    if usual is None:
        return Account(since_ns, since_ns, since_ns)
    steps = history.length_ns[max(began - _USUAL_STEPS, 0) : began]
    even = steps[steps < _OUTLYING * usual]
    settled_ns = int(history.start_ns[began - 1] + history.length_ns[began - 1]) if began else since_ns
    began_ns = since_ns if is_standing(finding) else min(settled_ns, since_ns)
    return Account(began_ns, began_ns, settled_ns, usual_ns=float(np.mean(even)) if len(even) else usual)


def _find_onset(history: StepHistory, since_ns: int, began: int) -> int:
    """Return the first step that was slow, where those before the fault was seen were: the likeliest change point."""
    usual = find_before(history, since_ns)
    change = find_newest(history) - usual if usual else 0.0
    if not usual or change < _LEAST_CHANGE * usual:
        return began
    back = history.length_ns[:began][::-1][:_USUAL_STEPS] - (usual + change / 2)
    gain = np.concatenate([[0.0], np.cumsum(np.clip(back, -change, change))])
    return began - int(np.argmax(gain))


def charge(account: Account, history: StepHistory, finding: Finding | None, end_ns: int) -> Account:
    """Return the account with what was lost up to an evaluation's end; no finding: the fault was not seen in it."""
    standing = finding is not None and is_standing(finding)
    if account.usual_ns is None:
        share = None if finding is None else 1.0 if standing else finding.lost_share
        more = None if share is None else share * max(end_ns - account.until_ns, 0)
        lost = account.lost_ns if more is None else (account.lost_ns or 0.0) + more
        return replace(account, until_ns=end_ns, lost_ns=lost, ratio=None)
    account = _settle(account, history)
    since_ns = (finding.since_ns if finding else None) or account.began_ns
    open_ns = max(end_ns - max(account.settled_ns, since_ns), 0) if standing else 0
    ratio = None if standing or not len(history) else find_newest(history) / account.usual_ns
    return replace(
        account,
        until_ns=end_ns,
        lost_ns=max(account.lost_ns or 0.0, account.by_steps_ns + open_ns),
        ratio=ratio,
        peak=max(account.peak or 0.0, ratio or 0.0) or None,
    )


def _settle(account: Account, history: StepHistory) -> Account:
    """Return the account with the whole steps that have ended since; of one that was charged in part, the rest."""
    ends = history.start_ns + history.length_ns
    fresh = ends > account.settled_ns
    if not fresh.any():
        return account
    length = history.length_ns[fresh]
    share = (ends[fresh] - np.maximum(history.start_ns[fresh], account.settled_ns)) / length
    lost = float(((length - (account.usual_ns or 0.0)) * share).sum())
    return replace(account, settled_ns=int(ends.max()), by_steps_ns=account.by_steps_ns + lost)


def impact_of(account: Account, finding: Finding, context: Context) -> Impact:
    """Return what a verdict says of the cost."""
    gpus = context.roster.ranks
    lost = account.lost_ns if gpus else None
    return Impact(
        stands_still=is_standing(finding),
        step_time_ratio=account.ratio,
        peak_ratio=account.peak,
        mean_ratio=account.mean,
        usual_step_s=None if account.usual_ns is None else account.usual_ns / NS_PER_S,
        ranks_waiting=max(gpus - 1, 0) if finding.ranks_waiting is None else finding.ranks_waiting,
        gpus=gpus,
        gpu_hours=None if lost is None else round(gpus * lost / (3_600 * NS_PER_S), 6),
    )


def resume_account(impact: Impact, since_ns: int, until_ns: int) -> Account:
    """Return the account that a stored verdict was written from, to go on with."""
    lost = None if impact.gpu_hours is None or not impact.gpus else impact.gpu_hours * 3_600 * NS_PER_S / impact.gpus
    return Account(
        began_ns=since_ns,
        until_ns=until_ns,
        settled_ns=until_ns,
        usual_ns=None if impact.usual_step_s is None else impact.usual_step_s * NS_PER_S,
        by_steps_ns=lost or 0.0,
        lost_ns=lost,
        ratio=impact.step_time_ratio,
        peak=impact.peak_ratio,
    )
