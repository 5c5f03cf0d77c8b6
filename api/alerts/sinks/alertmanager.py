"""Prometheus Alertmanager, API v2: an alert fires while its matter lasts, is told again, and ends with endsAt.

Alertmanager knows an alert by its labels. When class, component or grade of an incident change, the alert with the
old labels is resolved and one with the new labels fires, as with a rule of Prometheus whose severity changes. Every
alert of ours carries the label `lockstep`, by which our own intake knows them when they come back.
"""

import json
from collections.abc import Iterable

from api.alerts.posting import Post
from api.alerts.retrying import Answer, Said, judge
from api.alerts.wording import Sending, cut, headline, is_over, severity
from lockstep.alert_settings import Target
from lockstep.clock import NS_PER_S, rfc3339
from lockstep.intake.alertmanager import OWN_LABEL
from lockstep.news import Matter, News, Thread

Alert = dict[str, object]

WATCHDOG = "LockstepWatchdog"
TEST = "LockstepTest"
# None is the name of a rule in deploy/prometheus: one Alertmanager may get both, and silences and groups go by name.
NAMES = {
    "incident": "LockstepIncident",
    "decision": "LockstepProposal",
    "action": "LockstepAction",
    "lockstep": "LockstepTrouble",
}
_OF_ONE_HOST = ("nic", "gpu", "host", "nvlink", "pcie")


def render(target: Target, news: News, sending: Sending) -> Post:
    """Return all alerts of the news, and the end of the one whose labels were others before."""
    ends_ns = sending.now_ns if is_over(news) else _still_ns(sending)
    alerts = [_alert(matter, news, ends_ns, sending) for matter in news.matters]
    if news.before is not None and _labels(news.before) != _labels(news.matters[0]):
        alerts.append(_alert(news.before, news, sending.now_ns, sending))
    return _post(target, alerts, sending)


def remind(target: Target, threads: Iterable[Thread], sending: Sending) -> Post:
    """Return everything that still fires at this receiver, the watchdog included."""
    alerts = [_alert(thread.matter, _again(thread), _still_ns(sending), sending) for thread in threads]
    if target.watchdog:
        alerts.append(_watchdog(sending))
    return _post(target, alerts, sending)


def judge_answer(answer: Answer, now_ns: int) -> Said:
    """Return what the answer means; a page in place of an answer comes from a proxy, not from Alertmanager."""
    said = judge(answer, now_ns)
    if said.result == "delivered" and "html" in answer.headers.get("content-type", ""):
        return Said("failed", f"HTTP {answer.status} with a web page: this is no Alertmanager", answer.status)
    return said


def _alert(matter: Matter, news: News, ends_ns: int, sending: Sending) -> Alert:
    return {
        "labels": _labels(matter),
        "annotations": {
            "summary": cut(headline(news) if len(news.matters) == 1 else matter.headline, 300),
            "description": cut(matter.reason),
            **{name.replace(" ", "_"): value for name, value in matter.facts.items()},
        },
        "startsAt": rfc3339(min(matter.since_ns, ends_ns)),
        "endsAt": rfc3339(ends_ns),
        "generatorURL": sending.page(matter),
    }


def _labels(matter: Matter) -> dict[str, str]:
    kind, _, name = matter.component.partition(":")
    alone = News(id="-", kind="incident.opened", key="-", ts_ns=0, matters=(matter,))
    labels = {
        "alertname": TEST if matter.fault_class == "test" else NAMES[matter.family],
        OWN_LABEL: matter.family,
        "subject": matter.subject,
        "job": matter.job,
        "class": matter.fault_class,
        "component": matter.component,
        "grade": matter.grade,
        "severity": "critical" if matter.fault_class == "lockstep" else severity(alone),
        "host": name.partition("/")[0] if kind in _OF_ONE_HOST else "",
    }
    return {name: value for name, value in labels.items() if value}  # an empty label is none


def _watchdog(sending: Sending) -> Alert:
    labels = {"alertname": WATCHDOG, OWN_LABEL: "watchdog", "severity": "none"}
    summary = "Lockstep is alive and reaches this Alertmanager; tell somebody when this stops firing"
    return {
        "labels": labels,
        "annotations": {"summary": summary},
        "endsAt": rfc3339(_still_ns(sending)),
        "generatorURL": sending.link,
    }


def _again(thread: Thread) -> News:
    kind = "lockstep.troubled" if thread.matter.family == "lockstep" else "incident.opened"
    return News(id="-", kind=kind, key=thread.key, ts_ns=thread.told_ns, matters=(thread.matter,))


def _still_ns(sending: Sending) -> int:
    return sending.now_ns + round(sending.firing_s * NS_PER_S)


def _post(target: Target, alerts: list[Alert], sending: Sending) -> Post:
    headers = {"Content-Type": "application/json"}
    if sending.secrets:
        headers["Authorization"] = f"Bearer {sending.secrets[0]}"
    url = target.address.rstrip("/") + "/api/v2/alerts"
    return Post(url, json.dumps(alerts).encode(), headers)
