"""What a fault has cost its job so far: time beyond what its steps take usually, and time in which it stood still.

A slow job loses (length - usual) with each step, a standing one all of the time since it stands; a step that contains
a standstill tells both in one, so it takes the place of what was reckoned while nobody knew its end. Steps of usual
length add nothing, so it does not matter when exactly a fault is noticed or declared to be over, and noise of
single steps cancels out. Where steps cannot be cut, the rate of operations stands in, else the share of time that a
stage reckons; with none of them the cost is unknown. Faults that overlap carry the whole loss each: healing one of
them would not bring it back.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from analyzer.steps.history import WORTH_SAYING, StepHistory, find_before, find_newest, judge_levels
from analyzer.steps.traffic import Pace
from analyzer.windows.window import Context, Finding, Window
from lockstep.clock import NS_PER_S
from lockstep.verdict import STOPS_JOB, Impact, judge_severity

_LEAST_CHANGE = 0.02  # of a step: smaller ones do not show in single steps when they began
_OUTLYING = 2.0  # times the middle: a checkpoint among the usual steps
_NOTICED_NS = 60 * NS_PER_S  # in which a fault is noticed: what was slow before that has another cause
_ONSET_NS = 6 * NS_PER_S  # the shortest evaluation, in which a fault is noticed at the latest as a rule
_FEWEST_SECONDS = 5  # that tell a rate
_USUAL_STEPS = 100  # before a fault whose mean is usual: known to a tenth of what single steps differ


@dataclass(frozen=True)
class Progress:
    """How a job goes on, as far as one evaluation knows it."""

    steps: StepHistory = field(default_factory=StepHistory)
    is_stale: bool = False  # no step ended in the window: those known do not tell how long they take now
    pace: Pace = field(default_factory=Pace)  # read where steps are stale and the job does not stand still


@dataclass(frozen=True, slots=True)
class Account:
    """The running cost of one fault, in time of the whole job."""

    began_ns: int
    until_ns: int  # up to here everything was charged
    settled_ns: int  # up to here whole steps were
    usual_ns: float | None = None  # length of a step before it began; None: unknown
    usual_rate: float | None = None  # operations per second before it; None: not needed, or unknown
    by_steps_ns: float = 0.0  # lost by those whole steps
    lost_ns: float | None = None  # so far, and never less; None: unknown
    ratio: float | None = None  # step time now over the usual
    peak: float | None = None

    @property
    def mean(self) -> float | None:
        """Return the time so far over what its work takes usually; None: unknown, or nothing was done."""
        lasted = self.until_ns - self.began_ns
        if self.lost_ns is None or self.lost_ns >= lasted:
            return None
        return lasted / (lasted - self.lost_ns)


def stops_job(finding: Finding) -> bool:
    """Return whether the job does nothing at all because of it."""
    return finding.stands_still or finding.fault_class in STOPS_JOB


def open_account(progress: Progress, since_ns: int, finding: Finding) -> Account:
    """Return the account of a fault that was first seen at that time; slow steps before it are its own."""
    steps = progress.steps
    began = len(steps.start_ns[steps.start_ns < since_ns])
    if not stops_job(finding):
        began = _find_first_slow(steps, since_ns, began)
    usual = find_before(steps, int(steps.start_ns[began]) if began < len(steps) else since_ns)
    if usual is None:
        return Account(since_ns, since_ns, since_ns)
    recent = steps.length_ns[max(began - _USUAL_STEPS, 0) : began]
    even = recent[recent < _OUTLYING * usual]
    settled_ns = int(steps.start_ns[began - 1] + steps.length_ns[began - 1]) if began else since_ns
    began_ns = since_ns if stops_job(finding) else min(settled_ns, since_ns)
    return Account(began_ns, began_ns, settled_ns, usual_ns=float(np.mean(even)) if len(even) else usual)


def _find_first_slow(steps: StepHistory, since_ns: int, began: int) -> int:
    """Return the first step that was slow, where those before the fault was seen were: the likeliest change point.

    Where steps are short, all of those just before it may be slow already; then their level tells where it began.
    """
    for level in reversed(judge_levels(steps, WORTH_SAYING)):
        if level.begin < began:
            if not level.is_slow or steps.start_ns[level.begin] < since_ns - _NOTICED_NS:
                break
            began = level.begin
    usual = find_before(steps, int(steps.start_ns[began]) if began < len(steps) else since_ns)
    change = find_newest(steps) - usual if usual else 0.0
    if not usual or change < _LEAST_CHANGE * usual:
        return began
    back = steps.length_ns[:began][::-1][:_USUAL_STEPS] - (usual + change / 2)
    gain = np.concatenate([[0.0], np.cumsum(np.clip(back, -change, change))])
    return began - int(np.argmax(gain))


def _find_rate(account: Account, pace: Pace) -> float | None:
    """Return the operations per second before a fault; None where too few seconds of it are known."""
    if account.usual_rate is not None or not len(pace):
        return account.usual_rate
    first_ns = int(pace.ts_ns[0]) + NS_PER_S
    # Where no step tells when it began, the last seconds before it was noticed may be the fault's.
    until_ns = account.began_ns - (_ONSET_NS if account.usual_ns is None else 0)
    if until_ns - first_ns < _FEWEST_SECONDS * NS_PER_S:
        return None
    return pace.count(first_ns, until_ns) * NS_PER_S / (until_ns - first_ns) or None


def charge(account: Account, progress: Progress, finding: Finding | None, context: Context) -> Account:
    """Return the account with what was lost up to an evaluation's end; no finding: the fault was not seen in it."""
    end_ns = context.window.end_ns
    account = replace(_settle(account, progress.steps), usual_rate=_find_rate(account, progress.pace))
    if finding is not None and stops_job(finding):
        charged = _charge_standstill(account, finding, end_ns)
    elif account.usual_rate and len(progress.pace):
        charged = _charge_rate(account, account.usual_rate, progress.pace, context.window)
    elif account.usual_ns is not None:
        ratio = (
            find_newest(progress.steps) / account.usual_ns if len(progress.steps) and not progress.is_stale else None
        )
        charged = replace(account, ratio=ratio, lost_ns=max(account.lost_ns or 0.0, account.by_steps_ns))
    else:
        charged = _charge_share(account, finding.lost_share if finding else None, end_ns)
    peak = max(account.peak or 0.0, charged.ratio or 0.0) or None
    return replace(charged, until_ns=end_ns, peak=peak)


