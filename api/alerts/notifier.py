"""Sends notifications: a worker per receiver, secrets read at each try, every outcome written down."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args
from urllib.parse import urlsplit

import structlog
from prometheus_client import Counter, Histogram

from api.alerts import alertmanager
from api.alerts.formats import (
    Sending,
    judge_pagerduty,
    judge_slack,
    render_mail,
    render_pagerduty,
    render_slack,
    render_webhook,
)
from api.alerts.transport import Outside, Reply, judge, next_try_ns, send_mail, send_post
from lockstep.alerts import AlertSettings, Notification, Target, TargetKind, Thread
from lockstep.clock import NS_PER_S, Clock
from lockstep.config import Settings, read_secret
from lockstep.errors import BadInput, LockstepError
from lockstep.state.database import ControlDatabase
from lockstep.state.deliveries import (
    Delivery,
    DeliveryState,
    Try,
    begin_try,
    due_deliveries,
    health_of,
    resume_sending,
    save_health,
    settle_try,
)
from lockstep.state.leases import Lease
from lockstep.state.targets import Health

_log = structlog.get_logger("alerts")

_RENDERS = {
    "webhook": render_webhook,
    "alertmanager": alertmanager.render,
    "slack": render_slack,
    "pagerduty": render_pagerduty,
}
_JUDGES = {
    "webhook": judge,
    "alertmanager": alertmanager.judge_answer,
    "slack": judge_slack,
    "pagerduty": judge_pagerduty,
}
_REMINDERS = 4  # Alertmanager believes that an alert fires for as many reminders as this; Prometheus has the same
_IN_A_HEADER = re.compile(r"[!-~]+")
_SHORTEST_SECRET = 6  # what is shorter may be part of any word


@dataclass(frozen=True)
class Notifier:
    """Knows the way to receivers."""

    settings: AlertSettings
    link: str
    outside: Outside

    def deliver(self, target: Target, notification: Notification) -> Reply:
        """Return what became of a message; whatever goes wrong is a sentence, too."""
        return self._try(target, lambda sending: self._hand_over(target, notification, sending))

    def remind(self, target: Target, threads: Iterable[Thread]) -> Reply:
        """Tell Alertmanager once more what fires."""
        return self._try(target, lambda sending: self._remind(target, threads, sending))

    def _try(self, target: Target, send: Callable[[Sending], Reply]) -> Reply:
        secrets: tuple[str, ...] = ()
        try:
            secrets = read_secrets(target)
            firing_s = _REMINDERS * self.settings.resend_s
            now_ns = self.outside.clock.now_ns()
            reply = send(Sending(now_ns, self.link, secrets, firing_s, self.settings.runbooks))
        except LockstepError as error:
            reply = Reply("failed", str(error))
        except Exception as error:  # noqa: BLE001  # a bug with one message must not leave it in flight for ever
            _log.error("message cannot be sent", target=target.name, exc_info=error)
            reply = Reply("failed", f"this should not have happened: {type(error).__name__}")
        return replace(reply, sentence=without_secrets(reply.sentence, target, secrets))

    def _hand_over(self, target: Target, notification: Notification, sending: Sending) -> Reply:
        if target.kind == "email":
            password = sending.secrets[0] if sending.secrets else ""
            letter = render_mail(target, notification, sending)
            return send_mail(target.address, target.username, password, letter, self.outside)
        answer = send_post(_RENDERS[target.kind](target, notification, sending), self.outside)
        return _JUDGES[target.kind](answer, sending.now_ns)

    def _remind(self, target: Target, threads: Iterable[Thread], sending: Sending) -> Reply:
        post = alertmanager.remind(target, threads, sending)
        return alertmanager.judge_answer(send_post(post, self.outside), sending.now_ns)


def make_notifier(settings: Settings, clock: Clock) -> Notifier:
    """Return a notifier for these settings."""
    alerts = settings.alerts
    outside = Outside(clock, alerts.allow, alerts.timeout_s, alerts.ca_file)
    return Notifier(alerts, alerts.link or f"http://{settings.api.listen}", outside)


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


Job = Callable[[threading.Event], None]  # looks at the event between two messages, and ends when it is set

_LEAVING_S = 2.0  # what is under way at the end gets this long; what is cut off is sent again under the same id


class Workers:
    """Runs at most one job per receiver at a time, each in a thread of its own; there are few receivers."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}
        self._stop = threading.Event()

    def offer(self, target: str, job: Job) -> bool:
        """Begin the job and return True, unless this receiver is still being talked to."""
        if self.is_busy(target) or self._stop.is_set():
            return False
        thread = threading.Thread(target=self._run, args=(target, job), name=f"alerts-{target}", daemon=True)
        self._threads[target] = thread
        thread.start()
        return True

    def is_busy(self, target: str) -> bool:
        thread = self._threads.get(target)
        return thread is not None and thread.is_alive()

    def busy(self) -> list[str]:
        """Return the receivers that are being talked to."""
        return [target for target in self._threads if self.is_busy(target)]

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all that was begun is done."""
        for thread in list(self._threads.values()):
            thread.join(timeout_s)

    def close(self) -> None:
        """Begin nothing more, and give what is under way a moment."""
        self._stop.set()
        self.wait(_LEAVING_S)

    def _run(self, target: str, job: Job) -> None:
        try:
            job(self._stop)
        except LockstepError as error:  # the lease or the database is gone: somebody sends it again
            _log.warning("delivery not finished", target=target, reason=str(error))
        except Exception as error:  # noqa: BLE001  # a bug with one receiver must not end the others
            _log.error("delivery broke", target=target, exc_info=error)


_RESULTS: dict[DeliveryState, str] = {"delivered": "delivered", "waiting": "failed", "failed": "dead"}


# From when a fault began by its evidence to when people have it; windows, watermarks and retries are in it.
_SECONDS = (1, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300, 900)


class DeliveryCounts:
    """Counts tries by the receiver's kind and result: `failed` comes again, `dead` does not.

    Every series is there from the start: of one that begins with its first failure there is no increase to see.
    """

    def __init__(self) -> None:
        self.counter = Counter(
            "lockstep_deliveries", "Tries to deliver an alert, by how they ended", ["kind", "result"], registry=None
        )
        self.seconds = Histogram(
            "lockstep_notification_seconds",
            "Wall time from the begin of a fault to the receiver that has its notification",
            buckets=_SECONDS,
            registry=None,
        )
        for kind in get_args(TargetKind):
            for result in _RESULTS.values():
                self.counter.labels(kind, result)

    def count(self, kind: TargetKind, state: DeliveryState, notification: Notification, now_ns: int) -> None:
        """Count one try by what became of its message, and what it took until people heard of an incident."""
        self.counter.labels(kind, _RESULTS[state]).inc()
        if state == "delivered" and notification.kind == "incident.opened":
            since_ns = min(alert.since_ns for alert in notification.alerts)
            self.seconds.observe(max(now_ns - since_ns, 0) / NS_PER_S)


_AT_ONCE = 20  # messages to one receiver before the next round


class Dispatcher:
    """Hands messages to receivers without ever waiting for one."""

    def __init__(
        self, resend_s: float, control: ControlDatabase, notifier: Notifier, clock: Clock, counts: DeliveryCounts
    ) -> None:
        self._resend_ns = round(resend_s * NS_PER_S)
        self._control, self._notifier, self._clock, self._counts = control, notifier, clock, counts
        self.workers = Workers()
        self._reminded_ns: dict[str, int] = {}

    def send_due(self, targets: Mapping[str, Target], lease: Lease, now_ns: int) -> None:
        """Begin to send what is due to receivers that are not being talked to."""
        if resumed := resume_sending(self._control, lease, now_ns, self.workers.busy()):
            _log.warning("messages are tried again whose outcome was not written", messages=resumed)
        due: dict[str, list[int]] = {}
        for name, number in due_deliveries(self._control, now_ns, _AT_ONCE):
            due.setdefault(name, []).append(number)
        for name, numbers in due.items():
            if name in targets:
                self.workers.offer(name, partial(self._send_all, targets[name], numbers, lease))

    def remind(self, targets: Mapping[str, Target], threads: list[Thread], lease: Lease, now_ns: int) -> None:
        """Tell each Alertmanager from time to time what fires."""
        for name, target in targets.items():
            firing = [thread for thread in threads if thread.target == name and not thread.is_over and thread.number]
            is_due = now_ns - self._reminded_ns.get(name, 0) >= self._resend_ns
            is_wanted = target.kind == "alertmanager" and bool(firing or target.watchdog)
            if is_due and is_wanted and self.workers.offer(name, partial(self._remind, target, firing, lease)):
                self._reminded_ns[name] = now_ns

    def _send_all(self, target: Target, numbers: list[int], lease: Lease, stop: threading.Event) -> None:
        for number in numbers:
            if stop.is_set() or not self._send(target, number, lease):
                return

    def _send(self, target: Target, number: int, lease: Lease) -> bool:
        """Try one message, and return whether the next may follow at once."""
        sent = begin_try(self._control, lease, number, self._clock.now_ns())
        if sent is None:
            return True
        reply = self._notifier.deliver(target, sent.tries.notification)
        now_ns = self._clock.now_ns()
        state, due_ns = _state_after(sent, reply, now_ns)
        outcome = Try(ts_ns=now_ns, status=reply.status, said=reply.sentence)
        settle_try(self._control, lease, sent, state, due_ns, outcome, self._judge(target, reply, now_ns))
        self._counts.count(target.kind, state, sent.tries.notification, now_ns)
        return reply.result == "delivered"

    def _remind(self, target: Target, firing: list[Thread], lease: Lease, _: threading.Event) -> None:
        reply = self._notifier.remind(target, firing)
        save_health(self._control, lease, target.name, self._judge(target, reply, self._clock.now_ns()))

    def _judge(self, target: Target, reply: Reply, now_ns: int) -> Health:
        """Return how a receiver does after this answer, and say it when it changes."""
        health = health_of(self._control, target.name, now_ns)
        after = health_after(health, reply, now_ns)
        if after.disabled_because and not health.disabled_because:
            _log.error("receiver disabled", target=target.name, reason=after.disabled_because)
        elif after.failures_in_row and not health.failures_in_row:
            _log.warning("receiver fails", target=target.name, reason=reply.sentence)
        elif health.failures_in_row and not after.failures_in_row:
            _log.info("receiver answers again", target=target.name)
        return after


def health_after(health: Health, reply: Reply, now_ns: int) -> Health:
    """Return how a receiver does after one more answer."""
    if reply.result == "delivered":
        well = {"last_success_ns": now_ns, "failures_in_row": 0, "last_reply": reply.sentence}
        return health.model_copy(update=well)
    ill = {"last_failure_ns": now_ns, "failures_in_row": health.failures_in_row + 1, "last_reply": reply.sentence}
    gone = {"disabled_because": reply.sentence} if reply.result == "gone" else {}
    return health.model_copy(update=ill | gone)


def _state_after(sent: Delivery, reply: Reply, now_ns: int) -> tuple[DeliveryState, int]:
    """Return what becomes of a message, and when it is due again; one to a receiver that is gone waits for it."""
    due_ns = next_try_ns(sent.event, sent.tries.count, now_ns, reply.wait_s)
    if reply.result == "delivered":
        return "delivered", now_ns
    if reply.result == "refused" or (reply.result == "failed" and due_ns is None):
        return "failed", now_ns
    return "waiting", due_ns or now_ns
