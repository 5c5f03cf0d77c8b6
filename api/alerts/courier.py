"""Takes one message to one receiver and says what became of it; secrets are read at each try and never said."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import structlog

from api.alerts.mailing import send_mail
from api.alerts.posting import Outside, send_post
from api.alerts.retrying import Said, judge
from api.alerts.sinks import alertmanager, mail, pagerduty, slack, webhook
from api.alerts.wording import Sending
from lockstep.alert_settings import AlertSettings, Target
from lockstep.clock import Clock
from lockstep.config import Settings, read_secret
from lockstep.errors import BadInput, LockstepError
from lockstep.news import News, Thread

_log = structlog.get_logger("alerts")

_RENDERS = {
    "webhook": webhook.render,
    "alertmanager": alertmanager.render,
    "slack": slack.render,
    "pagerduty": pagerduty.render,
}
_JUDGES = {
    "webhook": judge,
    "alertmanager": alertmanager.judge_answer,
    "slack": slack.judge_answer,
    "pagerduty": pagerduty.judge_answer,
}
_REMINDERS = 4  # Alertmanager believes that an alert fires for as many reminders as this; Prometheus has the same
_IN_A_HEADER = re.compile(r"[!-~]+")
_SHORTEST_SECRET = 6  # what is shorter may be part of any word


@dataclass(frozen=True)
class Courier:
    """Knows the way to receivers."""

    settings: AlertSettings
    link: str
    outside: Outside

    def deliver(self, target: Target, news: News) -> Said:
        """Return what became of a message; whatever goes wrong is a sentence, too."""
        return self._try(target, lambda sending: self._hand_over(target, news, sending))

    def remind(self, target: Target, threads: Iterable[Thread]) -> Said:
        """Tell Alertmanager once more what fires."""
        return self._try(target, lambda sending: self._remind(target, threads, sending))

    def _try(self, target: Target, send: Callable[[Sending], Said]) -> Said:
        secrets: tuple[str, ...] = ()
        try:
            secrets = read_secrets(target)
            firing_s = _REMINDERS * self.settings.resend_s
            said = send(Sending(self.outside.clock.now_ns(), self.link, secrets, firing_s))
        except LockstepError as error:
            said = Said("failed", str(error))
        except Exception as error:  # noqa: BLE001  # a bug with one message must not leave it in flight for ever
            _log.error("message cannot be sent", target=target.name, exc_info=error)
            said = Said("failed", f"this should not have happened: {type(error).__name__}")
        return replace(said, sentence=without_secrets(said.sentence, target, secrets))

    def _hand_over(self, target: Target, news: News, sending: Sending) -> Said:
        if target.kind == "email":
            password = sending.secrets[0] if sending.secrets else ""
            letter = mail.render(target, news, sending)
            return send_mail(target.address, target.username, password, letter, self.outside)
        answer = send_post(_RENDERS[target.kind](target, news, sending), self.outside)
        return _JUDGES[target.kind](answer, sending.now_ns)

    def _remind(self, target: Target, threads: Iterable[Thread], sending: Sending) -> Said:
        post = alertmanager.remind(target, threads, sending)
        return alertmanager.judge_answer(send_post(post, self.outside), sending.now_ns)


def make_courier(settings: Settings, clock: Clock) -> Courier:
    """Return a courier for these settings."""
    alerts = settings.alerts
    outside = Outside(clock, alerts.allow, alerts.timeout_s, alerts.ca_file)
    return Courier(alerts, alerts.link or f"http://{settings.api.listen}", outside)


def read_secrets(target: Target) -> tuple[str, ...]:
    """Return a receiver's secrets, newest first as they were given; files are read anew, so they can be changed."""
    files = (read_secret(file, f"a secret of target {target.name}") for file in target.secret_files)
    secrets = (*target.secrets, *(secret for secret in files if secret))
    if target.kind != "email" and not all(_IN_A_HEADER.fullmatch(secret) for secret in secrets):
        raise BadInput(f"a secret of target {target.name} has spaces, lines or letters that are not plain ASCII")
    return secrets


def without_secrets(sentence: str, target: Target, secrets: Iterable[str]) -> str:
    """Return a sentence for log and API: a receiver may repeat in its answer what it was sent."""
    parts = urlsplit(target.address)
    hidden = [*secrets, parts.query, parts.path if target.kind in ("slack", "webhook") else ""]
    for each in hidden:
        if len(each) >= _SHORTEST_SECRET:
            sentence = sentence.replace(each, "***")
    return sentence
