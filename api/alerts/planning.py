"""What one receiver is told now: each alert once as it begins, changes and ends, and never a storm.

After a message about a job, what else begins in the same job waits for `group_s` and comes in one message with a
list, at receivers that people read. Alertmanager groups by itself, and programs behind a webhook want every event.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import get_args

from api.alerts.active import ActiveAlerts
from lockstep.alerts import Alert, Family, Notification, NotificationKind, Target, Thread
from lockstep.state.deliveries import Outgoing
from lockstep.verdict import Severity

IMPACT_STEP = 2.0  # times what the job loses: from 1.2 to 1.4 times its step time
LEAST_IMPACT = 0.2  # smaller differences are no reason to write to anybody, twice the loss or not
MOST_DOUBLINGS = 5  # 30 s become 16 minutes
_GRADES = ("note", "alert", "isolate")
_SEVERITIES = get_args(Severity)  # loudest first


def is_notable(before: Alert, now: Alert) -> bool:
    """Return whether a receiver that was told the one would want to know the other."""
    is_other = (before.mark, before.severity) != (now.mark, now.severity)
    return is_other or _impact_rose(before, now) or _impact_fell(before, now)


def patience_ns(thread: Thread, now: Alert, group_ns: int) -> int:
    """Return for how long after the last message an update waits, for it may change again at once.

    An incident that wavers between two components or grades would be told of for ever: each update that does not say
    that it is worse waits twice as long as the one before it. What is worse never waits for longer than `group_ns`,
    and what wavers cannot be worse twice without an update in between that it is not.
    """
    if now.family != "incident" or _is_worse(thread.alert, now):
        return group_ns
    return group_ns << min(max(thread.number - 1, 0), MOST_DOUBLINGS)


def _is_worse(before: Alert, now: Alert) -> bool:
    is_louder = _SEVERITIES.index(now.severity) < _SEVERITIES.index(before.severity)
    return is_louder or _GRADES.index(now.grade) > _GRADES.index(before.grade) or _impact_rose(before, now)


def _impact_rose(before: Alert, now: Alert) -> bool:
    return now.slowdown is not None and _is_step(before.slowdown or 1.0, now.slowdown)


def _impact_fell(before: Alert, now: Alert) -> bool:
    return before.slowdown is not None and now.slowdown is not None and _is_step(now.slowdown, before.slowdown)


def _is_step(lower: float, higher: float) -> bool:
    """Return whether what the job loses in the higher case is more by a step.

    >>> _is_step(1.2, 1.4), _is_step(1.2, 1.3), _is_step(1.02, 1.1)
    (True, False, False)
    """
    gained = round(higher - lower, 6)  # 1.4 - 1.2 is a little less than 0.2
    return gained >= LEAST_IMPACT and round(higher - 1, 6) >= round(IMPACT_STEP * (lower - 1), 6)


_GROUPING = ("slack", "email", "pagerduty")
_HOLDING_STATE = ("alertmanager", "pagerduty")  # what they show lasts until it is resolved
_PROGRAMS = ("webhook",)  # they get every event in its order
_OPENED: dict[Family, NotificationKind] = {
    "incident": "incident.opened",
    "decision": "decision.proposed",
    "lockstep": "lockstep.troubled",
}
_CHANGED: dict[Family, NotificationKind] = {"incident": "incident.updated", "decision": "decision.proposed"}
_CLOSED: dict[Family, NotificationKind] = {
    "incident": "incident.closed",
    "decision": "decision.settled",
    "action": "action.settled",
    "lockstep": "lockstep.recovered",
}
_ACTIONS: dict[str, NotificationKind] = {
    "done": "action.executed",
    "failed": "action.failed",
    "undone": "action.undone",
}
# What only those need who hold a state, and what is none that lasts.
_ONLY_FOR_STATE: tuple[NotificationKind, ...] = ("decision.settled", "action.settled")
_NOT_FOR_STATE: tuple[NotificationKind, ...] = ("action.executed", "action.undone")


@dataclass(frozen=True)
class Plan:
    """Messages to write, and what the receiver knows thereby."""

    outgoing: list[Outgoing] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)


@dataclass(frozen=True)
class Known:
    """What a receiver knows: its threads by subject, and since when there is somebody to tell."""

    threads: Mapping[str, Thread]
    since_ns: int


def plan_notifications(target: Target, known: Known, active: ActiveAlerts, group_ns: int) -> Plan:
    """Return what this receiver is told now; the same input gives the same messages with the same ids."""
    plan = Plan()
    _report_ended(plan, target, known, active)
    _report_changed(plan, target, known, active, group_ns)
    back = _back_in_their_group(known, active)
    plan.threads.extend(thread.model_copy(update={"is_over": False}) for thread in back.values())
    fresh = [
        alert
        for alert in active.alerts.values()
        if _is_new(known, alert) and alert.subject not in back and wants(target, alert)
    ]
    for alerts in _grouped(target, known, fresh, active.now_ns, group_ns):
        _report_new(plan, target, known, alerts, active.now_ns)
    return plan


def wants(target: Target, alert: Alert) -> bool:
    """Return whether the receiver asked for such alerts; grades are for incidents, jobs for what belongs to one.

    A job that stands still is told of however uncertain the part is: somebody has to look.
    """
    if alert.family not in target.events:
        return False
    if alert.family == "incident" and not _is_asked_for(target, alert):
        return False
    return not target.jobs or not alert.job or any(fnmatchcase(alert.job, pattern) for pattern in target.jobs)


def _is_asked_for(target: Target, alert: Alert) -> bool:
    return alert.severity in target.severities and (alert.severity == "critical" or alert.grade in target.grades)


def _back_in_their_group(known: Known, active: ActiveAlerts) -> dict[str, Thread]:
    """Return what came back while others of the same message last: nobody was told that it had gone."""
    lasting = {
        thread.key for thread in known.threads.values() if not thread.is_over and thread.subject in active.alerts
    }
    return {
        subject: thread
        for subject, thread in known.threads.items()
        if thread.is_over and thread.key in lasting and subject in active.alerts
    }


def _is_new(known: Known, alert: Alert) -> bool:
    thread = known.threads.get(alert.subject)
    if alert.family == "action":  # it lies in the past already: told once, to those who were there
        return thread is None and alert.since_ns >= known.since_ns
    return thread is None or thread.is_over


def _grouped(
    target: Target, known: Known, fresh: Sequence[Alert], now_ns: int, group_ns: int
) -> Iterable[list[Alert]]:
    """Return what goes into one message each; what has to wait is left out, and found again next time."""
    ordered = sorted(fresh, key=lambda alert: (alert.since_ns, alert.subject))
    if target.kind not in _GROUPING:
        return [[alert] for alert in ordered]
    groups: dict[tuple[str, str, str], list[Alert]] = {}
    for alert in ordered:
        kind = alert.mark if alert.family == "action" else ""
        groups.setdefault((alert.family, alert.job, kind), []).append(alert)
    return [group for group in groups.values() if not _was_just_reported(known, group[0], now_ns, group_ns)]


def _was_just_reported(known: Known, alert: Alert, now_ns: int, group_ns: int) -> bool:
    kin = (t for t in known.threads.values() if (t.alert.family, t.alert.job) == (alert.family, alert.job))
    return any(now_ns - thread.reported_ns < group_ns for thread in kin)


def _report_new(plan: Plan, target: Target, known: Known, alerts: list[Alert], now_ns: int) -> None:
    key = alerts[0].subject
    kind = _ACTIONS.get(alerts[0].mark) if alerts[0].family == "action" else _OPENED[alerts[0].family]
    added = _add(plan, target, known.threads.get(key), key, kind, alerts, now_ns)
    for alert in alerts:
        before = known.threads.get(alert.subject)
        number = (before.number if before else 0) + added
        plan.threads.append(_thread(target, key, number, now_ns, alert))


def _report_changed(plan: Plan, target: Target, known: Known, active: ActiveAlerts, group_ns: int) -> None:
    for subject, thread in known.threads.items():
        alert = active.alerts.get(subject)
        if thread.is_over or alert is None or not is_notable(thread.alert, alert):
            continue
        if active.now_ns - thread.reported_ns < patience_ns(thread, alert, group_ns):
            continue  # it may change again at once; what it is by then is told
        kind = _ACTIONS.get(alert.mark) if alert.family == "action" else _CHANGED.get(alert.family)
        added = _add(plan, target, thread, thread.key, kind, [alert], active.now_ns, thread.alert)
        plan.threads.append(_thread(target, thread.key, thread.number + added, active.now_ns, alert))


def _report_ended(plan: Plan, target: Target, known: Known, active: ActiveAlerts) -> None:
    """Tell what is over, once the last of a message's alerts is; only what was told before."""
    open_threads = [thread for thread in known.threads.values() if not thread.is_over]
    ended = {thread.subject: thread for thread in open_threads if thread.subject not in active.alerts}
    lasting = {thread.key for thread in open_threads if thread.subject not in ended}
    groups: dict[str, list[Thread]] = {}
    for thread in ended.values():
        groups.setdefault(thread.key, []).append(thread)
    for key, threads in groups.items():
        alerts = [active.over.get(thread.subject, thread.alert) for thread in threads]
        added = 0 if key in lasting else _end(plan, target, key, threads, alerts, active.now_ns)
        plan.threads.extend(
            thread.model_copy(update={"is_over": True, "number": thread.number + added, "reported_ns": active.now_ns})
            for thread in threads
        )


