"""Payloads of notifications: a signed webhook, Slack, PagerDuty and mail, and the words that they share."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import get_args

from api.alerts.transport import Answer, Post, Reply, judge
from lockstep.alerts import Alert, Notification, Target, decode_key
from lockstep.clock import NS_PER_S, rfc3339
from lockstep.errors import BadInput
from lockstep.verdict import Severity

MOST_LISTED = 20  # alerts that a message lists; the page has the others
_LONGEST = 1500  # characters of a reason: Slack cuts a block at 3,000, and a webhook's body stays below 20 KB
_OVER = ("incident.closed", "decision.settled", "action.settled", "lockstep.recovered")
_BEGINNINGS = {
    "incident.updated": "Changed: ",
    "decision.proposed": "Needs approval: ",
    "action.failed": "Failed: ",
    "lockstep.test": "Test: ",
}


@dataclass(frozen=True, slots=True)
class Sending:
    """What a message needs besides the notification: when it is sent, where pages are, and the receiver's secrets."""

    now_ns: int
    link: str
    secrets: tuple[str, ...] = ()
    firing_s: float = 300.0  # how long Alertmanager believes that an alert fires without hearing of it again
    runbooks: str = ""

    def page(self, alert: Alert) -> str:
        return self.link.rstrip("/") + alert.link

    def runbook(self, alert: Alert) -> str | None:
        """Return where a person finds what to do about an incident of this class; None where no place is set."""
        if not self.runbooks or alert.family != "incident":
            return None
        return f"{self.runbooks}#{alert.fault_class}"

    def links(self, alert: Alert) -> dict[str, str]:
        """Return the addresses to open, by what a person reads there."""
        runbook = self.runbook(alert)
        return {"Open in Lockstep": self.page(alert)} | ({"Runbook": runbook} if runbook else {})


def is_over(notification: Notification) -> bool:
    return notification.kind in _OVER


def headline(notification: Notification) -> str:
    """Return one line that says what fires, or what is over."""
    first, *others = notification.alerts
    if not others:
        return _beginning(notification, first.facts.get("lasted")) + first.headline
    location = f" in job {first.job}" if first.job else ""
    parts = ", ".join(dict.fromkeys(alert.component for alert in notification.alerts[:3]))
    more = " and others" if len(notification.alerts) > 3 else ""
    return f"{_beginning(notification)}{len(notification.alerts)} {first.family}s{location}: {parts}{more}"


def _beginning(notification: Notification, lasted: str | None = None) -> str:
    if is_over(notification):
        return f"Resolved after {lasted}: " if lasted else "Over: "
    return _BEGINNINGS.get(notification.kind, "")


def paragraphs(notification: Notification) -> list[str]:
    """Return what a person should read, most important first."""
    if len(notification.alerts) == 1:
        return [cut(notification.alerts[0].reason)]
    lines = [f"{alert.component}: {cut(alert.reason, 300)}" for alert in notification.alerts[:MOST_LISTED]]
    left = len(notification.alerts) - MOST_LISTED
    return [*lines, f"… and {left} more"] if left > 0 else lines


def figures(notification: Notification) -> dict[str, str]:
    """Return what is known in figures of a single alert, and when it began."""
    first = notification.alerts[0]
    began = {"since": rfc3339(min(alert.since_ns for alert in notification.alerts))}
    where = {"job": first.job} if first.job else {}
    return where | began | (first.facts if len(notification.alerts) == 1 else {})


def severity(notification: Notification) -> Severity:
    """Return how loud it is: as the worst of its alerts."""
    return min((alert.severity for alert in notification.alerts), key=get_args(Severity).index)


def cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def sign(event: str, now_s: int, body: bytes, secrets: Iterable[str]) -> dict[str, str]:
    """Return the headers that say which message this is, when it was sent, and that it is ours.

    >>> secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    >>> sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [secret])["webhook-signature"]
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    headers = {"webhook-id": event, "webhook-timestamp": str(now_s)}
    signed = f"{event}.{now_s}.".encode() + body
    try:
        digests = [hmac.digest(decode_key(secret), signed, hashlib.sha256) for secret in secrets]
    except ValueError as error:
        raise BadInput(str(error)) from None
    signatures = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers | {"webhook-signature": signatures} if signatures else headers


_TYPE = "dev.lockstep."


def render_webhook(target: Target, notification: Notification, sending: Sending) -> Post:
    """Return the message; the same notification gives the same body at each try, and a fresh signature."""
    body = json.dumps(envelope(notification, sending), ensure_ascii=False).encode()
    signed = sign(notification.id, sending.now_ns // NS_PER_S, body, sending.secrets)
    return Post(target.address, body, {"Content-Type": "application/cloudevents+json; charset=utf-8", **signed})


def envelope(notification: Notification, sending: Sending) -> dict[str, object]:
    """Return the event as CloudEvents' JSON format has it."""
    items = [_item(alert, sending) for alert in notification.alerts[:MOST_LISTED]]
    return {
        "specversion": "1.0",
        "id": notification.id,
        "source": sending.link,
        "type": _TYPE + notification.kind,
        "subject": notification.key,
        "time": rfc3339(notification.ts_ns),
        "datacontenttype": "application/json",
        "data": {
            "title": headline(notification),
            "severity": severity(notification),
            "key": notification.key,
            "count": len(notification.alerts),
            "items": items,
        },
    }


