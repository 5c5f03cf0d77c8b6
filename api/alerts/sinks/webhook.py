"""A generic webhook: CloudEvents 1.0 as JSON, signed as Standard Webhooks describe; 2xx means that it was taken."""

import json

from api.alerts.posting import Post
from api.alerts.signing import sign
from api.alerts.wording import MOST_LISTED, Sending, cut, headline, severity
from lockstep.alert_settings import Target
from lockstep.clock import NS_PER_S, rfc3339
from lockstep.news import Matter, News

_TYPE = "dev.lockstep."


def render(target: Target, news: News, sending: Sending) -> Post:
    """Return the message; the same news gives the same body at each try, and a fresh signature."""
    body = json.dumps(envelope(news, sending), ensure_ascii=False).encode()
    signed = sign(news.id, sending.now_ns // NS_PER_S, body, sending.secrets)
    return Post(target.address, body, {"Content-Type": "application/cloudevents+json; charset=utf-8", **signed})


def envelope(news: News, sending: Sending) -> dict[str, object]:
    """Return the event as CloudEvents' JSON format has it."""
    matters = [_matter(matter, sending) for matter in news.matters[:MOST_LISTED]]
    return {
        "specversion": "1.0",
        "id": news.id,
        "source": sending.link,
        "type": _TYPE + news.kind,
        "subject": news.key,
        "time": rfc3339(news.ts_ns),
        "datacontenttype": "application/json",
        "data": {
            "title": headline(news),
            "severity": severity(news),
            "key": news.key,
            "count": len(news.matters),
            "matters": matters,
        },
    }


def _matter(matter: Matter, sending: Sending) -> dict[str, object]:
    return {
        "subject": matter.subject,
        "job": matter.job,
        "class": matter.fault_class,
        "component": matter.component,
        "grade": matter.grade,
        "since": rfc3339(matter.since_ns),
        "since_ns": matter.since_ns,
        "reason": cut(matter.reason),
        "facts": matter.facts,
        "url": sending.page(matter),
    }
