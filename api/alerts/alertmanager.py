"""Prometheus Alertmanager, API v2: an alert fires while its alert lasts, is told again, and ends with endsAt.

Alertmanager knows an alert by its labels. When class, component or grade of an incident change, the alert with the
old labels is resolved and one with the new labels fires, as with a rule of Prometheus whose severity changes. Every
alert of ours carries the label `lockstep`, by which our own intake knows them when they come back.
"""

import json
import re
from collections.abc import Iterable

from api.alerts.formats import Sending, cut, headline, is_over
from api.alerts.transport import Answer, Post, Reply, judge
from importers.traces.alertmanager import OWN_LABEL
from lockstep.alerts import Alert, Notification, Target, Thread
from lockstep.clock import NS_PER_S, rfc3339

Payload = dict[str, object]

WATCHDOG = "LockstepWatchdog"
TEST = "LockstepTest"
# None is the name of a rule in deploy/prometheus: one Alertmanager may get both, and silences and groups go by name.
NAMES = {
    "incident": "LockstepIncident",
    "decision": "LockstepProposal",
    "action": "LockstepAction",
    "lockstep": "LockstepTrouble",
}
_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)  # Alertmanager refuses all alerts of a message for one such name
_OF_ONE_HOST = ("nic", "gpu", "host", "nvlink", "pcie")


def render(target: Target, notification: Notification, sending: Sending) -> Post:
    """Return all alerts of the notification, and the end of the one whose labels were others before."""
    ends_ns = sending.now_ns if is_over(notification) else _still_ns(sending)
    payloads = [_payload(alert, notification, ends_ns, sending) for alert in notification.alerts]
    if notification.before is not None and _labels(notification.before) != _labels(notification.alerts[0]):
        payloads.append(_payload(notification.before, notification, sending.now_ns, sending))
    return _post(target, payloads, sending)


def remind(target: Target, threads: Iterable[Thread], sending: Sending) -> Post:
    """Return everything that still fires at this receiver, the watchdog included."""
    payloads = [_payload(thread.alert, _again(thread), _still_ns(sending), sending) for thread in threads]
    if target.watchdog:
        payloads.append(_watchdog(sending))
    return _post(target, payloads, sending)


def judge_answer(answer: Answer, now_ns: int) -> Reply:
    """Return what the answer means; a page in place of an answer comes from a proxy, not from Alertmanager."""
    reply = judge(answer, now_ns)
    if reply.result == "delivered" and "html" in answer.headers.get("content-type", ""):
        return Reply("failed", f"HTTP {answer.status} with a web page: this is no Alertmanager", answer.status)
    return reply


def _payload(alert: Alert, notification: Notification, ends_ns: int, sending: Sending) -> Payload:
    runbook = sending.runbook(alert)
    return {
        "labels": _labels(alert),
        "annotations": {
            "summary": cut(headline(notification) if len(notification.alerts) == 1 else alert.headline, 300),
            "description": cut(alert.reason),
            **({"runbook_url": runbook} if runbook else {}),
            **{_NOT_IN_NAMES.sub("_", name): value for name, value in alert.facts.items()},
        },
        "startsAt": rfc3339(min(alert.since_ns, ends_ns)),
        "endsAt": rfc3339(ends_ns),
        "generatorURL": sending.page(alert),
    }


def _labels(alert: Alert) -> dict[str, str]:
    kind, _, name = alert.component.partition(":")
    labels = {
        "alertname": TEST if alert.fault_class == "test" else NAMES[alert.family],
        OWN_LABEL: alert.family,
        "subject": alert.subject,
        "job": alert.job,
        "class": alert.fault_class,
        "component": alert.component,
        "grade": alert.grade,
        "severity": alert.severity,
        "host": name.partition("/")[0] if kind in _OF_ONE_HOST else "",
    }
    return {name: value for name, value in labels.items() if value}  # an empty label is none


def _watchdog(sending: Sending) -> Payload:
    labels = {"alertname": WATCHDOG, OWN_LABEL: "watchdog", "severity": "none"}
    summary = "Lockstep is alive and reaches this Alertmanager; tell somebody when this stops firing"
    return {
        "labels": labels,
        "annotations": {"summary": summary},
        "endsAt": rfc3339(_still_ns(sending)),
        "generatorURL": sending.link,
    }


def _again(thread: Thread) -> Notification:
    kind = "lockstep.troubled" if thread.alert.family == "lockstep" else "incident.opened"
    return Notification(id="-", kind=kind, key=thread.key, ts_ns=thread.reported_ns, alerts=(thread.alert,))


def _still_ns(sending: Sending) -> int:
    return sending.now_ns + round(sending.firing_s * NS_PER_S)


def _post(target: Target, payloads: list[Payload], sending: Sending) -> Post:
    headers = {"Content-Type": "application/json"}
    if sending.secrets:
        headers["Authorization"] = f"Bearer {sending.secrets[0]}"
    url = target.address.rstrip("/") + "/api/v2/alerts"
    return Post(url, json.dumps(payloads).encode(), headers)
