"""From a finding to a verdict: how sure, how grave, what it costs, and how much of the job was seen."""

from dataclasses import dataclass, replace

from analyzer.context import Context
from analyzer.finding import Finding
from lockstep.clock import NS_PER_S
from lockstep.verdict import FaultClass, Grade, Impact, Verdict

HANGS: frozenset[FaultClass] = frozenset({"comm_hang", "noncomm_hang", "crash"})
_NS_PER_HOUR = 3_600 * 10**9
_NEVER_ISOLATED: frozenset[FaultClass] = frozenset({"software", "global_slow"})


@dataclass(frozen=True, slots=True)
class GradingOptions:
    """What is worth which grade."""

    isolate_confidence: float = 0.95  # a wrong drain costs a restart and a good node: one in twenty at most
    isolate_coverage: float = 0.75  # with fewer hosts seen, the culprit may be among those that say nothing
    alert_confidence: float = 0.5  # below, another part is likelier: something to read, not to be woken for
    retries_ns: int = 30 * NS_PER_S  # a stalled wire may come back until the transport has given up
    isolate_share: float = 0.05  # a fault that costs less than this is not worth a restart


def make_verdict(
    finding: Finding, since_ns: int, context: Context, step_time_ratio: float | None, options: GradingOptions
) -> Verdict:
    """Return the verdict that a finding amounts to; its likelihood is that over all looks so far."""
    finding = replace(finding, likelihood=round(min(finding.likelihood, finding.cap), 3))
    ratio = None if finding.fault_class in HANGS else step_time_ratio
    return Verdict(
        id="",
        job=context.job,
        attempt=context.attempt,
        fault_class=finding.fault_class,
        component=finding.component,
        side=finding.side,
        confidence=finding.likelihood,
        grade=_grade(finding, context.window.end_ns - since_ns, context, ratio, options),
        since_ns=since_ns,
        last_seen_ns=context.window.end_ns,
        impact=_impact(finding, since_ns, context, ratio),
        reason=finding.reason,
        evidence=finding.evidence,
        ruled_out=finding.ruled_out,
        ambiguous_with=finding.ambiguous_with,
        coverage=round(min(context.coverage, 1.0), 4),
    )


def finding_of(verdict: Verdict) -> Finding:
    """Return the finding that a stored verdict was made of, so that an analyzer that takes over can go on with it."""
    return Finding(
        fault_class=verdict.fault_class,
        component=verdict.component,
        side=verdict.side,
        likelihood=verdict.confidence,
        reason=verdict.reason,
        evidence=verdict.evidence,
        ruled_out=verdict.ruled_out,
        ambiguous_with=verdict.ambiguous_with,
        ranks_waiting=verdict.impact.ranks_waiting,
        since_ns=verdict.since_ns,
        may_isolate=verdict.grade == "isolate",
    )


def _grade(finding: Finding, lasted_ns: int, context: Context, ratio: float | None, options: GradingOptions) -> Grade:
    if finding.likelihood < options.alert_confidence:
        return "note"
    lost = 1.0 if finding.fault_class in HANGS else _lost_share(finding, ratio) or 0.0
    drains = (
        finding.may_isolate
        and finding.fault_class not in _NEVER_ISOLATED
        and finding.likelihood >= options.isolate_confidence
        and context.coverage >= options.isolate_coverage
        and lost >= options.isolate_share
        and (finding.fault_class != "comm_hang" or lasted_ns >= options.retries_ns)
    )
    return "isolate" if drains else "alert"


def _impact(finding: Finding, since_ns: int, context: Context, ratio: float | None) -> Impact:
    lost = 1.0 if finding.fault_class in HANGS else _lost_share(finding, ratio)
    lasted_ns = max(context.window.end_ns - since_ns, 0)
    waiting = max(context.roster.ranks - 1, 0) if finding.ranks_waiting is None else finding.ranks_waiting
    hours = None if lost is None else round(context.roster.ranks * lost * lasted_ns / _NS_PER_HOUR, 4)
    return Impact(step_time_ratio=ratio, ranks_waiting=waiting, gpu_hours=hours)


def _lost_share(finding: Finding, ratio: float | None) -> float | None:
    """Return the share of the job's time that is lost: as its steps show it, else as the stage reckons."""
    if ratio:
        return max(0.0, 1 - 1 / ratio)
    return finding.lost_share
