"""Notification, targets and a whole alert service for tests, over a real control database."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.alerts.active import incident_alert
from api.alerts.notifier import DeliveryCounts, Notifier
from api.alerts.selfwatch import Watched
from api.alerts.service import AlertService
from api.alerts.transport import Outside
from lockstep.alerts import Alert, AlertSettings, Notification, Target
from lockstep.clock import NS_PER_S, ManualClock, SystemClock
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import save_incidents
from lockstep.verdict import Incident
from tests.api.fake_store import FakeStore
from tests.builders import T0
from tests.fixtures.control import hold_lease, opened_control
from tests.lockstep.state.build import incident

LOOPBACK = ("127.0.0.1/32",)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LEASE_S = 60


def fault(name: str = "i1", **changes: Any) -> Incident:
    """Return an open incident that began when tests happen; changes of the verdict go by name."""
    made = incident(name, job=str(changes.pop("job", "train")), opened_ns=T0, updated_ns=T0)
    state = {key: changes.pop(key) for key in list(changes) if key in ("state", "closed_ns", "closed_because")}
    verdict = made.verdict.model_copy(update={"since_ns": T0, **changes})
    return made.model_copy(update={"verdict": verdict, **state})


def make_alert(name: str = "i1", **changes: Any) -> Alert:
    return incident_alert(fault(name, **changes))


def make_notification(
    *alerts: Alert, kind: Any = "incident.opened", number: int = 1, before: Alert | None = None
) -> Notification:
    told = alerts or (make_alert(),)
    return Notification(id=f"evt_{number:026x}", kind=kind, key=told[0].subject, ts_ns=T0, alerts=told, before=before)


def target(name: str = "ops", kind: Any = "webhook", **fields: Any) -> Target:
    """Return a receiver of this kind, complete unless told otherwise."""
    usual: dict[str, dict[str, Any]] = {
        "webhook": {"url": "https://example.com/hook", "secrets": (SECRET,)},
        "alertmanager": {"url": "http://am.example:9093"},
        "slack": {"url": "https://hooks.slack.com/services/T0/B0/verysecret"},
        "pagerduty": {"secrets": ("routing-key-1",)},
        "email": {"url": "smtp://mail.example:587", "sender": "a@example.com", "recipients": ("b@example.com",)},
    }
    return Target(name=name, kind=kind, **{**usual[kind], **fields})


class QuietStore(FakeStore):
    """A store in which nothing is wrong, until `fault` is set or `answers` cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def query(self, sql: str, parameters: Any = None) -> Any:
        self.answers.wait(120)
        if self.fault:
            raise self.fault
        return _Rows([{"hosts": 1, "last_seen_ns": 2**62, "last_host": "h0", "behind_s": 0.0, "ended": 0}])

    def query_system(self, sql: str, parameters: Any = None) -> Any:
        return _Rows([{"total": 100, "free": 90}])


class _Rows:
    def __init__(self, rows: list[dict[str, object]]) -> None:
        self._rows = rows

    def to_pylist(self) -> list[dict[str, object]]:
        return self._rows


@dataclass
class Alerts:
    """A service with a clock that is moved by hand; deliveries are waited for."""

    service: AlertService
    control: ControlDatabase
    clock: ManualClock
    store: QuietStore
    counts: DeliveryCounts
    holder: str = "test"

    def round(self, after_s: float = 0.0) -> None:
        self.clock.advance(after_s)
        self.begin_round()
        self.service.wait()

    def begin_round(self) -> None:
        now_ns = self.clock.now_ns()
        lease = hold_lease(self.control, "alerts", self.holder, ttl_ns=LEASE_S * NS_PER_S, now_ns=now_ns)
        self.service.run_once(lease, now_ns)

    def happen(self, *incidents: Incident) -> None:
        save_incidents(self.control, incidents, None)


@contextmanager
def alerting(folder: Path, *targets: Target, timeout_s: float = 60.0, **settings: Any) -> Iterator[Alerts]:
    clock = ManualClock(T0)
    chosen = AlertSettings.model_construct(**{**AlertSettings().model_dump(), **settings, "targets": targets})
    outside = Outside(SystemClock(), LOOPBACK, timeout_s)
    with opened_control(folder) as control:
        for service in ("analyzer", "planner"):
            hold_lease(control, service, "somebody", now_ns=T0)
        notifier = Notifier(chosen, "http://head:8642", outside)
        store, counts = QuietStore(), DeliveryCounts()
        alerts = AlertService(chosen, control, notifier, clock, Watched(store), counts)
        try:
            yield Alerts(alerts, control, clock, store, counts)
        finally:
            store.answers.set()
            alerts.close()


def after(seconds: float) -> int:
    return T0 + round(seconds * NS_PER_S)