def _end(plan: Plan, target: Target, key: str, threads: list[Thread], alerts: list[Alert], now_ns: int) -> int:
    """Add the message that something is over; the labels are those that were told, all that is read is the newest."""
    if not any(thread.number for thread in threads):
        return 0
    reported = [
        thread.alert.model_copy(update={"reason": alert.reason, "headline": alert.headline, "facts": alert.facts})
        for thread, alert in zip(threads, alerts, strict=True)
    ]
    return _add(plan, target, threads[0], key, _CLOSED[threads[0].alert.family], reported, now_ns, is_end=True)


def _add(
    plan: Plan,
    target: Target,
    thread: Thread | None,
    key: str,
    kind: NotificationKind | None,
    alerts: list[Alert],
    now_ns: int,
    before: Alert | None = None,
    is_end: bool = False,
) -> int:
    """Add one message, unless it is not for this kind of receiver; return how many were added."""
    holds_state = target.kind in _HOLDING_STATE
    if kind is None or kind in (_NOT_FOR_STATE if holds_state else _ONLY_FOR_STATE):
        return 0
    number = thread.number if thread else 0
    name = hashlib.sha256(f"{target.name}|{alerts[0].subject}|{number}|{kind}".encode()).hexdigest()
    notification = Notification(
        id=f"evt_{name[:26]}", kind=kind, key=key, ts_ns=now_ns, alerts=tuple(alerts), before=before
    )
    plan.outgoing.append(Outgoing(target.name, notification, replaces=target.kind not in _PROGRAMS, is_end=is_end))
    return 1


def _thread(target: Target, key: str, number: int, now_ns: int, alert: Alert) -> Thread:
    return Thread(target=target.name, subject=alert.subject, key=key, number=number, reported_ns=now_ns, alert=alert)