def _settle(account: Account, steps: StepHistory) -> Account:
    """Return the account with the whole steps that have ended since; of one that was charged in part, the rest."""
    ends = steps.start_ns + steps.length_ns
    fresh = ends > account.settled_ns
    if account.usual_ns is None or not fresh.any():
        return account
    length = steps.length_ns[fresh]
    share = (ends[fresh] - np.maximum(steps.start_ns[fresh], account.settled_ns)) / length
    lost = float(((length - account.usual_ns) * share).sum())
    return replace(account, settled_ns=int(ends.max()), by_steps_ns=account.by_steps_ns + lost)


def _charge_standstill(account: Account, finding: Finding, end_ns: int) -> Account:
    """Return the account with all of the time since the job stands; where steps are known, the next settles it."""
    if account.usual_ns is None:
        return replace(_charge_share(account, 1.0, end_ns), ratio=None)
    since_ns = max(account.settled_ns, finding.since_ns or account.began_ns)
    lost = account.by_steps_ns + max(end_ns - since_ns, 0)
    return replace(account, ratio=None, lost_ns=max(account.lost_ns or 0.0, lost))


def _charge_rate(account: Account, usual_rate: float, pace: Pace, window: Window) -> Account:
    """Return the account with what is missing of the operations: no step tells how long they take now.

    It is charged up to the last second that had any: a job that is over, or says nothing, loses nothing.
    """
    until_ns = min(int(pace.ts_ns[-1]) + NS_PER_S, window.end_ns)
    missing = max(until_ns - account.settled_ns, 0) - _time_of(pace, account.settled_ns, until_ns, usual_rate)
    lost, done = account.by_steps_ns + missing, _time_of(pace, window.start_ns, until_ns, usual_rate)
    return replace(
        account,
        settled_ns=max(until_ns, account.settled_ns),
        by_steps_ns=lost,
        lost_ns=max(account.lost_ns or 0.0, lost),
        ratio=(until_ns - window.start_ns) / done if done else None,
    )


def _time_of(pace: Pace, start_ns: int, end_ns: int, usual_rate: float) -> float:
    """Return how long the operations of a stretch of time take usually."""
    return pace.count(start_ns, end_ns) * NS_PER_S / usual_rate


def _charge_share(account: Account, share: float | None, end_ns: int) -> Account:
    if share is None:
        return replace(account, ratio=None)
    lost = (account.lost_ns or 0.0) + share * max(end_ns - account.until_ns, 0)
    return replace(account, ratio=None, lost_ns=lost, by_steps_ns=lost)


def impact_of(account: Account, finding: Finding, context: Context) -> Impact:
    """Return what a verdict says of the cost; where nobody sees the job, nothing."""
    if finding.fault_class == "telemetry_lost":
        account = Account(account.began_ns, account.until_ns, account.settled_ns)
    gpus = context.roster.ranks
    lost = account.lost_ns if gpus else None
    return Impact(
        severity=judge_severity(stops_job(finding), account.peak),
        stands_still=stops_job(finding),
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
