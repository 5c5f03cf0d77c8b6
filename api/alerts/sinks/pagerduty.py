"""PagerDuty, Events API v2: triggered under the incident's id, so that all that follows joins the same alert."""

import json

from api.alerts.posting import Post
from api.alerts.retrying import Answer, Said, judge
from api.alerts.wording import Sending, cut, figures, headline, is_over, paragraphs, severity
from lockstep.alert_settings import Target
from lockstep.clock import rfc3339
from lockstep.errors import BadInput
from lockstep.news import News

_SUMMARY = 1024  # characters, PagerDuty's limit
_KEY = 255


def render(target: Target, news: News, sending: Sending) -> Post:
    """Return the event: triggered, or resolved where it is over."""
    if not sending.secrets:
        raise BadInput(f"target {target.name} has no routing key")
    event: dict[str, object] = {
        "routing_key": sending.secrets[0],
        "event_action": "resolve" if is_over(news) else "trigger",
        "dedup_key": news.key[:_KEY],
    }
    if not is_over(news):
        event |= {"payload": _payload(news), "client": "Lockstep", "links": _links(news, sending)}
    return Post(target.address, json.dumps(event).encode(), {"Content-Type": "application/json"})


def judge_answer(answer: Answer, now_ns: int) -> Said:
    """Return what the answer means: 202 with a status is theirs, and 400 would be 400 again."""
    if answer.status == 400:
        return Said("refused", f"PagerDuty does not understand it: {answer.text}", 400)
    said = judge(answer, now_ns)
    if said.result == "delivered" and not _is_theirs(answer):
        return Said("failed", f"HTTP {answer.status} without PagerDuty's words: {answer.text}", answer.status)
    return said


def _payload(news: News) -> dict[str, object]:
    first = news.matters[0]
    return {
        "summary": cut(headline(news), _SUMMARY),
        "source": first.component or "lockstep",
        "severity": severity(news),
        "timestamp": rfc3339(news.ts_ns),
        "component": first.component,
        "group": first.job,
        "class": first.fault_class,
        "custom_details": {"reason": "\n".join(paragraphs(news)), **figures(news)},
    }


def _links(news: News, sending: Sending) -> list[dict[str, str]]:
    return [{"href": sending.page(news.matters[0]), "text": "Open in Lockstep"}]


def _is_theirs(answer: Answer) -> bool:
    try:
        document = json.loads(answer.body)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("status") == "success"
