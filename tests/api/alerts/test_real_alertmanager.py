"""A real Alertmanager takes our alerts: they fire, are grouped, change, are silenced there, resolve, come back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from importers.traces.alertmanager import check_notification, statements_of
from lockstep.state.targets import list_health
from tests.api.alerts.build import Alerts, after, alerting, fault, target
from tests.api.alerts.real_alertmanager import Alertmanager, alertmanager
from tests.api.alerts.receivers import Receiver, receiving
from tests.waiting import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture
def manager(tmp_path: Path, hook: Receiver) -> Iterator[Alertmanager]:
    with alertmanager(tmp_path, hook.url) as running:
        yield running


@pytest.fixture
def alerts(tmp_path: Path, manager: Alertmanager) -> Iterator[Alerts]:
    receiver = target("am", "alertmanager", url=manager.url, watchdog=True)
    with alerting(tmp_path, receiver, settle_s=0, group_s=0) as running:
        yield running


def firing(manager: Alertmanager) -> list[tuple[str, str]]:
    """Return subject and state of what fires, but for the watchdog."""
    found = [alert for alert in manager.alerts() if alert["labels"]["lockstep"] != "watchdog"]
    return [(alert["labels"]["subject"], alert["status"]["state"]) for alert in found]


def notified(hook: Receiver, status: str) -> list[list[str]]:
    """Return the subjects of each notification of this status."""
    told: list[dict[str, Any]] = [got.document for got in hook.got]
    return [
        sorted(alert["labels"].get("subject", "") for alert in document["alerts"])
        for document in told
        if document["status"] == status and document["groupLabels"].get("job")
    ]


def test_incidents_fire_are_grouped_and_resolve(alerts: Alerts, manager: Alertmanager, hook: Receiver) -> None:
    alerts.happen(fault("i1"), fault("i2", component="gpu:h4/0"))
    alerts.round()
    alerts.round(1)
    assert [subject for subject, _ in firing(manager)] == ["i1", "i2"]
    assert list_health(alerts.control)["am"].failures_in_row == 0
    eventually(lambda: ["i1", "i2"] in notified(hook, "firing"))
    alerts.happen(*(fault(name, state="closed", closed_ns=after(1)) for name in ("i1", "i2")))
    alerts.round(1)
    eventually(lambda: firing(manager) == [])
    eventually(lambda: notified(hook, "resolved"))


def test_other_grade_is_one_alert_with_other_labels(alerts: Alerts, manager: Alertmanager) -> None:
    alerts.happen(fault(grade="alert"))
    alerts.round()
    alerts.happen(fault(grade="isolate"))
    alerts.round(1)
    eventually(lambda: len(firing(manager)) == 1)
    (alert,) = [each for each in manager.alerts() if each["labels"]["lockstep"] == "incident"]
    assert (alert["labels"]["severity"], alert["labels"]["grade"]) == ("warning", "isolate")


def test_what_fires_is_told_again_and_the_watchdog_always(alerts: Alerts, manager: Alertmanager) -> None:
    alerts.happen(fault())
    alerts.round()
    alerts.round(1)
    first = {alert["labels"]["alertname"]: alert["updatedAt"] for alert in manager.alerts()}
    assert set(first) == {"LockstepIncident", "LockstepWatchdog"}
    alerts.round(61)
    again = {alert["labels"]["alertname"]: alert["updatedAt"] for alert in manager.alerts()}
    assert all(again[name] > first[name] for name in first)


def test_silence_at_alertmanager_holds(alerts: Alerts, manager: Alertmanager, hook: Receiver) -> None:
    manager.silence("component", "nic:h3/eth1")
    alerts.happen(fault("i1"), fault("i2", component="gpu:h4/0"))
    alerts.round()
    eventually(lambda: ("i1", "suppressed") in firing(manager))
    eventually(lambda: ["i2"] in notified(hook, "firing"))
    assert not [subjects for subjects in notified(hook, "firing") if "i1" in subjects]


def test_our_own_alerts_are_no_evidence_when_they_come_back(alerts: Alerts, hook: Receiver) -> None:
    alerts.happen(fault())
    alerts.round()
    eventually(lambda: notified(hook, "firing"))
    for got in hook.got:
        assert list(statements_of(check_notification("what Alertmanager posted", got.body))) == []
