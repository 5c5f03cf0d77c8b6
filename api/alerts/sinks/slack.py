"""A Slack incoming webhook: headline, reason, figures and a link as Block Kit; Slack answers `ok`."""

import json

from api.alerts.posting import Post
from api.alerts.retrying import Answer, Said, judge
from api.alerts.wording import Sending, cut, figures, headline, is_over, paragraphs, severity
from lockstep.alert_settings import Target
from lockstep.news import News

Block = dict[str, object]

_SIGNS = {"critical": "🔴", "warning": "🟠", "info": "🔵"}
_OVER_SIGN = "🟢"
_HEADER = 150  # characters that Slack shows of a header
_SECTION = 2900  # of a section: Slack's limit is 3,000
_FIELDS = 10  # of a section


def render(target: Target, news: News, sending: Sending) -> Post:
    """Return the message; `text` is what a notification on a telephone shows."""
    line = f"{_OVER_SIGN if is_over(news) else _SIGNS[severity(news)]} {headline(news)}"
    message = {"text": cut(escape(line), 500), "blocks": _blocks(news, line, sending)}
    return Post(target.address, json.dumps(message).encode(), {"Content-Type": "application/json"})


def judge_answer(answer: Answer, now_ns: int) -> Said:
    """Return what the answer means: Slack says `ok`, so another 200 is from somebody else."""
    said = judge(answer, now_ns)
    if said.result == "delivered" and answer.body.strip() != b"ok":
        return Said("failed", f"HTTP {answer.status} without Slack's ok: {answer.text}", answer.status)
    return said


def escape(text: str) -> str:
    """Return text in which nothing is taken for a link or a mention.

    >>> escape("<!channel> & co")
    '&lt;!channel&gt; &amp; co'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _blocks(news: News, line: str, sending: Sending) -> list[Block]:
    fields = [_mrkdwn(f"*{name}*\n{escape(value)}") for name, value in list(figures(news).items())[:_FIELDS]]
    link = f"<{sending.page(news.matters[0])}|Open in Lockstep>"
    return [
        {"type": "header", "text": {"type": "plain_text", "text": cut(line, _HEADER), "emoji": True}},
        {"type": "section", "text": _mrkdwn(cut(escape("\n".join(paragraphs(news))), _SECTION))},
        {"type": "section", "fields": fields},
        {"type": "context", "elements": [_mrkdwn(link)]},
    ]


def _mrkdwn(text: str) -> Block:
    return {"type": "mrkdwn", "text": text}