def _item(alert: Alert, sending: Sending) -> dict[str, object]:
    return {
        "subject": alert.subject,
        "job": alert.job,
        "class": alert.fault_class,
        "component": alert.component,
        "grade": alert.grade,
        "severity": alert.severity,
        "since": rfc3339(alert.since_ns),
        "since_ns": alert.since_ns,
        "reason": cut(alert.reason),
        "facts": alert.facts,
        "url": sending.page(alert),
        "runbook_url": sending.runbook(alert),
    }


Block = dict[str, object]

_SIGNS = {"critical": "🔴", "warning": "🟠", "info": "🔵"}
_OVER_SIGN = "🟢"
_HEADER = 150  # characters that Slack shows of a header
_SECTION = 2900  # of a section: Slack's limit is 3,000
_FIELDS = 10  # of a section


def render_slack(target: Target, notification: Notification, sending: Sending) -> Post:
    """Return the message; `text` is what a notification on a telephone shows."""
    line = f"{_OVER_SIGN if is_over(notification) else _SIGNS[severity(notification)]} {headline(notification)}"
    message = {"text": cut(escape(line), 500), "blocks": _blocks(notification, line, sending)}
    return Post(target.address, json.dumps(message).encode(), {"Content-Type": "application/json"})


def judge_slack(answer: Answer, now_ns: int) -> Reply:
    """Return what the answer means: Slack says `ok`, so another 200 is from somebody else."""
    reply = judge(answer, now_ns)
    if reply.result == "delivered" and answer.body.strip() != b"ok":
        return Reply("failed", f"HTTP {answer.status} without Slack's ok: {answer.text}", answer.status)
    return reply


def escape(text: str) -> str:
    """Return text in which nothing is taken for a link or a mention.

    >>> escape("<!channel> & co")
    '&lt;!channel&gt; &amp; co'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _blocks(notification: Notification, line: str, sending: Sending) -> list[Block]:
    fields = [_mrkdwn(f"*{name}*\n{escape(value)}") for name, value in list(figures(notification).items())[:_FIELDS]]
    links = [f"<{address}|{text}>" for text, address in sending.links(notification.alerts[0]).items()]
    return [
        {"type": "header", "text": {"type": "plain_text", "text": cut(line, _HEADER), "emoji": True}},
        {"type": "section", "text": _mrkdwn(cut(escape("\n".join(paragraphs(notification))), _SECTION))},
        {"type": "section", "fields": fields},
        {"type": "context", "elements": [_mrkdwn(link) for link in links]},
    ]


def _mrkdwn(text: str) -> Block:
    return {"type": "mrkdwn", "text": text}


_SUMMARY = 1024  # characters, PagerDuty's limit
_KEY = 255


def render_pagerduty(target: Target, notification: Notification, sending: Sending) -> Post:
    """Return the event: triggered, or resolved where it is over."""
    if not sending.secrets:
        raise BadInput(f"target {target.name} has no routing key")
    event: dict[str, object] = {
        "routing_key": sending.secrets[0],
        "event_action": "resolve" if is_over(notification) else "trigger",
        "dedup_key": notification.key[:_KEY],
    }
    if not is_over(notification):
        links = [{"href": address, "text": text} for text, address in sending.links(notification.alerts[0]).items()]
        event |= {"payload": _payload(notification), "client": "Lockstep", "links": links}
    return Post(target.address, json.dumps(event).encode(), {"Content-Type": "application/json"})


def judge_pagerduty(answer: Answer, now_ns: int) -> Reply:
    """Return what the answer means: 202 with a status is theirs, and 400 would be 400 again."""
    if answer.status == 400:
        return Reply("refused", f"PagerDuty does not understand it: {answer.text}", 400)
    reply = judge(answer, now_ns)
    if reply.result == "delivered" and not _is_theirs(answer):
        return Reply("failed", f"HTTP {answer.status} without PagerDuty's words: {answer.text}", answer.status)
    return reply


def _payload(notification: Notification) -> dict[str, object]:
    first = notification.alerts[0]
    return {
        "summary": cut(headline(notification), _SUMMARY),
        "source": first.component or "lockstep",
        "severity": severity(notification),
        "timestamp": rfc3339(notification.ts_ns),
        "component": first.component,
        "group": first.job,
        "class": first.fault_class,
        "custom_details": {"reason": "\n".join(paragraphs(notification)), **figures(notification)},
    }


def _is_theirs(answer: Answer) -> bool:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):  # whatever answers there, also a thousand brackets
        return False
    return isinstance(document, dict) and document.get("status") == "success"


_SUBJECT = 200


def render_mail(target: Target, notification: Notification, sending: Sending) -> EmailMessage:
    """Return the mail; Message-ID is made of the message's id, so that a second delivery is seen as the same."""
    sender = str(target.sender)
    domain = sender.rpartition("@")[2]
    mail = EmailMessage()
    mail["Subject"] = f"[Lockstep] {cut(' '.join(headline(notification).split()), _SUBJECT)}"
    mail["From"] = sender
    mail["To"] = ", ".join(target.recipients)
    mail["Date"] = format_datetime(datetime.fromtimestamp(notification.ts_ns // NS_PER_S, UTC))
    mail["Message-ID"] = f"<{notification.id}@{domain}>"
    thread = "".join(each if each.isalnum() or each in "._-" else "-" for each in notification.key)
    mail["References"] = f"<{thread}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody's holiday notice answers it
    known = [f"{name}: {value}" for name, value in figures(notification).items()]
    links = sending.links(notification.alerts[0]).values()
    lines = [*paragraphs(notification), "", *known, "", *links]
    mail.set_content("\n".join(lines) + "\n")
    return mail
