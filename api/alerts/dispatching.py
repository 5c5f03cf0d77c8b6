"""Sends what is due: a lane per receiver, every outcome written down, and Alertmanager reminded of what fires."""

import threading
from collections.abc import Mapping

import structlog

from api.alerts.counts import DeliveryCounts
from api.alerts.courier import Courier
from api.alerts.lanes import Job, Lanes
from api.alerts.retrying import Said, next_try_ns
from lockstep.alert_settings import Target
from lockstep.clock import NS_PER_S, Clock
from lockstep.control.database import ControlDatabase
from lockstep.control.deliveries import (
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
from lockstep.control.leases import Lease
from lockstep.control.targets import Health
from lockstep.news import Thread

_log = structlog.get_logger("alerts")

_AT_ONCE = 20  # messages to one receiver before the next round


class Dispatcher:
    """Hands messages to receivers without ever waiting for one."""

    def __init__(
        self, resend_s: float, control: ControlDatabase, courier: Courier, clock: Clock, counts: DeliveryCounts
    ) -> None:
        self._resend_ns = round(resend_s * NS_PER_S)
        self._control, self._courier, self._clock, self._counts = control, courier, clock, counts
        self._lanes = Lanes()
        self._reminded_ns: dict[str, int] = {}

    def send_due(self, targets: Mapping[str, Target], lease: Lease, now_ns: int) -> None:
        """Begin to send what is due to receivers that are not being talked to."""
        if resumed := resume_sending(self._control, lease, now_ns, self._lanes.busy()):
            _log.warning("messages are tried again whose outcome was not written", messages=resumed)
        due: dict[str, list[int]] = {}
        for name, number in due_deliveries(self._control, now_ns, _AT_ONCE):
            due.setdefault(name, []).append(number)
        for name, numbers in due.items():
            if name in targets:
                self._lanes.offer(name, self._sending(targets[name], numbers, lease))

    def remind(self, targets: Mapping[str, Target], threads: list[Thread], lease: Lease, now_ns: int) -> None:
        """Tell each Alertmanager from time to time what fires."""
        for name, target in targets.items():
            firing = [thread for thread in threads if thread.target == name and not thread.is_over and thread.number]
            is_due = now_ns - self._reminded_ns.get(name, 0) >= self._resend_ns
            is_wanted = target.kind == "alertmanager" and bool(firing or target.watchdog)
            if is_due and is_wanted and self._lanes.offer(name, self._reminding(target, firing, lease)):
                self._reminded_ns[name] = now_ns

    def wait(self) -> None:
        self._lanes.wait()

    def close(self) -> None:
        self._lanes.close()

    def _sending(self, target: Target, numbers: list[int], lease: Lease) -> Job:
        def send(stop: threading.Event) -> None:
            for number in numbers:
                if stop.is_set() or not self._send(target, number, lease):
                    return

        return send

    def _send(self, target: Target, number: int, lease: Lease) -> bool:
        """Try one message, and return whether the next may follow at once."""
        sent = begin_try(self._control, lease, number, self._clock.now_ns())
        if sent is None:
            return True
        said = self._courier.deliver(target, sent.tries.news)
        now_ns = self._clock.now_ns()
        state, due_ns = _state_after(sent, said, now_ns)
        outcome = Try(ts_ns=now_ns, status=said.status, said=said.sentence)
        settle_try(self._control, lease, sent, state, due_ns, outcome, self._judge(target, said, now_ns))
        self._counts.count(target.kind, state)
        return said.result == "delivered"

    def _reminding(self, target: Target, firing: list[Thread], lease: Lease) -> Job:
        def remind(_: threading.Event) -> None:
            said = self._courier.remind(target, firing)
            save_health(self._control, lease, target.name, self._judge(target, said, self._clock.now_ns()))

        return remind

    def _judge(self, target: Target, said: Said, now_ns: int) -> Health:
        """Return how a receiver does after this answer, and say it when it changes."""
        health = health_of(self._control, target.name, now_ns)
        after = health_after(health, said, now_ns)
        if after.disabled_because and not health.disabled_because:
            _log.error("receiver disabled", target=target.name, reason=after.disabled_because)
        elif after.failures_in_row and not health.failures_in_row:
            _log.warning("receiver fails", target=target.name, reason=said.sentence)
        elif health.failures_in_row and not after.failures_in_row:
            _log.info("receiver answers again", target=target.name)
        return after


def health_after(health: Health, said: Said, now_ns: int) -> Health:
    """Return how a receiver does after one more answer."""
    if said.result == "delivered":
        well = {"last_success_ns": now_ns, "failures_in_row": 0, "last_said": said.sentence}
        return health.model_copy(update=well)
    ill = {"last_failure_ns": now_ns, "failures_in_row": health.failures_in_row + 1, "last_said": said.sentence}
    gone = {"disabled_because": said.sentence} if said.result == "gone" else {}
    return health.model_copy(update=ill | gone)


def _state_after(sent: Delivery, said: Said, now_ns: int) -> tuple[DeliveryState, int]:
    """Return what becomes of a message, and when it is due again; one to a receiver that is gone waits for it."""
    due_ns = next_try_ns(sent.event, sent.tries.count, now_ns, said.wait_s)
    if said.result == "delivered":
        return "delivered", now_ns
    if said.result == "refused" or (said.result == "failed" and due_ns is None):
        return "failed", now_ns
    return "waiting", due_ns or now_ns
