"""The shell around the alerts: writes notifications into the queue and sends what is due, one process at a time."""

from collections import Counter as Tally
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from api.alerts.active import ActiveAlerts, find_active
from api.alerts.notifier import DeliveryCounts, Dispatcher, Notifier, make_notifier
from api.alerts.planning import Known, plan_notifications
from api.alerts.selfwatch import Patience, SelfWatch, Watched
from api.alerts.transport import check_allowed
from api.dependencies import Parts
from lockstep.alerts import AlertSettings, Target, Thread
from lockstep.clock import NS_PER_S, Clock
from lockstep.errors import BadInput, NotPresent
from lockstep.state.database import ControlDatabase, count_undelivered
from lockstep.state.decisions import list_decisions, list_executions, list_orders
from lockstep.state.deliveries import forget_deliveries, list_threads, oldest_waiting, resume_sending, save_round
from lockstep.state.incidents import get_incident, open_incidents
from lockstep.state.leases import Lease, Shard
from lockstep.state.targets import Health, LostTarget, list_health, list_targets, meet_targets, seal_targets

_log = structlog.get_logger("alerts")

_LATEST = 200  # decisions and executions that are looked at: far more than a second or a restart brings
_ORDERS_NS = 24 * 3600 * NS_PER_S  # decisions expire long before
_FORGET_NS = 3600 * NS_PER_S


class AlertService:
    """Sees to it that receivers are told; `run_once` does what is due and never waits for a receiver."""

    def __init__(
        self,
        settings: AlertSettings,
        control: ControlDatabase,
        notifier: Notifier,
        clock: Clock,
        watched: Watched,
        counts: DeliveryCounts | None = None,
    ) -> None:
        self._settings, self._control = settings, control
        patience = Patience(settings.silent_s, settings.full_share, since_ns=clock.now_ns())
        self._self_watch = SelfWatch(watched, control, patience)
        self._dispatcher = Dispatcher(settings.resend_s, control, notifier, clock, counts or DeliveryCounts())
        self._generation: int | None = None
        self._forgot_ns = 0

    def run_once(self, lease: Lease, now_ns: int) -> None:
        """Write what is new into the queue and begin to send what is due."""
        if lease.generation != self._generation:
            if resumed := resume_sending(self._control, lease, now_ns):
                _log.info("messages are sent again that were under way", messages=resumed)
            _warn_of_refused(self._settings)
            self._generation = lease.generation
        health = list_health(self._control)
        targets = all_targets(self._settings, self._control)
        if new := [name for name in targets if name not in health]:
            meet_targets(self._control, new, now_ns)
            health = list_health(self._control)
        active = {name: target for name, target in targets.items() if is_active(target, health[name])}
        threads = self._notice(active, health, lease, now_ns) if active else []
        self._dispatcher.send_due(active, lease, now_ns)
        self._dispatcher.remind(active, threads, lease, now_ns)
        if now_ns - self._forgot_ns >= _FORGET_NS:
            forget_deliveries(self._control, lease, now_ns - self._settings.keep_days * 24 * 3600 * NS_PER_S)
            self._forgot_ns = now_ns

    def close(self) -> None:
        """End what is under way; what was not finished is sent again by whoever comes next."""
        self._dispatcher.workers.close()

    def wait(self) -> None:
        """Wait until every receiver has answered or timed out, and what is asked about ourselves is known."""
        self._dispatcher.workers.wait()
        self._self_watch.wait()

    def _notice(
        self, targets: Mapping[str, Target], health: Mapping[str, Health], lease: Lease, now_ns: int
    ) -> list[Thread]:
        """Write down what is new for each receiver, and return what all of them know."""
        group_ns = round(self._settings.group_s * NS_PER_S)
        unfinished = list_threads(self._control, (), now_ns)
        active = self._find_active(unfinished, targets, now_ns)
        ids = [f"{name}/{subject}" for name in targets for subject in active.alerts]
        known = list_threads(self._control, ids, now_ns - group_ns)
        plans = [
            plan_notifications(
                target,
                Known({thread.subject: thread for thread in known if thread.target == name}, health[name].since_ns),
                active,
                group_ns,
            )
            for name, target in targets.items()
        ]
        outgoing = [message for plan in plans for message in plan.outgoing]
        threads = [thread for plan in plans for thread in plan.threads]
        if outgoing or threads:
            save_round(self._control, lease, outgoing, threads)
        return list({thread.id: thread for thread in (*known, *threads)}.values())

    def _find_active(self, unfinished: list[Thread], targets: Mapping[str, Target], now_ns: int) -> ActiveAlerts:
        incidents = {incident.id: incident for incident in open_incidents(self._control)}
        reported = {thread.subject for thread in unfinished if thread.alert.family == "incident"}
        for subject in reported - incidents.keys():
            with suppress(NotPresent):
                incidents[subject] = get_incident(self._control, subject)
        found = find_active(
            incidents.values(),
            list_decisions(self._control, limit=_LATEST),
            {order.decision for order in list_orders(self._control, since_ns=now_ns - _ORDERS_NS)},
            list_executions(self._control, limit=_LATEST),
            now_ns,
            round(self._settings.settle_s * NS_PER_S),
        )
        own_alerts = {thread.subject: thread.alert for thread in unfinished if thread.alert.family == "lockstep"}
        troubles = self._self_watch.evaluate(own_alerts, list(targets), now_ns)
        return ActiveAlerts(now_ns, {**found.alerts, **troubles}, found.over)


