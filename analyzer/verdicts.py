"""What a finding amounts to: how sure it is, what it would justify and what it costs, as verdict and incident."""

import hashlib
from dataclasses import dataclass, replace

from analyzer.impact import Account, impact_of, stops_job
from analyzer.testimony import coverage_about, has_witnesses
from analyzer.windows.window import Context, Finding
from lockstep.clock import NS_PER_S
from lockstep.verdict import FaultClass, Grade, Incident, Verdict

_NEVER_ISOLATED: frozenset[FaultClass] = frozenset({"software", "global_slow", "telemetry_lost"})


@dataclass(frozen=True, slots=True)
class GradingOptions:
    """What is worth which grade."""

    isolate_confidence: float = 0.95  # a wrong drain costs a restart and a good node: one in twenty at most
    isolate_coverage: float = 0.75  # with fewer of the others seen, the culprit may be among those that say nothing
    alert_confidence: float = 0.5  # below, another part is likelier: something to read, not to be woken for
    retries_ns: int = 30 * NS_PER_S  # a stalled wire may come back until the transport has given up
    isolate_share: float = 0.05  # a fault that costs less than this is not worth a restart


_SHARED = ("fault_class", "component", "side", "reason", "evidence", "ruled_out", "ambiguous_with")


def make_verdict(
    finding: Finding, since_ns: int, context: Context, account: Account, options: GradingOptions
) -> Verdict:
    """Return the verdict that a finding amounts to; its likelihood is that over all evaluations so far."""
    finding = replace(finding, likelihood=round(min(finding.likelihood, finding.cap), 3))
    return Verdict(
        **{name: getattr(finding, name) for name in _SHARED},
        id="",
        job=context.job,
        attempt=context.attempt,
        confidence=finding.likelihood,
        grade=_grade(finding, context.window.end_ns - since_ns, context, account, options),
        since_ns=since_ns,
        last_seen_ns=context.window.end_ns,
        impact=impact_of(account, finding, context),
        coverage=round(min(context.coverage, 1.0), 4),
    )


def finding_of(verdict: Verdict) -> Finding:
    """Return the finding that a stored verdict was made of, so that an analyzer that takes over can go on with it."""
    return Finding(
        **{name: getattr(verdict, name) for name in _SHARED},
        likelihood=verdict.confidence,
        ranks_waiting=verdict.impact.ranks_waiting,
        stands_still=verdict.impact.stands_still,
        since_ns=verdict.since_ns,
        may_isolate=verdict.grade == "isolate",
    )


def _grade(finding: Finding, lasted_ns: int, context: Context, account: Account, options: GradingOptions) -> Grade:
    if finding.is_minor or finding.likelihood < options.alert_confidence:
        return "note"
    drains = (
        finding.may_isolate
        and has_witnesses(finding, context)
        and finding.fault_class not in _NEVER_ISOLATED
        and finding.likelihood >= options.isolate_confidence
        and coverage_about(finding, context) >= options.isolate_coverage
        and (_lost_share(finding, account) or 0.0) >= options.isolate_share
        and (finding.fault_class != "comm_hang" or lasted_ns >= options.retries_ns)
    )
    return "isolate" if drains else "alert"


def _lost_share(finding: Finding, account: Account) -> float | None:
    """Return the share of the time that is lost: all in a hang, else as the steps show it or the stage reckons."""
    if stops_job(finding):
        return 1.0
    return max(0.0, 1 - 1 / account.ratio) if account.ratio else finding.lost_share


def open_incident(
    finding: Finding, since_ns: int, context: Context, account: Account, options: GradingOptions
) -> Incident:
    """Return the incident that a finding opens; a second analysis of the same evaluations gives it the same id."""
    text = f"{context.job}/{context.attempt}/{finding.fault_class}/{finding.component}/{since_ns}"
    identity = hashlib.sha256(text.encode()).hexdigest()[:16]
    verdict = make_verdict(finding, since_ns, context, account, options)
    return Incident(
        id=identity,
        job=context.job,
        attempt=context.attempt,
        state="open",
        opened_ns=context.window.end_ns,
        updated_ns=context.window.end_ns,
        verdict=verdict.model_copy(update={"id": identity}),
    )


def close(incident: Incident, now_ns: int, because: str) -> Incident:
    """Return an incident that is over."""
    return incident.model_copy(
        update={"state": "closed", "closed_ns": now_ns, "updated_ns": now_ns, "closed_because": because}
    )
