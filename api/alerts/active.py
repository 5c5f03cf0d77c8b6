"""What fires now: incidents, proposals that wait for a person, actions that ended, troubles of our own."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from lockstep.alerts import Alert
from lockstep.clock import NS_PER_S, rfc3339
from lockstep.decision import Decision
from lockstep.execution import Execution
from lockstep.verdict import Incident
from lockstep.words import automation, between, by_hand, figure, headline, recommendation

ACTION_NS = 24 * 3600 * NS_PER_S  # an action that ended longer ago is not reported


@dataclass(frozen=True)
class ActiveAlerts:
    """Every alert that fires, by subject, and those known to be resolved."""

    now_ns: int
    alerts: Mapping[str, Alert] = field(default_factory=dict)
    over: Mapping[str, Alert] = field(default_factory=dict)  # with the reason why


def incident_alert(incident: Incident) -> Alert:
    """Return an incident as an alert; another class, part, grade, severity or step of impact is notified of."""
    verdict = incident.verdict
    return Alert(
        subject=incident.id,
        family="incident",
        job=incident.job,
        component=verdict.component,
        fault_class=verdict.fault_class,
        grade=verdict.grade,
        severity=verdict.severity,
        mark=f"{verdict.fault_class} {verdict.component} {verdict.grade}",
        since_ns=verdict.since_ns,
        slowdown=verdict.impact.step_time_ratio,
        headline=headline(incident, names_job=True),
        reason=(incident.closed_because if incident.state == "closed" else None) or verdict.reason,
        facts=_facts(incident),
        link=_page(incident.id),
    )


def advise(alert: Alert, decision: Decision) -> Alert:
    """Return an incident's alert with what to do about it, and who does it.

    What nobody carries out and no proposal tells of is worth a message by itself, since it comes after the first one.
    """
    advice = {"recommended": recommendation(decision).removeprefix("Recommended: ")}
    advice |= {
        name: text for name, text in (("automation", automation(decision)), ("by hand", by_hand(decision))) if text
    }
    is_left_to_people = decision.mode == "observe" and decision.action != "none"
    mark = f"{alert.mark} {decision.action}" if is_left_to_people else alert.mark
    return alert.model_copy(update={"facts": alert.facts | advice, "mark": mark})


def proposal_alert(decision: Decision) -> Alert:
    """Return a decision that waits for a person; the same action on the same parts again is not reported."""
    parts = ", ".join(sorted(isolation.component for isolation in decision.isolate))
    cost = decision.cost
    facts = {"decision": decision.id, "expires": rfc3339(decision.expires_ns)}
    if cost.downtime_s is not None:
        facts["standstill"] = f"{cost.downtime_s:.0f} s"
    if cost.gpu_hours is not None:
        facts["GPU hours"] = f"{cost.gpu_hours:.1f}"
    if decision.held_because:
        facts["held because"] = decision.held_because
    return Alert(
        subject=f"proposal:{decision.incident}",
        family="decision",
        job=decision.job,
        component=parts or f"job:{decision.job}",
        fault_class="decision",
        grade="alert",
        mark=f"{decision.action} {parts}",
        since_ns=decision.created_ns,
        headline=f"{decision.action} for job {decision.job}" + (f", taking out {parts}" if parts else ""),
        reason=decision.reason,
        facts=facts,
        link=_page(decision.incident),
    )


def action_alert(execution: Execution) -> Alert:
    """Return an action that has ended, well or not."""
    messages = [step.message for step in execution.steps if step.message]
    return Alert(
        subject=f"action:{execution.decision}",
        family="action",
        job=execution.job,
        component=execution.component,
        fault_class="action",
        grade="isolate" if execution.state == "failed" else "note",
        severity="critical" if execution.state == "failed" else "info",
        mark=execution.state,
        since_ns=execution.ended_ns or execution.began_ns,
        headline=f"{execution.action} for job {execution.job} is {execution.state}",
        reason=execution.reason or (messages[-1] if messages else f"it is {execution.state}"),
        facts={"decision": execution.decision, "approved by": execution.approved_by},
        link=_page(execution.incident),
    )


def trouble_alert(name: str, sentence: str, since_ns: int) -> Alert:
    """Return a trouble of Lockstep itself, for which nobody else would raise the alarm."""
    return Alert(
        subject=f"lockstep:{name}",
        family="lockstep",
        job="",
        component=f"lockstep:{name}",
        fault_class="lockstep",
        grade="isolate",
        severity="critical",
        mark=name,
        since_ns=since_ns,
        headline=f"Lockstep itself: {sentence.partition(':')[0]}",
        reason=sentence,
        link="/",
    )


def find_active(
    incidents: Iterable[Incident],
    decisions: Iterable[Decision],
    answered: Collection[str],
    executions: Iterable[Execution],
    now_ns: int,
    settle_ns: int,
) -> ActiveAlerts:
    """Return what fires now; `answered` are decisions on which a person has given an order.

    A closed incident stays active until it has been closed for long enough: what comes and goes is told once.
    """
    known = {incident.id: incident for incident in incidents}
    settled = {
        name for name, each in known.items() if each.state == "closed" and (each.closed_ns or 0) + settle_ns <= now_ns
    }
    incident_alerts = {name: incident_alert(incident) for name, incident in known.items()}
    alerts = {name: alert for name, alert in incident_alerts.items() if name not in settled}
    newest = {each.incident: each for each in sorted(decisions, key=lambda each: (each.created_ns, each.id))}
    for decision in newest.values():
        if decision.incident in alerts and decision.expires_ns > now_ns and not decision.part_of:
            alerts[decision.incident] = advise(alerts[decision.incident], decision)
        if _waits_for_a_person(decision, answered, now_ns) and decision.incident in alerts:
            alerts[f"proposal:{decision.incident}"] = proposal_alert(decision)
    for execution in executions:
        if (execution.ended_ns or 0) > now_ns - ACTION_NS and execution.incident not in settled:
            alerts[f"action:{execution.decision}"] = action_alert(execution)
    return ActiveAlerts(now_ns, alerts, {name: incident_alerts[name] for name in settled})


def _waits_for_a_person(decision: Decision, answered: Collection[str], now_ns: int) -> bool:
    asks = decision.mode == "propose" or (decision.mode == "execute" and decision.held_because is not None)
    is_open = decision.id not in answered and decision.approved_by is None and decision.expires_ns > now_ns
    return asks and is_open and decision.action != "none"


def _facts(incident: Incident) -> dict[str, str]:
    verdict = incident.verdict
    facts: dict[str, str] = {"class": verdict.fault_class, "severity": verdict.severity, "grade": verdict.grade}
    facts["confidence"] = f"{verdict.confidence:.2f}"
    if incident.closed_ns is not None:
        facts["lasted"] = between(verdict.since_ns, incident.closed_ns)
    if verdict.impact.step_time_ratio is not None:
        facts["step time"] = f"{verdict.impact.step_time_ratio:.2f} times what it was"
    if (lost := verdict.lost_gpu_hours()) is not None:
        facts["GPU-hours lost"] = figure(lost)
    if verdict.impact.ranks_waiting:
        facts["ranks waiting"] = str(verdict.impact.ranks_waiting)
    if verdict.side:
        facts["side"] = verdict.side
    if verdict.ambiguous_with:
        facts["or it is"] = ", ".join(verdict.ambiguous_with[:5])
    return facts


def _page(incident: str) -> str:
    return f"/incidents/{quote(incident, safe='')}"