def _warn_of_refused(settings: AlertSettings) -> None:
    """Say at once which receivers of the settings will get nothing, not when the first message is due."""
    for target in settings.targets:
        try:
            check_allowed(target.address, settings.allow)
        except BadInput as refusal:
            _log.warning("receiver gets nothing", target=target.name, reason=str(refusal))


def make_alerts(parts: Parts) -> AlertService:
    """Return the service of this process; what receivers' secrets lie in clear by then is sealed."""
    seal_targets(parts.control)
    analyzers = (shard.name for shard in Shard.all_of(parts.settings.analyzer.processes))
    watched = Watched(parts.store, lambda: parts.gateway.trouble, (*analyzers, "planner"))
    notifier = make_notifier(parts.settings, parts.clock)
    return AlertService(parts.settings.alerts, parts.control, notifier, parts.clock, watched, parts.delivered)


def all_targets(settings: AlertSettings, control: ControlDatabase) -> dict[str, Target]:
    """Return every receiver by name; one in the settings goes before one of the API with the same name."""
    made = {target.name: target for target in list_targets(control)}
    return made | {target.name: target for target in settings.targets}


def is_active(target: Target, health: Health) -> bool:
    """Return whether a receiver is sent to: not switched off, not gone by its own word, and its secrets open."""
    return target.enabled and health.disabled_because is None and not isinstance(target, LostTarget)


MOST_NAMED = 20  # receivers with a series of their own, the worst first; there may be 128 of them
_REMOVED = "removed"  # of a message whose receiver is no longer in the settings
_STATES = {"waiting": "waiting", "sending": "sending", "failed": "dead"}


@dataclass(frozen=True, slots=True)
class Receiver:
    """How one receiver answers."""

    name: str
    kind: str
    failures: int  # since it last took something
    is_disabled: bool  # because it said that it is gone


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The queue as it is; the age is None where nobody could be asked."""

    messages: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by the receiver's kind and state
    oldest_s: float | None = None
    receivers: tuple[Receiver, ...] = ()


def read_queue(settings: AlertSettings, control: ControlDatabase, now_ns: int) -> QueueFigures:
    """Return the figures of this moment; messages for receivers that are switched off or gone have no age."""
    targets, health = all_targets(settings, control), list_health(control)
    known = {name: health.get(name, Health(since_ns=now_ns)) for name in targets}
    active = [name for name, target in targets.items() if is_active(target, known[name])]
    oldest = oldest_waiting(control, active)
    return QueueFigures(
        _by_kind(count_undelivered(control), targets),
        max(0, now_ns - oldest[1]) / NS_PER_S if oldest else 0.0,
        _worst(targets, known),
    )


def _by_kind(found: Mapping[tuple[str, str], int], targets: Mapping[str, Target]) -> dict[tuple[str, str], int]:
    """Return messages by kind and state, with a nought for what does well."""
    kinds = {target.kind for target in targets.values()}
    counted: Tally[tuple[str, str]] = Tally({(kind, state): 0 for kind in kinds for state in _STATES.values()})
    for (name, state), count in found.items():
        counted[targets[name].kind if name in targets else _REMOVED, _STATES[state]] += count
    return dict(counted)


def _worst(targets: Mapping[str, Target], health: Mapping[str, Health]) -> tuple[Receiver, ...]:
    """Return receivers that are wanted, the worst first, no more than may be named."""
    wanted = [
        Receiver(
            name, target.kind, health[name].failures_in_row, is_disabled=health[name].disabled_because is not None
        )
        for name, target in targets.items()
        if target.enabled
    ]
    return tuple(sorted(wanted, key=lambda each: (not each.is_disabled, -each.failures, each.name))[:MOST_NAMED])
