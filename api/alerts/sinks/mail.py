"""A mail in plain text; what belongs together has one thread in the reader's mail program."""

from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime

from api.alerts.wording import Sending, cut, figures, headline, paragraphs
from lockstep.alert_settings import Target
from lockstep.clock import NS_PER_S
from lockstep.news import News

_SUBJECT = 200


def render(target: Target, news: News, sending: Sending) -> EmailMessage:
    """Return the mail; Message-ID is made of the message's id, so that a second delivery is seen as the same."""
    sender = str(target.sender)
    domain = sender.rpartition("@")[2]
    mail = EmailMessage()
    mail["Subject"] = f"[Lockstep] {cut(' '.join(headline(news).split()), _SUBJECT)}"
    mail["From"] = sender
    mail["To"] = ", ".join(target.recipients)
    mail["Date"] = format_datetime(datetime.fromtimestamp(news.ts_ns // NS_PER_S, UTC))
    mail["Message-ID"] = f"<{news.id}@{domain}>"
    mail["References"] = f"<{_plain(news.key)}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody's holiday notice answers it
    mail.set_content(_text(news, sending))
    return mail


def _text(news: News, sending: Sending) -> str:
    told = [f"{name}: {value}" for name, value in figures(news).items()]
    return "\n".join([*paragraphs(news), "", *told, "", sending.page(news.matters[0])]) + "\n"


def _plain(key: str) -> str:
    return "".join(each if each.isalnum() or each in "._-" else "-" for each in key)
