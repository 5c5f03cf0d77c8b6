"""The shell around the alerts: finds news, writes them into the outbox, sends what is due, one process at a time."""

from collections.abc import Mapping
from contextlib import suppress

import structlog

from api.alerts.counts import DeliveryCounts
from api.alerts.courier import Courier, make_courier
from api.alerts.dispatching import Dispatcher
from api.alerts.matters import Situation, survey
from api.alerts.planning import Known, Plan, plan_news
from api.alerts.selfwatch import Patience, SelfWatch, Watched
from api.parts import Parts
from lockstep.alert_settings import AlertSettings, Target
from lockstep.clock import NS_PER_S, Clock
from lockstep.control.database import ControlDatabase
from lockstep.control.decisions import list_decisions
from lockstep.control.deliveries import forget_deliveries, list_threads, resume_sending, save_round
from lockstep.control.executions import list_executions, list_orders
from lockstep.control.incidents import get_incident, open_incidents
from lockstep.control.leases import Lease
from lockstep.control.silences import list_silences
from lockstep.control.target_documents import LostTarget
from lockstep.control.targets import Health, list_health, list_targets, meet_targets, seal_targets
from lockstep.errors import NotPresent
from lockstep.news import Thread

_log = structlog.get_logger("alerts")

_LATEST = 200  # decisions and executions that are looked at: far more than a second or a restart brings
_SILENCES = 1000
_ORDERS_NS = 24 * 3600 * NS_PER_S  # decisions expire long before
_FORGET_NS = 3600 * NS_PER_S


class AlertService:
    """Sees to it that receivers are told; `run_once` does what is due and never waits for a receiver."""

    def __init__(
        self,
        settings: AlertSettings,
        control: ControlDatabase,
        courier: Courier,
        clock: Clock,
        watched: Watched,
        counts: DeliveryCounts | None = None,
    ) -> None:
        self._settings, self._control = settings, control
        patience = Patience(settings.silent_s, settings.full_share, since_ns=clock.now_ns())
        self._self_watch = SelfWatch(watched, control, patience)
        self._dispatcher = Dispatcher(settings.resend_s, control, courier, clock, counts or DeliveryCounts())
        self._generation: int | None = None
        self._forgot_ns = 0

    def run_once(self, lease: Lease, now_ns: int) -> None:
        """Write what is new into the outbox and begin to send what is due."""
        if lease.generation != self._generation:
            self._take_over(lease, now_ns)
        health = list_health(self._control)
        targets = all_targets(self._settings, self._control)
        if new := [name for name in targets if name not in health]:
            meet_targets(self._control, new, now_ns)
            health = list_health(self._control)
        active = {name: target for name, target in targets.items() if is_active(target, health[name])}
        threads = self._notice(active, health, lease, now_ns) if active else []
        self._dispatcher.send_due(active, lease, now_ns)
        self._dispatcher.remind(active, threads, lease, now_ns)
        self._forget(lease, now_ns)

    def close(self) -> None:
        """End what is under way; what was not finished is sent again by whoever comes next."""
        self._dispatcher.close()

    def wait(self) -> None:
        """Wait until every receiver has answered or timed out, and what is asked about ourselves is known."""
        self._dispatcher.wait()
        self._self_watch.wait()

    def _take_over(self, lease: Lease, now_ns: int) -> None:
        if resumed := resume_sending(self._control, lease, now_ns):
            _log.info("messages are sent again that were under way", messages=resumed)
        self._generation = lease.generation

    def _notice(
        self, targets: Mapping[str, Target], health: Mapping[str, Health], lease: Lease, now_ns: int
    ) -> list[Thread]:
        """Write down what is new for each receiver, and return what all of them know."""
        group_ns = round(self._settings.group_s * NS_PER_S)
        unfinished = list_threads(self._control, (), now_ns)
        situation = self._survey(unfinished, targets, now_ns)
        ids = [f"{name}/{subject}" for name in targets for subject in situation.matters]
        known = list_threads(self._control, ids, now_ns - group_ns)
        silences = list_silences(self._control, since_ns=now_ns, limit=_SILENCES)
        plans = [
            plan_news(
                target,
                Known({thread.subject: thread for thread in known if thread.target == name}, health[name].since_ns),
                situation,
                lambda matter: any(silence.matchers.fit(matter) for silence in silences),
                group_ns,
            )
            for name, target in targets.items()
        ]
        self._write(plans, lease)
        changed = {thread.id: thread for plan in plans for thread in plan.threads}
        return list(({thread.id: thread for thread in known} | changed).values())

    def _write(self, plans: list[Plan], lease: Lease) -> None:
        outgoing = [message for plan in plans for message in plan.outgoing]
        threads = [thread for plan in plans for thread in plan.threads]
        if outgoing or threads:
            save_round(self._control, lease, outgoing, threads)

    def _survey(self, unfinished: list[Thread], targets: Mapping[str, Target], now_ns: int) -> Situation:
        incidents = {incident.id: incident for incident in open_incidents(self._control)}
        told = {thread.subject for thread in unfinished if thread.matter.family == "incident"}
        for subject in told - incidents.keys():
            with suppress(NotPresent):
                incidents[subject] = get_incident(self._control, subject)
        found = survey(
            incidents.values(),
            list_decisions(self._control, limit=_LATEST),
            {order.decision for order in list_orders(self._control, since_ns=now_ns - _ORDERS_NS)},
            list_executions(self._control, limit=_LATEST),
            now_ns,
            round(self._settings.settle_s * NS_PER_S),
        )
        told_of_us = {thread.subject: thread.matter for thread in unfinished if thread.matter.family == "lockstep"}
        troubles = self._self_watch.look(told_of_us, list(targets), now_ns)
        return Situation(now_ns, {**found.matters, **troubles}, found.over)

    def _forget(self, lease: Lease, now_ns: int) -> None:
        if now_ns - self._forgot_ns >= _FORGET_NS:
            forget_deliveries(self._control, lease, now_ns - self._settings.keep_days * 24 * 3600 * NS_PER_S)
            self._forgot_ns = now_ns


def make_alerts(parts: Parts) -> AlertService:
    """Return the service of this process; what receivers' secrets lie in clear by then is sealed."""
    seal_targets(parts.control)
    watched = Watched(parts.store, lambda: parts.gateway.trouble)
    courier = make_courier(parts.settings, parts.clock)
    return AlertService(parts.settings.alerts, parts.control, courier, parts.clock, watched, parts.delivered)


def all_targets(settings: AlertSettings, control: ControlDatabase) -> dict[str, Target]:
    """Return every receiver by name; one in the settings goes before one of the API with the same name."""
    made = {target.name: target for target in list_targets(control)}
    return made | {target.name: target for target in settings.targets}


def is_active(target: Target, health: Health) -> bool:
    """Return whether a receiver is sent to: not switched off, not gone by its own word, and its secrets open."""
    return target.enabled and health.disabled_because is None and not isinstance(target, LostTarget)
